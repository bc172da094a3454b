//! How long the log is in bytes.

use raft::eraftpb::Entry;
use std::collections::VecDeque;

/// The length of the log in bytes is noted about this often.
const MARK_EVERY: u64 = 64 << 10;

/// How many bytes of entries came since this server started, noted now and then on the way. Entries
/// that were there before count nothing: an earlier run kept them in bounds.
pub struct Lengths {
    /// Index of an entry, and the bytes up to its end. Both grow.
    pub(super) marks: VecDeque<(u64, u64)>,
    total: u64,
}

impl Lengths {
    pub fn new(last: u64) -> Self {
        Self { marks: VecDeque::from([(last, 0)]), total: 0 }
    }

    pub fn grow(&mut self, entry: &Entry) {
        self.total += entry.data.len() as u64 + 64;
        if self.marks.back().is_none_or(|&(_, bytes)| self.total - bytes >= MARK_EVERY) {
            self.marks.push_back((entry.index, self.total));
        }
    }

    /// Entries from `first` on are replaced. Their bytes go on counting, until their place is
    /// forgotten.
    pub fn cut(&mut self, first: u64) {
        while self.marks.back().is_some_and(|&(index, _)| index >= first) {
            self.marks.pop_back();
        }
    }

    /// Entries up to `index` are forgotten.
    pub fn forget(&mut self, index: u64) {
        while self.marks.get(1).is_some_and(|&(next, _)| next <= index) {
            self.marks.pop_front();
        }
    }

    /// Bytes of the entries up to `index`, to the last mark before.
    pub fn up_to(&self, index: u64) -> u64 {
        let at = self.marks.partition_point(|&(mark, _)| mark <= index);
        let begins = self.marks.front().map_or(self.total, |&(_, bytes)| bytes);
        at.checked_sub(1).map_or(0, |at| self.marks[at].1 - begins)
    }

    /// The last index noted behind which at least `bytes` of entries lie; 0: none.
    pub fn before_last(&self, bytes: u64) -> u64 {
        let at = self.marks.partition_point(|&(_, mark)| self.total - mark >= bytes);
        at.checked_sub(1).map_or(0, |at| self.marks[at].0)
    }
}
