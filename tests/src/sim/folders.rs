//! What must be in the folders that clients change in turns.

use std::collections::{BTreeMap, BTreeSet};
use weft_proto::InodeId;

/// Locks, each with a folder at a time.
pub const TURNS: usize = 2;

/// The folders, as all clients know them.
#[derive(Default)]
pub struct Table {
    turns: [u64; TURNS],
    folders: BTreeMap<Place, Folder>,
    /// What was found wrong in each.
    pub wrong: Vec<(Place, String)>,
    given_up: BTreeSet<Place>,
}

/// A folder: its lock, and how many were given up before.
pub type Place = (usize, u64);

/// What must be in it.
#[derive(Clone, Default)]
pub struct Folder {
    pub dir: Option<InodeId>,
    pub files: BTreeMap<&'static str, File>,
    /// Files that have lost their names.
    pub nameless: BTreeMap<InodeId, Vec<u8>>,
    /// Who holds the lock.
    pub inside: usize,
}

#[derive(Clone)]
pub struct File {
    pub ino: InodeId,
    pub bytes: Vec<u8>,
}

impl Table {
    pub fn place(&self, turn: usize) -> Place {
        (turn, self.turns[turn])
    }

    pub fn folder(&mut self, place: Place) -> &mut Folder {
        self.folders.entry(place).or_default()
    }

    pub fn give_up(&mut self, place: Place) {
        self.given_up.insert(place);
        self.leave(place);
    }

    /// The next is used instead.
    pub fn leave(&mut self, place: Place) {
        if self.place(place.0) == place {
            self.turns[place.0] += 1;
        }
    }

    /// What was wrong in folders that nobody gave up.
    pub fn broken(&self) -> impl Iterator<Item = String> {
        let kept = self.wrong.iter().filter(|(place, _)| !self.given_up.contains(place));
        kept.map(|((turn, number), what)| format!("folder {turn}.{number}: {what}"))
    }
}

impl Folder {
    pub fn edit(&mut self, name: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        if let Some(file) = self.files.get_mut(name) {
            edit(&mut file.bytes);
        }
    }

    /// A name goes; the file may be open.
    pub fn forget(&mut self, name: &str) {
        if let Some(gone) = self.files.remove(name) {
            self.nameless.insert(gone.ino, gone.bytes);
        }
    }
}

pub fn put(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    let end = bytes.len().max(at + new.len());
    if !new.is_empty() {
        bytes.resize(end, 0);
        bytes[at..at + new.len()].copy_from_slice(new);
    }
}

/// In what bytes are others than they must be.
pub fn differ(found: &[u8], wanted: &[u8]) -> Option<String> {
    let at = found.iter().zip(wanted).position(|(a, b)| a != b);
    let (has, of) = (found.len(), wanted.len());
    if at.is_none() && has == of {
        return None;
    }
    let there = at.map(|at| &found[at..found.len().min(at + 8)]);
    Some(format!("has {has} bytes, not {of}; at {at:?} there is {there:x?}"))
}
