//! What is mounted on this machine, and what for: one small file a volume, so that a process that
//! takes the place of one that has died can put back what has died with it.
//!
//! Invariants: the file is there before the mount is made, and goes after it. It goes before the
//! certificates: a volume that has any is never mounted without them. What was noted before
//! the machine was started anew counts for nothing: the orchestrator begins anew then, too.

use crate::capability::Use;
use crate::volume_id::hash;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A volume that is mounted here.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Staged {
    /// Its id.
    pub volume: String,
    /// Where it is mounted.
    pub staging: PathBuf,
    /// Where it lies in the filesystem.
    pub path: String,
    /// How it is used.
    pub usage: Use,
    /// It has certificates of its own.
    pub tls: bool,
    /// When the machine was started.
    boot: String,
    /// Where workloads find it.
    pub published: Vec<Published>,
    /// It is being taken away: nobody mounts it again, until it is asked for.
    #[serde(default)]
    pub leaving: bool,
    /// And all that was written there was durable before it was unmounted.
    #[serde(default)]
    pub synced: bool,
}

/// A place where a workload finds a volume.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Published {
    pub target: PathBuf,
    pub read_only: bool,
    /// It is to be the only one.
    #[serde(default)]
    pub single: bool,
}

/// The folder with all that is known.
#[derive(Clone, Debug)]
pub struct State {
    folder: PathBuf,
    boot: String,
}

impl State {
    /// Opens the folder, which is made if it is not there.
    pub fn open(folder: &Path) -> io::Result<Self> {
        Self::open_since(folder, fs::read_to_string(BOOT_ID)?.trim().to_owned())
    }

    fn open_since(folder: &Path, boot: String) -> io::Result<Self> {
        for part in ["volumes", "log", "run"] {
            DirBuilder::new().recursive(true).mode(0o700).create(folder.join(part))?;
        }
        fs::set_permissions(folder.join("volumes"), Permissions::from_mode(0o700))?;
        let state = Self { folder: folder.to_owned(), boot };
        state.forget_old()?;
        state.sweep()?;
        Ok(state)
    }

    /// What is left of before the machine was started goes: here, where nobody notes anything yet.
    fn forget_old(&self) -> io::Result<()> {
        for old in self.all()?.iter().filter(|known| known.boot != self.boot) {
            if let Err(e) = self.remove(&old.volume) {
                tracing::error!("volume {:?} of before cannot be forgotten: {e}", old.volume);
            }
        }
        Ok(())
    }

    /// Removes certificates of volumes that are not known: who was to remove them died.
    fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.folder.join("volumes"))? {
            let folder = entry?.path();
            let is_tls = folder.extension().is_some_and(|ending| ending == "tls");
            if is_tls && !folder.with_extension("json").try_exists()? {
                there(fs::remove_dir_all(&folder))?;
            }
        }
        Ok(())
    }

    /// A volume that is about to be mounted.
    pub fn staged(
        &self,
        volume: &str,
        staging: PathBuf,
        path: String,
        usage: Use,
        tls: bool,
    ) -> Staged {
        let (volume, boot) = (volume.to_owned(), self.boot.clone());
        let (published, leaving, synced) = (Vec::new(), false, false);
        Staged { volume, staging, path, usage, tls, boot, published, leaving, synced }
    }

    /// What is known of a volume.
    pub fn find(&self, volume: &str) -> io::Result<Option<Staged>> {
        let found = read(&self.file(volume, "json"))?;
        Ok(found.filter(|found| found.volume == volume && found.boot == self.boot))
    }

    /// All that are mounted.
    pub fn list(&self) -> io::Result<Vec<Staged>> {
        let mut all = self.all()?;
        all.retain(|staged| staged.boot == self.boot);
        Ok(all)
    }

    /// Also those of before the machine was started.
    fn all(&self) -> io::Result<Vec<Staged>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(self.folder.join("volumes"))? {
            let file = entry?.path();
            if file.extension().is_none_or(|ending| ending != "json") {
                continue;
            }
            match read(&file) {
                Ok(Some(staged)) => all.push(staged),
                Ok(None) => {}
                Err(e) => tracing::error!("{} cannot be read: {e}", file.display()),
            }
        }
        Ok(all)
    }

    /// Notes a volume, durably.
    pub fn save(&self, staged: &Staged) -> io::Result<()> {
        let file = self.file(&staged.volume, "json");
        write(&file, &serde_json::to_vec(staged)?)
    }

    /// Forgets a volume, with its certificates and its log.
    pub fn remove(&self, volume: &str) -> io::Result<()> {
        there(fs::remove_file(self.file(volume, "json")))?;
        File::open(self.folder.join("volumes"))?.sync_all()?;
        there(fs::remove_dir_all(self.tls(volume)))?;
        there(fs::remove_file(self.log(volume)))
    }

    /// The folder for certificates of a volume.
    pub fn tls(&self, volume: &str) -> PathBuf {
        self.file(volume, "tls")
    }

    /// Writes one of those files, which only this user can read.
    pub fn save_secret(&self, volume: &str, name: &str, content: &str) -> io::Result<PathBuf> {
        let folder = self.tls(volume);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let file = folder.join(name);
        write(&file, content.as_bytes())?;
        Ok(file)
    }

    /// Takes one of them away.
    pub fn remove_secret(&self, volume: &str, name: &str) -> io::Result<()> {
        there(fs::remove_file(self.tls(volume).join(name)))
    }

    /// Where the process that serves the mount logs.
    pub fn log(&self, volume: &str) -> PathBuf {
        self.folder.join("log").join(format!("{}.log", hash(volume)))
    }

    /// Where processes note which of them serves which mount.
    pub fn run(&self) -> PathBuf {
        self.folder.join("run")
    }

    fn file(&self, volume: &str, ending: &str) -> PathBuf {
        self.folder.join("volumes").join(format!("{}.{ending}", hash(volume)))
    }
}

/// Whole or not at all.
fn write(file: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let open = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new);
    let mut open = open?;
    open.write_all(content)?;
    open.sync_all()?;
    fs::rename(&new, file)?;
    file.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

fn read(file: &Path) -> io::Result<Option<Staged>> {
    match fs::read(file) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// What is not there need not be removed.
fn there(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_found_until_the_machine_is_started_anew() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::open(folder.path()).unwrap();
        let id = "../../etc/passwd\0";
        let mut staged =
            state.staged(id, "/staging".into(), "/volumes/a".into(), Use::default(), true);
        let target = "/target".into();
        staged.published.push(Published { target, read_only: true, single: false });
        state.save(&staged).unwrap();
        let secret = state.save_secret(id, "key", "secret").unwrap();
        let mode = fs::metadata(&secret).unwrap().permissions().mode();
        assert!(mode & 0o077 == 0 && secret.starts_with(folder.path()), "{secret:?} {mode:o}");
        assert_eq!(state.find(id).unwrap(), Some(staged.clone()));
        assert_eq!(state.list().unwrap(), [staged]);
        assert_eq!(state.find("other").unwrap(), None);
        // Garbage of one does not hide the others.
        fs::write(folder.path().join("volumes/x.json"), b"{").unwrap();
        assert_eq!(state.list().unwrap().len(), 1);
        // One that cannot be forgotten keeps none of the others, nor the driver from its work.
        let stuck = state.staged("stuck", "/s".into(), "/p".into(), Use::default(), false);
        state.save(&stuck).unwrap();
        fs::create_dir(state.log("stuck")).unwrap();
        let later = State::open_since(folder.path(), "another".into()).unwrap();
        assert_eq!((later.find(id).unwrap(), later.list().unwrap()), (None, vec![]));
        assert!(!secret.exists());
        // Who looks at all takes none away: somebody may be noting a new one.
        state.save(&stuck).unwrap();
        assert_eq!(later.list().unwrap(), []);
        assert!(later.file("stuck", "json").exists());
    }

    #[test]
    fn certificates_go_after_what_is_known_of_their_volume() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::open(folder.path()).unwrap();
        let of = |id: &str| {
            let usage = Use::default();
            state.save(&state.staged(id, "/s".into(), "/p".into(), usage, true)).unwrap();
            state.save_secret(id, "key", "secret").unwrap()
        };
        let (kept, left) = (of("kept"), of("left"));
        // As one leaves it who dies while he forgets the volume.
        fs::remove_file(state.file("left", "json")).unwrap();
        let state = State::open(folder.path()).unwrap();
        assert!(kept.exists() && !left.parent().unwrap().exists());
        // And as versions before had it.
        let mut old = serde_json::to_value(state.find("kept").unwrap().unwrap()).unwrap();
        for new in ["leaving", "synced"] {
            old.as_object_mut().unwrap().remove(new).unwrap();
        }
        fs::write(state.file("kept", "json"), old.to_string()).unwrap();
        assert!(!state.find("kept").unwrap().unwrap().leaving);
    }
}
