//! The durable states of an index that is in use, as a crash would leave them.
//!
//! RocksDB writes its tables first, then names them in its manifest, durably; a state is new when
//! the manifest has changed.

use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Copies of one index, taken while it is in use.
pub struct Snapshots {
    index: PathBuf,
    into: PathBuf,
    /// Name and length of the manifest in the last copy.
    manifest: Option<(PathBuf, u64)>,
    count: usize,
}

impl Snapshots {
    /// Of `index`, to be kept in the folder `into`.
    pub fn new(index: PathBuf, into: PathBuf) -> Self {
        Self { index, into, manifest: None, count: 0 }
    }

    /// A copy of the state that the index has now, if it is another than at the last look.
    pub fn look(&mut self) -> Option<PathBuf> {
        let known = self.manifest.as_ref();
        if known.is_some_and(|(path, len)| fs::metadata(path).is_ok_and(|m| m.len() == *len)) {
            return None;
        }
        let to = self.into.join(self.count.to_string());
        let manifest = copy(&self.index, &to)?;
        self.count += 1;
        let len = fs::metadata(to.join(manifest.file_name()?)).ok()?.len();
        self.manifest = Some((manifest, len));
        Some(to)
    }
}

/// A folder in memory where that is possible: syncs cost nothing there.
pub fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Copies an index that may be in use and answers the path of its manifest; tables, which never
/// change, become links. `None` if there is none.
pub fn copy(from: &Path, to: &Path) -> Option<PathBuf> {
    // What was deleted meanwhile belongs to an older state: look again.
    while from.exists() {
        let _ = fs::remove_dir_all(to);
        fs::create_dir_all(to).unwrap();
        if let Some(manifest) = try_copy(from, to) {
            return Some(manifest);
        }
    }
    None
}

fn try_copy(from: &Path, to: &Path) -> Option<PathBuf> {
    let current = fs::read_to_string(from.join("CURRENT")).ok()?;
    let manifest = from.join(current.trim());
    let len = fs::copy(&manifest, to.join(current.trim())).ok()?;
    fs::write(to.join("CURRENT"), &current).ok()?;
    for entry in fs::read_dir(from).ok()? {
        let name = entry.ok()?.file_name();
        let text = name.to_string_lossy();
        if text.ends_with(".sst") {
            let (from, to) = (from.join(&name), to.join(&name));
            fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop)).ok()?;
        } else if text == "IDENTITY" {
            fs::copy(from.join(&name), to.join(&name)).ok()?;
        }
    }
    let still = fs::read_to_string(from.join("CURRENT")).ok()? == current
        && fs::metadata(&manifest).ok()?.len() == len;
    still.then_some(manifest)
}
