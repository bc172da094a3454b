//! What lies in the data folder of a server.

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, fchownat, geteuid};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Folders of the Raft log and of the state, beside the identity.
pub const LOG: &str = "log";
pub const STATE: &str = "state";
/// Folder of copies that are made for others; what an earlier run left in it is removed.
pub const SNAPSHOTS: &str = "snapshots";

/// What to do with a folder of which a part is lost.
pub const MOVE_AWAY: &str =
    "move the whole data folder away and start this server; the others bring it up to date";

/// In the end everything of whoever runs this in a folder is its owner's.
pub(crate) struct Owner(pub PathBuf);

impl Drop for Owner {
    fn drop(&mut self) {
        if let Err(e) = give(&self.0, geteuid()) {
            tracing::warn!("not all of {} is its owner's: {e}", self.0.display());
        }
    }
}

/// Whoever owns the folder may put anything in the place of a name meanwhile, so that nothing is
/// given by its name, and nothing that may be of elsewhere.
fn give(dir: &Path, me: Uid) -> io::Result<()> {
    // It may be a link, which is root's: systemd makes one to the folder of a service whose user it
    // makes, too.
    let top = File::open(dir)?;
    let owner = top.metadata()?;
    let (uid, gid) = (owner.uid(), owner.gid());
    let mut folders = vec![top];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))? {
            let how = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let file = match openat(&folder, entry?.file_name().as_os_str(), how, Mode::empty()) {
                Err(Errno::ENOENT) => continue,
                opened => File::from(opened?),
            };
            let found = file.metadata()?;
            // Another name of it may lie anywhere.
            let only_here = found.is_dir() || found.is_file() && found.nlink() == 1;
            let is_owners = (found.uid(), found.gid()) == (uid, gid);
            if only_here && found.uid() == me.as_raw() && !is_owners {
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                fchownat(&file, "", uid, gid, AtFlags::AT_EMPTY_PATH)?;
            }
            if found.is_dir() {
                folders.push(file);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    const SERVER: u32 = 4321;

    /// Needs root, as it is about what root leaves behind.
    #[test]
    fn the_owner_of_a_folder_gets_what_was_made_there_and_nothing_of_elsewhere() {
        if !geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (home, link, secret) =
            (dir.path().join("home"), dir.path().join("link"), dir.path().join("secret"));
        fs::create_dir_all(home.join("state/db-0")).unwrap();
        chown(&home, Some(SERVER), Some(SERVER)).unwrap();
        symlink(&home, &link).unwrap();
        fs::write(home.join("state/db-0/CURRENT"), "").unwrap();
        fs::write(home.join("its"), "").unwrap();
        chown(home.join("its"), Some(SERVER + 1), Some(SERVER + 1)).unwrap();
        fs::write(&secret, "").unwrap();
        fs::hard_link(&secret, home.join("second")).unwrap();
        symlink(&secret, home.join("to-it")).unwrap();
        symlink(dir.path(), home.join("state/up")).unwrap();
        give(&link, geteuid()).unwrap();
        let owner = |path: &str| {
            let found = fs::symlink_metadata(dir.path().join(path)).unwrap();
            (found.uid(), found.gid())
        };
        for given in ["home", "home/state", "home/state/db-0", "home/state/db-0/CURRENT"] {
            assert_eq!(owner(given), (SERVER, SERVER), "{given}");
        }
        assert_eq!(owner("home/its"), (SERVER + 1, SERVER + 1), "it is not of whoever ran this");
        for kept in ["secret", "home/second", "link"] {
            assert_eq!(owner(kept).0, 0, "{kept}");
        }
    }
}
