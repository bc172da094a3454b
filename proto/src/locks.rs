//! Ranges of bytes that are locked: the same for the state, and for a client that may lock without
//! asking.

use crate::v1;
use prost::Message;
use v1::lock::Kind;

/// The last byte that can be locked: files end there at the latest.
pub const LAST: u64 = i64::MAX as u64;
/// Most ranges that one owner may hold of one file.
pub const MAX_RANGES: usize = 4096;
/// Most owners' locks of one session, each on one inode. All of one inode may have to be looked
/// through for another.
pub const MAX_LOCKS: usize = 1 << 16;

/// What one owner has locked of one inode: in order, apart, and those of one kind not adjacent.
#[derive(Clone, PartialEq, Message)]
pub struct Ranges {
    /// Who locked last.
    #[prost(uint32, tag = "1")]
    pub pid: u32,
    /// What is locked, by where it begins.
    #[prost(message, repeated, tag = "2")]
    pub ranges: Vec<Range>,
}

/// Bytes that are locked, `end` included.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Range {
    /// First byte.
    #[prost(uint64, tag = "1")]
    pub start: u64,
    /// Last byte; [`LAST`]: to the end of the file, however long it gets.
    #[prost(uint64, tag = "2")]
    pub end: u64,
    /// For writing, alone; else for reading, with others.
    #[prost(bool, tag = "3")]
    pub write: bool,
}

impl Ranges {
    /// Makes `[start, end]` what `write` says: locked for writing, for reading, or (`None`) not.
    pub fn set(&mut self, start: u64, end: u64, write: Option<bool>) {
        let mut ranges = Vec::with_capacity(self.ranges.len() + 2);
        for r in &self.ranges {
            if r.start < start {
                ranges.push(Range { end: r.end.min(start - 1), ..*r });
            }
        }
        ranges.extend(write.map(|write| Range { start, end, write }));
        for r in &self.ranges {
            if r.end > end {
                ranges.push(Range { start: r.start.max(end + 1), ..*r });
            }
        }
        // Neighbours of one kind are one.
        ranges.dedup_by(|next, last| {
            let joined = last.write == next.write && last.end + 1 == next.start;
            if joined {
                last.end = next.end;
            }
            joined
        });
        self.ranges = ranges;
    }

    /// The first range that stands against another owner's lock.
    pub fn against(&self, lock: &v1::Lock) -> Option<Range> {
        let write = lock.kind() == Kind::Write;
        let meets = |r: &&Range| r.start <= lock.end && lock.start <= r.end && (write || r.write);
        self.ranges.iter().find(meets).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes that the model keeps apart; the last stands for all up to [`LAST`].
    const BYTES: u64 = 24;

    fn end_of(byte: u64) -> u64 {
        if byte == BYTES - 1 { LAST } else { byte }
    }

    proptest! {
        /// Against an array of bytes: what is set is what is there, in the fewest ranges.
        #[test]
        fn ranges_are_those_of_a_byte_array(
            steps in proptest::collection::vec((0..BYTES, 0..BYTES, 0u8..3), 1..40),
        ) {
            let mut held = Ranges::default();
            let mut model = [None; BYTES as usize];
            for (a, b, kind) in steps {
                let (start, end) = (a.min(b), a.max(b));
                let write = [None, Some(false), Some(true)][usize::from(kind)];
                held.set(start, end_of(end), write);
                model[start as usize..=end as usize].fill(write);
                let mut want: Vec<Range> = Vec::new();
                for (byte, write) in model.iter().enumerate() {
                    let (start, Some(write)) = (byte as u64, *write) else { continue };
                    match want.last_mut().filter(|r| r.write == write && r.end + 1 == start) {
                        Some(last) => last.end = end_of(start),
                        None => want.push(Range { start, end: end_of(start), write }),
                    }
                }
                prop_assert_eq!(&held.ranges, &want);
                for kind in [Kind::Read, Kind::Write] {
                    let lock = v1::Lock { kind: kind.into(), start, end, ..Default::default() };
                    let stands = model[start as usize..=end as usize].iter().any(|held| {
                        held.is_some_and(|write| write || kind == Kind::Write)
                    });
                    prop_assert_eq!(held.against(&lock).is_some(), stands);
                }
            }
        }
    }
}
