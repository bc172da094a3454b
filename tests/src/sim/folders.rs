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
    wrong: Vec<(Place, String)>,
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

    /// Something is wrong in a folder, unless it was given up.
    pub fn accuse(&mut self, place: Place, what: String) {
        if !self.given_up.contains(&place) {
            self.wrong.push((place, what));
        }
    }

    /// How much was found wrong so far.
    pub fn accused(&self) -> usize {
        self.wrong.len()
    }

    /// Nobody knows what is in a folder, nor whether its lock was anybody's since so much had been
    /// found wrong.
    pub fn give_up(&mut self, place: Place, accused: usize) {
        let mut number = 0;
        self.wrong.retain(|(of, _)| {
            number += 1;
            number <= accused || *of != place
        });
        self.given_up.insert(place);
        self.leave(place);
    }

    /// The next is used instead.
    pub fn leave(&mut self, place: Place) {
        if self.place(place.0) == place {
            self.turns[place.0] += 1;
        }
    }

    /// What was wrong while the folder was somebody's for certain.
    pub fn broken(&self) -> impl Iterator<Item = String> {
        self.wrong.iter().map(|((turn, number), what)| format!("folder {turn}.{number}: {what}"))
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
