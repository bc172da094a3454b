//! What a cluster takes of the disk.

use super::state::State;
use crate::size::Size;
use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// One line about what the cluster in DIR takes now, and what it may take.
pub fn told(dir: &Path, state: &State) -> String {
    let targets = Size(state.target_size);
    let later = match state.sparse {
        true => format!("grows as targets are filled, each up to {targets}"),
        false => format!("all {targets} of each target at once"),
    };
    match taken(dir) {
        Ok(bytes) => format!("disk: {} taken ({later})", Size(bytes)),
        Err(e) => format!("disk: what is taken cannot be told: {e} ({later})"),
    }
}

/// Bytes of the blocks that everything in DIR has, other filesystems below it aside. What goes
/// meanwhile takes nothing.
fn taken(dir: &Path) -> io::Result<u64> {
    let device = fs::symlink_metadata(dir)?.dev();
    let (mut bytes, mut seen) = (0, HashSet::new());
    let mut rest = vec![dir.to_owned()];
    while let Some(path) = rest.pop() {
        let Some(meta) = there(fs::symlink_metadata(&path))? else { continue };
        if meta.dev() != device || !first_of(&meta, &mut seen) {
            continue;
        }
        bytes += meta.blocks() * 512;
        if meta.is_dir() {
            for entry in there(fs::read_dir(&path))?.into_iter().flatten() {
                rest.push(entry?.path());
            }
        }
    }
    Ok(bytes)
}

fn there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Whether this is the first name of a file that is met.
fn first_of(meta: &Metadata, seen: &mut HashSet<u64>) -> bool {
    meta.is_dir() || meta.nlink() == 1 || seen.insert(meta.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn blocks_count_once_and_holes_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let empty = taken(dir.path()).unwrap();
        File::create(dir.path().join("sparse")).unwrap().set_len(1 << 40).unwrap();
        let inner = dir.path().join("inner");
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("data"), vec![1; 1 << 20]).unwrap();
        File::open(inner.join("data")).unwrap().sync_all().unwrap();
        let once = taken(dir.path()).unwrap();
        assert!((empty + (1 << 20)..empty + (2 << 20)).contains(&once), "{empty} and {once}");
        fs::hard_link(inner.join("data"), dir.path().join("again")).unwrap();
        assert_eq!(taken(dir.path()).unwrap(), once);
        assert!(taken(&dir.path().join("missing")).is_err());
    }
}
