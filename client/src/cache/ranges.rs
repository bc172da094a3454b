//! Byte ranges of files that other mounts write, too: what may be buffered of them, while nothing
//! else of the file may be used without asking.
//!
//! Invariant (I6): ranges of a file are given back together, by one answer to a recall, when what
//! was buffered under them is committed; from the recall on nothing more is buffered.

use super::leases::Leases;
use super::quotas::UNKNOWN;
use super::table::{Mode, RangeLease, Right, Start, Table};
use std::ops::Range;
use weft_proto::mode::SET_IDS;
use weft_proto::v1::meta_request::Op;
use weft_proto::{ByteRanges, InodeId, v1};

/// Ranges of one file, and of all. Beyond it those of the file go back, which costs a commit.
const MAX_RANGES: [usize; 2] = [1 << 14, 1 << 16];

impl Leases {
    /// The right under which what is written to these bytes may be buffered now.
    pub fn right_to(&self, ino: InodeId, range: &Range<u64>) -> Option<Right> {
        let whole = self.right_to_write(ino);
        let in_ranges = || {
            let table = self.table.lock();
            let lease = table.ranges.get(&ino).filter(|lease| !lease.flushing)?;
            lease.right_to(range).filter(|_| self.live())
        };
        whole.or_else(in_ranges)
    }

    /// Whether this is the right to ranges of a file, and not to all of it.
    pub fn is_of_ranges(&self, ino: InodeId, right: Right) -> bool {
        self.table.lock().ranges.get(&ino).is_some_and(|lease| lease.since == right.0)
    }

    /// The newest grant on an inode: up to that, all is given back together.
    pub fn newest_grant(&self, ino: InodeId) -> u64 {
        self.table.lock().newest_grant(ino).unwrap_or(0)
    }

    /// Nobody writes a file any more here: others need not ask for what may be written of it.
    pub fn give_ranges_back(&self, ino: InodeId) {
        let newest = self.table.lock().ranges.get(&ino).map(|lease| lease.seq);
        if let Some(seq) = newest {
            self.release_later(ino, seq);
        }
    }

    /// Who was giving ranges back does not any more: its session has ended. Those that are held by
    /// now are of the next one.
    pub fn keep_ranges(&self, ino: InodeId) {
        if let Some(lease) = self.table.lock().ranges.get_mut(&ino) {
            lease.flushing = false;
        }
    }

    /// Whether a file has no set-id bits for certain, as ranges of it are held: who changes the
    /// mode has them recalled.
    pub fn has_no_set_ids(&self, ino: InodeId) -> bool {
        let no_bits = self.table.lock().ranges.get(&ino).is_some_and(|lease| lease.no_set_ids);
        no_bits && self.live()
    }

    /// Whether ranges of a file are held, or being given back.
    pub fn holds_ranges(&self, ino: InodeId) -> bool {
        self.table.lock().ranges.contains_key(&ino)
    }

    /// Takes in ranges that were granted.
    pub(super) fn hold_ranges(
        &self,
        table: &mut Table,
        start: Start,
        grant: &v1::Grant,
        (asked, mode): (&v1::Records, Option<u32>),
    ) {
        let ino = InodeId(grant.ino);
        let whole = table.inodes.get(&ino).is_some_and(|h| h.mode == Mode::Write || h.flushing);
        let Ok(ranges) = asked.ranges() else { return };
        if whole || !table.keeps_since(start, ino) {
            return;
        }
        // This mount may have changed that since.
        let no_bits = mode.is_some_and(|mode| mode & SET_IDS == 0);
        let for_certain = table.holds_since(start, ino);
        let since = table.epoch;
        let lease = table.ranges.entry(ino).or_insert_with(|| RangeLease {
            ranges: ByteRanges::default(),
            since,
            flushing: false,
            seq: 0,
            quota: UNKNOWN,
            is_surplus: false,
            no_set_ids: false,
        });
        // What is being given back is not written under again before it is.
        if lease.flushing {
            return;
        }
        ranges.into_iter().take(grant.records as usize).for_each(|r| lease.ranges.insert(r));
        lease.seq = lease.seq.max(grant.seq);
        lease.quota = grant.quota;
        lease.no_set_ids = no_bits && (lease.no_set_ids || for_certain);
        let (seq, of_file) = (lease.seq, lease.ranges.len());
        let told = std::mem::replace(&mut lease.is_surplus, true);
        let of_all: usize = table.ranges.values().map(|lease| lease.ranges.len()).sum();
        let is_surplus = of_file > MAX_RANGES[0] || of_all > MAX_RANGES[1];
        if is_surplus && !told {
            self.release_later(ino, seq);
        }
        if let Some(lease) = table.ranges.get_mut(&ino) {
            lease.is_surplus = is_surplus;
        }
    }
}

impl Table {
    /// The newest grant on an inode.
    pub(super) fn newest_grant(&self, ino: InodeId) -> Option<u64> {
        let held = self.inodes.get(&ino).map(|held| held.seq);
        held.max(self.ranges.get(&ino).map(|lease| lease.seq))
    }

    /// A change of this mount may have set bits.
    pub(super) fn may_change_mode(&mut self, op: &Op, ino: InodeId) {
        if !matches!(op, Op::CommitExtents(_))
            && let Some(ranges) = self.ranges.get_mut(&ino)
        {
            ranges.no_set_ids = false;
        }
    }

    /// Inodes of which ranges are held, with the newest grant of each.
    pub(super) fn all_ranges(&self) -> impl Iterator<Item = (InodeId, u64)> {
        self.ranges.iter().map(|(ino, lease)| (*ino, lease.seq))
    }

    /// Rights under which something may be buffered of an inode still.
    pub(super) fn rights(&self, ino: InodeId) -> impl Iterator<Item = Right> {
        let held = self.inodes.get(&ino).filter(|held| held.mode == Mode::Write || held.flushing);
        let whole = held.map(|held| Right(held.since));
        whole.into_iter().chain(self.ranges.get(&ino).map(|lease| Right(lease.since)))
    }

    /// The one of these that these bytes may be buffered under.
    pub(super) fn right_held_to(&self, ino: InodeId, range: &Range<u64>) -> Option<Right> {
        let held = self.inodes.get(&ino).filter(|held| held.mode == Mode::Write || held.flushing);
        let in_ranges = || self.ranges.get(&ino)?.right_to(range);
        held.map(|held| Right(held.since)).or_else(in_ranges)
    }

    /// All ranges, for a declaration to a new leader.
    pub(super) fn held_ranges(&self) -> Vec<v1::HeldRange> {
        let of = |(ino, lease): (&InodeId, &RangeLease)| {
            let ino = ino.0;
            let held = |Range { start, end }| v1::HeldRange { ino, start, end };
            lease.ranges.iter().map(held).collect::<Vec<_>>()
        };
        self.ranges.iter().flat_map(of).collect()
    }
}
