//! What lies in the data folder of a server.

use std::fs;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};

/// Folders of the Raft log and of the state, beside the identity.
pub const LOG: &str = "log";
pub const STATE: &str = "state";
/// Folder of copies that are made for others; what an earlier run left in it is removed.
pub const SNAPSHOTS: &str = "snapshots";

/// What to do with a folder of which a part is lost.
pub const MOVE_AWAY: &str =
    "move the whole data folder away and start this server; the others bring it up to date";

/// In the end everything in a folder is its owner's.
pub(crate) struct Owner(pub PathBuf);

impl Drop for Owner {
    fn drop(&mut self) {
        if let Err(e) = give(&self.0) {
            tracing::warn!("not all of {} is its owner's: {e}", self.0.display());
        }
    }
}

fn give(dir: &Path) -> std::io::Result<()> {
    let owner = fs::symlink_metadata(dir)?;
    let (uid, gid) = (owner.uid(), owner.gid());
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let (path, found) = entry.and_then(|e| Ok((e.path(), e.metadata()?)))?;
            if (found.uid(), found.gid()) != (uid, gid) {
                lchown(&path, Some(uid), Some(gid))?;
            }
            if found.is_dir() {
                folders.push(path);
            }
        }
    }
    Ok(())
}
