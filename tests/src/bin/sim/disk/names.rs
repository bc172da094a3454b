//! Which names in the folders of simulated servers are not durable: those that were made, removed
//! or changed since their folder was synced last.
//!
//! The model: a sync of a folder makes durable which names are in it, and that of a file none, as
//! POSIX has it. Of the changes of a folder that was not synced since, a power cut leaves the first
//! so many, as all filesystems with a journal do, and a rename is done or not. What RocksDB's own
//! threads make or remove is durable at once: when they come to it, no seed decides.

use super::Share;
use super::writes::{left_of, unsynced};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use weft_tests::sim::Left;

/// The first of a folder's changes that is lost is one of so many.
const LOST: f64 = 0.25;

/// The folders that are watched.
static FOLDERS: Mutex<Vec<Folder>> = Mutex::new(Vec::new());

thread_local! {
    /// This thread runs the simulation, and not what is here.
    static SIMULATES: Cell<bool> = const { Cell::new(false) };
}

/// A folder that a power cut is of, with all below it.
pub struct Folder {
    pub path: PathBuf,
    /// Where what was removed is kept.
    removed: PathBuf,
    kept: u64,
    /// In their order.
    changes: Vec<Change>,
    pub power: Power,
}

/// Whether a disk has power.
pub enum Power {
    On,
    /// It goes before so many more syncs.
    Going(u64, Left),
    Off,
}

struct Change {
    /// By their inodes; two of a rename from one to another.
    folders: BTreeSet<u64>,
    /// Below the folder that is watched.
    name: PathBuf,
    what: What,
}

pub enum What {
    Made,
    Removed(Option<Kept>),
    /// From that name, over a file perhaps.
    Renamed(PathBuf, Option<Kept>),
}

/// A file that has no name any more in what is watched.
pub struct Kept(PathBuf);

impl Drop for Kept {
    fn drop(&mut self) {
        quietly(|| {
            // Its room is all that matters.
            let _ = fs::remove_file(&self.0);
        });
    }
}

pub fn folders() -> MutexGuard<'static, Vec<Folder>> {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does what is not to be seen.
pub fn quietly<T>(work: impl FnOnce() -> T) -> T {
    let simulates = SIMULATES.replace(false);
    let done = work();
    SIMULATES.set(simulates);
    done
}

pub fn is_seen() -> bool {
    SIMULATES.get()
}

/// From now on changes of names are noted that this thread makes below a folder.
pub fn watch(path: &Path) {
    SIMULATES.set(true);
    let (path, removed) = (path.to_owned(), path.with_extension("removed"));
    folders().push(Folder { path, removed, kept: 0, changes: Vec::new(), power: Power::On });
}

impl Folder {
    /// All that is there is durable.
    pub fn renew(&mut self) {
        self.changes.clear();
        self.power = Power::On;
    }

    /// Undoes in a copy of the folder what a power cut takes.
    pub fn undo(&self, copy: &Path, share: Share<'_>) -> io::Result<()> {
        let mut lost = BTreeSet::new();
        let is_lost = |change: &&Change| {
            if !change.folders.is_disjoint(&lost) || share(&change.tag()) < LOST {
                lost.extend(&change.folders);
            }
            !change.folders.is_disjoint(&lost)
        };
        let undone: Vec<_> = self.changes.iter().filter(is_lost).collect();
        for change in undone.into_iter().rev() {
            let name = copy.join(&change.name);
            // What another folder's sync has made durable may have another name by now.
            let done = match &change.what {
                What::Made if name.is_dir() => fs::remove_dir_all(name),
                What::Made => fs::remove_file(name),
                What::Removed(Some(kept)) => kept.put_back(&name, share(&change.name)),
                What::Removed(None) => fs::create_dir(name),
                What::Renamed(from, over) => fs::rename(&name, copy.join(from)).and_then(|()| {
                    over.as_ref().map_or(Ok(()), |kept| kept.put_back(&name, share(&change.name)))
                }),
            };
            match done {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    pub fn note(&mut self, path: &Path, from: Option<&Path>, what: What) {
        let parents = [Some(path), from].into_iter().flatten().filter_map(Path::parent);
        let folders = parents.filter_map(|parent| fs::metadata(parent).ok());
        let folders = folders.map(|parent| parent.ino()).collect();
        let name = path.strip_prefix(&self.path).expect("it is below").to_owned();
        self.changes.push(Change { folders, name, what });
    }

    /// Keeps a file that is about to lose its name, if there is one.
    pub fn keep(&mut self, path: &Path) -> Option<Kept> {
        quietly(|| {
            fs::create_dir_all(&self.removed).expect("a folder for what is removed");
            self.kept += 1;
            let kept = self.removed.join(self.kept.to_string());
            fs::hard_link(path, &kept).ok().map(|()| Kept(kept))
        })
    }
}

impl Kept {
    fn put_back(&self, name: &Path, share: f64) -> io::Result<()> {
        let (ino, data) = (fs::metadata(&self.0)?.ino(), fs::read(&self.0)?);
        let data = match unsynced().get(&ino) {
            Some(writes) => left_of(data, writes, share),
            None => data,
        };
        fs::write(name, data)
    }
}

impl Change {
    /// What the seed decides by.
    fn tag(&self) -> PathBuf {
        let how = match self.what {
            What::Made => "made",
            What::Removed(_) => "removed",
            What::Renamed(..) => "renamed",
        };
        self.name.join(how)
    }
}

/// A folder was synced.
pub fn synced(ino: u64) {
    for folder in &mut *folders() {
        folder.changes.retain(|change| !change.folders.contains(&ino));
    }
}

/// The one that a path is below, for which a name is not the thing itself.
pub fn of<'a>(folders: &'a mut [Folder], path: &Path) -> Option<&'a mut Folder> {
    folders.iter_mut().find(|folder| path != folder.path && path.starts_with(&folder.path))
}
