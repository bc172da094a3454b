//! The table of what is open on this mount, and of what the metadata leader may know of that.

use std::collections::BTreeMap;
use std::ops::Bound;
use weft_proto::{InodeId, v1};

/// Open inodes.
#[derive(Default)]
pub(super) struct Table(pub(super) BTreeMap<InodeId, Open>);

pub(super) struct Open {
    /// Handles, and opens under way.
    count: u32,
    /// The number of the newest open.
    newest: u64,
    /// The leader may know of it.
    told: bool,
    /// Handles through which the caller may map it to write.
    pub(super) both: u32,
    /// Those for which the right to that is being asked for.
    pub(super) asking: u32,
    /// This mount has that right.
    pub(super) entitled: bool,
}

impl Open {
    pub(super) fn needs_right(&self) -> bool {
        self.asking > 0 || (self.entitled && self.both > 0)
    }
}

impl Table {
    pub(super) fn begin(&mut self, ino: InodeId, number: u64) {
        let new = Open { count: 0, newest: 0, told: false, both: 0, asking: 0, entitled: false };
        let open = self.0.entry(ino).or_insert(new);
        open.count += 1;
        open.newest = open.newest.max(number);
    }

    /// The leader is about to be told of it: the number of the newest open, or 0 if it is not open.
    pub(super) fn tell(&mut self, ino: InodeId) -> u64 {
        self.0.get_mut(&ino).map_or(0, |open| {
            open.told = true;
            open.newest
        })
    }

    /// The leader is about to be told of up to `limit` inodes behind `after`, in order.
    pub(super) fn tell_some(&mut self, after: Option<InodeId>, limit: usize) -> Vec<v1::OpenOp> {
        let tell = |(ino, open): (&InodeId, &mut Open)| {
            open.told = true;
            v1::OpenOp { ino: ino.0, open_seq: open.newest, write: false }
        };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.0.range_mut((from, Bound::Unbounded)).take(limit).map(tell).collect()
    }

    /// How often inodes are open, all together.
    pub(super) fn count(&self) -> usize {
        self.0.values().map(|open| open.count as usize).sum()
    }

    pub(super) fn maps(&self) -> Vec<InodeId> {
        self.0.iter().filter(|(_, open)| open.needs_right()).map(|(ino, _)| *ino).collect()
    }

    /// Answers what the leader is to be told.
    pub(super) fn end(&mut self, ino: InodeId) -> Option<v1::close_op::Item> {
        let open = self.0.get_mut(&ino)?;
        open.count -= 1;
        if open.count > 0 {
            return None;
        }
        let close = v1::close_op::Item { ino: ino.0, open_seq: open.newest };
        self.0.remove(&ino)?.told.then_some(close)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: InodeId = InodeId(5);

    fn open(open_seq: u64) -> v1::OpenOp {
        v1::OpenOp { ino: INO.0, open_seq, write: false }
    }

    fn close(open_seq: u64) -> v1::close_op::Item {
        v1::close_op::Item { ino: INO.0, open_seq }
    }

    #[test]
    fn the_last_close_is_of_the_newest_open() {
        let mut table = Table::default();
        table.begin(INO, 2);
        table.begin(INO, 1);
        assert_eq!(table.tell(INO), 2);
        assert_eq!(table.end(INO), None, "it is open still");
        assert_eq!(table.end(INO), Some(close(2)));
        assert_eq!((table.end(INO), table.tell(INO)), (None, 0));
    }

    #[test]
    fn what_the_leader_never_heard_of_is_not_closed_there() {
        let mut table = Table::default();
        table.begin(INO, 1);
        assert_eq!(table.end(INO), None);
        assert!(table.tell_some(None, 9).is_empty());
    }

    /// It was under a lease, and nobody asked.
    #[test]
    fn what_was_declared_to_a_new_leader_is_closed_there() {
        let mut table = Table::default();
        table.begin(INO, 1);
        assert_eq!(table.tell_some(None, 9), [open(1)]);
        assert_eq!(table.end(INO), Some(close(1)));
    }

    #[test]
    fn very_many_are_declared_in_pieces() {
        let mut table = Table::default();
        (1..=5).for_each(|ino| table.begin(InodeId(ino), 10 + ino));
        let mut told = Vec::new();
        for expected in [2, 2, 1, 0] {
            let piece = table.tell_some(told.last().copied().map(InodeId), 2);
            assert_eq!(piece.len(), expected);
            told.extend(piece.iter().map(|open| open.ino));
        }
        assert_eq!(told, [1, 2, 3, 4, 5]);
    }

    /// A recall comes after the lease was looked at, and is answered before the open is.
    #[test]
    fn an_open_under_way_is_in_the_answer_to_a_recall() {
        let mut table = Table::default();
        table.begin(INO, 1);
        assert_eq!(table.tell(INO), 1);
        // It failed.
        assert_eq!(table.end(INO), Some(close(1)));
    }

    /// The leader may have heard of the one that failed: the close has to name it.
    #[test]
    fn an_open_that_fails_closes_nothing_that_is_open() {
        let mut table = Table::default();
        table.begin(INO, 1);
        table.begin(INO, 2);
        assert_eq!(table.tell(INO), 2);
        assert_eq!(table.end(INO), None);
        assert_eq!(table.tell_some(None, 9), [open(2)]);
        assert_eq!(table.end(INO), Some(close(2)));
    }
}
