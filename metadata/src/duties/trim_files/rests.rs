//! What is left of the list of files to trim, and whose turn it is.
//!
//! The list is read on from where it was read last: what was taken off it is passed over once, and
//! not by every look. Of a batch that one entry does not finish, the file that is cut off in the
//! middle takes turns with all others from then on, however large it is, and those behind it go
//! with the next batch. Invariant: bounded, by [`BATCH`] and [`MAX_LARGE`].

use std::collections::VecDeque;
use weft_proto::InodeId;

/// Files trimmed by one log entry.
pub(super) const BATCH: usize = 64;
/// Most files that are cut off in the middle.
const MAX_LARGE: usize = 1024;

/// What one entry is to trim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Batch {
    pub files: Vec<InodeId>,
    /// It is one that was cut off before.
    is_large: bool,
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Rests {
    /// The list was read up to this one.
    after: InodeId,
    /// Its end was met.
    ended: bool,
    /// Files that an entry did not come to.
    behind: VecDeque<InodeId>,
    /// Those that it cut off, in their turns.
    large: VecDeque<InodeId>,
    /// It was the turn of one of those.
    was_large: bool,
}

impl Rests {
    /// From where on the list is to be read, and how much of it, before the next batch is made.
    pub fn wanted(&self) -> (InodeId, usize) {
        let full = self.ended || self.large.len() >= MAX_LARGE;
        (self.after, if full { 0 } else { BATCH.saturating_sub(self.behind.len()) })
    }

    /// The next batch, with what the list has where it was to be read; `None`: nothing is left of
    /// this round.
    pub fn next(&mut self, listed: Vec<InodeId>) -> Option<Batch> {
        let (_, wanted) = self.wanted();
        self.ended |= listed.len() < wanted;
        self.after = listed.last().copied().unwrap_or(self.after);
        self.behind.extend(listed);
        let turn = !self.was_large || self.behind.is_empty() || self.large.len() >= MAX_LARGE;
        if let Some(ino) = self.large.pop_front_if(|_| turn) {
            self.was_large = true;
            return Some(Batch { files: vec![ino], is_large: true });
        }
        self.was_large = false;
        let some = self.behind.len().min(BATCH);
        let files: Vec<InodeId> = self.behind.drain(..some).collect();
        (!files.is_empty()).then_some(Batch { files, is_large: false })
    }

    /// An entry has trimmed a batch, in the order of their numbers; these are still on the list.
    pub fn trimmed(&mut self, batch: &Batch, mut left: Vec<InodeId>) {
        left.sort_unstable();
        let mut left = left.into_iter();
        self.large.extend(left.next());
        if !batch.is_large {
            self.behind.extend(left);
        }
    }

    /// An entry was not made, since another leads or there is no majority: later.
    pub fn put_off(&mut self, batch: Batch) {
        let to = if batch.is_large { &mut self.large } else { &mut self.behind };
        batch.files.into_iter().rev().for_each(|ino| to.push_front(ino));
    }

    /// A round begins.
    pub fn begin(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Extents that one entry deletes.
    const STEP: u64 = 100;

    /// Files on the list, with how much is to be deleted of each.
    struct Rig {
        rests: Rests,
        list: BTreeMap<InodeId, u64>,
    }

    impl Rig {
        fn new(list: impl IntoIterator<Item = (u64, u64)>) -> Self {
            let list = list.into_iter().map(|(ino, extents)| (InodeId(ino), extents)).collect();
            Self { rests: Rests::default(), list }
        }

        fn batch(&mut self) -> Option<Batch> {
            let (after, limit) = self.rests.wanted();
            let listed = self.list.keys().filter(|ino| **ino > after).take(limit).copied();
            let batch = self.rests.next(listed.collect());
            assert!(self.rests.behind.len() <= BATCH);
            assert!(self.rests.large.len() <= MAX_LARGE + BATCH);
            batch
        }

        /// As the state does it.
        fn trim(&mut self, batch: &Batch) {
            let (mut room, mut files) = (STEP, batch.files.clone());
            files.sort_unstable();
            for ino in &files {
                let Some(extents) = self.list.get_mut(ino).filter(|_| room > 0) else { continue };
                let some = room.min(*extents);
                (room, *extents) = (room - some, *extents - some);
                if *extents == 0 {
                    self.list.remove(ino);
                }
            }
            let left = files.into_iter().filter(|ino| self.list.contains_key(ino)).collect();
            self.rests.trimmed(batch, left);
        }
    }

    #[test]
    fn a_very_large_file_keeps_no_other_and_comes_to_its_end() {
        let mut rig = Rig::new((1..=1000).map(|ino| (ino, if ino == 3 { 100_000 } else { 1 })));
        let mut entries = 0;
        while rig.list.len() > 1 {
            let batch = rig.batch().unwrap();
            rig.trim(&batch);
            entries += 1;
        }
        assert!(entries < 50, "{entries} entries until only the large one is left");
        while let Some(batch) = rig.batch() {
            assert_eq!(batch.files, [InodeId(3)]);
            rig.trim(&batch);
            entries += 1;
        }
        assert!(rig.list.is_empty());
        assert!(entries < 1100, "{entries} entries, each of which deletes what it can");
    }

    #[test]
    fn a_batch_that_was_not_made_is_made_again() {
        let mut rig = Rig::new((1..=100).map(|ino| (ino, 30)));
        let first = rig.batch().unwrap();
        rig.rests.put_off(first.clone());
        let again = rig.batch().unwrap();
        assert_eq!(again, first);
        rig.trim(&again);
        // Four were trimmed, or cut off: then the one that was, and the others.
        let large = rig.batch().unwrap();
        assert_eq!(large.files, [InodeId(4)]);
        rig.rests.put_off(large.clone());
        while let Some(batch) = rig.batch() {
            rig.trim(&batch);
        }
        assert!(rig.list.is_empty());
    }

    #[test]
    fn what_was_passed_over_is_met_again_in_the_next_round() {
        let mut rig = Rig::new((1..=300).map(|ino| (ino, 1)));
        let bad = [7, 8, 200].map(InodeId);
        while let Some(batch) = rig.batch() {
            batch.files.iter().filter(|ino| !bad.contains(ino)).for_each(|ino| {
                rig.list.remove(ino);
            });
            rig.rests.trimmed(&batch, Vec::new());
        }
        rig.rests.begin();
        assert_eq!(rig.batch().unwrap().files, bad);
    }

    #[test]
    fn very_many_large_files_are_not_all_remembered() {
        let mut rig = Rig::new((1..=3 * MAX_LARGE as u64).map(|ino| (ino, 2 * STEP + 1)));
        while let Some(batch) = rig.batch() {
            rig.trim(&batch);
        }
        assert!(rig.list.is_empty());
    }
}
