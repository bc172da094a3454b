//! What a confined session was shown of files that are elsewhere by their records.
//!
//! Only the names are kept here: whether one still leads to its file, and lies where the client may
//! be, is looked at each time.

use std::collections::{HashMap, VecDeque};
use weft_proto::InodeId;

/// Files that are remembered; the oldest is forgotten first.
const MOST: usize = 1 << 16;

/// Why a session may use a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sight {
    /// By this name in this directory, for as long as it leads there.
    By(InodeId, Box<[u8]>),
    /// It took the name away itself: what it has open of the file stays its to use.
    Before,
    /// The same, and the record says that the file is in this directory: for as long as it says so
    /// although that is no more.
    Within(InodeId),
}

#[derive(Default)]
pub(super) struct Seen {
    files: HashMap<InodeId, Sight>,
    order: VecDeque<InodeId>,
}

impl Seen {
    pub fn note(&mut self, ino: InodeId, by: Sight) {
        if self.files.insert(ino, by).is_none() {
            self.order.push_back(ino);
        }
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.files.remove(&oldest);
        }
    }

    pub fn of(&self, ino: InodeId) -> Option<Sight> {
        self.files.get(&ino).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first() {
        let mut seen = Seen::default();
        let by = |name: &[u8]| Sight::By(InodeId(1), name.into());
        for n in 0..=MOST as u64 {
            seen.note(InodeId(n), by(b"a"));
            seen.note(InodeId(n), by(b"b"));
        }
        assert_eq!(seen.of(InodeId(0)), None);
        assert_eq!(seen.of(InodeId(1)), Some(by(b"b")), "the newest name counts");
        assert_eq!((seen.files.len(), seen.order.len()), (MOST, MOST));
    }
}
