//! Which process serves which mount: one small record a mount in a folder that every command of
//! this user finds. The kernel's mount table is the truth about what is mounted; a record only
//! adds the process and the cluster to it.

use crate::process::Process;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct MountRecord {
    pub path: PathBuf,
    /// Addresses of the metadata servers it was given.
    pub cluster: Vec<String>,
    pub process: Process,
}

impl MountRecord {
    /// Remembers a mount; replaces what was known of the same path.
    pub fn save(&self) -> Result<()> {
        let file = file_of(&self.path)?;
        let temporary = file.with_extension(format!("tmp{}", self.process.pid));
        let what = || format!("cannot write {}", file.display());
        fs::write(&temporary, serde_json::to_vec(self)?).with_context(what)?;
        fs::rename(&temporary, &file).with_context(what)
    }

    /// Forgets this mount, unless another process has taken the path over.
    pub fn remove(&self) -> Result<()> {
        match find(&self.path)? {
            Some(now) if now.process == self.process => {
                match fs::remove_file(file_of(&self.path)?) {
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
                    other => Ok(other?),
                }
            }
            _ => Ok(()),
        }
    }
}

/// What is recorded of the mount at this (resolved) path, alive or not.
pub fn find(path: &Path) -> Result<Option<MountRecord>> {
    Ok(read(&file_of(path)?).filter(|record| record.path == path))
}

/// All records of mounts that are there, ordered by path. What was killed and unmounted by others
/// is forgotten here.
pub fn list() -> Result<Vec<MountRecord>> {
    let dir = fs::read_dir(folder()?.join("mounts"))?;
    let all = dir.filter_map(|entry| read(&entry.ok()?.path()));
    let mounted = weft_fuse::mounts()?;
    let gone = |r: &MountRecord| {
        !r.process.alive() && !mounted.iter().any(|m| m.mount_point == r.path && m.is_weft())
    };
    let (gone, mut all): (Vec<_>, Vec<MountRecord>) = all.partition(gone);
    for record in gone {
        record.remove()?;
    }
    all.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(all)
}

fn read(file: &Path) -> Option<MountRecord> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

fn file_of(path: &Path) -> Result<PathBuf> {
    Ok(folder()?.join("mounts").join(format!("{}.json", escape(path))))
}

/// Default log of a mount that was given none.
pub fn default_log(path: &Path) -> Result<PathBuf> {
    let dir = if nix::unistd::geteuid().is_root() {
        PathBuf::from("/var/log/weft")
    } else {
        folder()?.join("log")
    };
    Ok(dir.join(format!("mount-{}.log", escape(path))))
}

/// A path as one file name; different paths give different names.
fn escape(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let mut name = String::new();
    for &byte in path.as_os_str().as_bytes().strip_prefix(b"/").unwrap_or_default() {
        match byte {
            b'/' => name.push('-'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' => name.push(byte as char),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    // The kernel's limit for a name is 255 bytes; the end tells paths apart best.
    name.split_off(name.len().saturating_sub(200))
}

/// `$WEFT_RUN_DIR`, or `/run/weft` for root, or a folder of the user's own.
fn folder() -> Result<PathBuf> {
    let uid = nix::unistd::geteuid();
    let dir = if let Some(dir) = std::env::var_os("WEFT_RUN_DIR") {
        PathBuf::from(dir)
    } else if uid.is_root() {
        PathBuf::from("/run/weft")
    } else if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR") {
        PathBuf::from(dir).join("weft")
    } else {
        PathBuf::from(format!("/tmp/weft-{uid}"))
    };
    let what = || format!("cannot use {} for run-time records; set WEFT_RUN_DIR", dir.display());
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir.join("mounts"))
        .with_context(what)?;
    let owner = fs::metadata(&dir).with_context(what)?.uid();
    anyhow::ensure!(
        owner == uid.as_raw(),
        "{} belongs to user {owner}; set WEFT_RUN_DIR",
        dir.display()
    );
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_make_distinct_names() {
        let names =
            ["/mnt/a", "/mnt-a", "/mnt/%2da", "/mnt//a b", "/mnt/ä"].map(|p| escape(Path::new(p)));
        assert_eq!(names[0], "mnt-a");
        assert_eq!(names[1], "mnt%2da");
        for (i, a) in names.iter().enumerate() {
            assert!(!a.contains('/') && names[i + 1..].iter().all(|b| a != b), "{names:?}");
        }
        assert!(escape(&Path::new("/").join("x".repeat(300))).len() <= 200);
    }
}
