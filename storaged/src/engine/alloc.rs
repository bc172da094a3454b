//! Which blocks are free. Kept in memory only; the index says what is used.
//!
//! Invariants: free runs neither touch nor overlap; a block is given to one owner at a time, and to
//! none once it is known to be bad.

use super::entry::Extent;
use std::collections::{BTreeMap, BTreeSet};

/// One block in so many may be kept out, as it cannot be written: with more it is the drive that
/// fails.
const KEPT_OUT: u64 = 128;

pub(super) struct Allocator {
    /// Start → length of each free run, in blocks.
    by_start: BTreeMap<u64, u64>,
    /// (length, start) of each free run.
    by_length: BTreeSet<(u64, u64)>,
    free: u64,
    total: u64,
    /// Blocks that puts may not take.
    reserve: u64,
    bad: BTreeSet<u64>,
    /// Blocks that were given to someone who could not write them.
    kept_out: u64,
}

impl Allocator {
    /// All of `[first, end)` free. A small reserve is held back, so that a full target keeps room
    /// to be repaired: one in 128, at most 1 GiB.
    pub fn new(first: u64, end: u64) -> Self {
        let total = end - first;
        let mut it = Self {
            by_start: BTreeMap::new(),
            by_length: BTreeSet::new(),
            free: 0,
            total,
            reserve: (total / 128).min(1 << 18),
            bad: BTreeSet::new(),
            kept_out: 0,
        };
        it.insert(first, total);
        it.free = total;
        it
    }

    /// Blocks that chunks can take.
    pub fn capacity(&self) -> u64 {
        self.total - self.reserve
    }

    /// Blocks that chunks took.
    pub fn used(&self) -> u64 {
        self.total - self.free
    }

    /// Takes `blocks`, the first `head` of them in one run: contiguous in the smallest run that
    /// fits, else in a few of the longest runs. `reserve`: also of what is kept back from puts.
    /// `None` when full or too fragmented.
    pub fn take(&mut self, blocks: u64, head: u64, reserve: bool) -> Option<Vec<Extent>> {
        let kept = if reserve { 0 } else { self.reserve };
        if blocks + kept > self.free {
            return None;
        }
        if let Some(&(length, start)) = self.by_length.range((blocks, 0)..).next() {
            self.cut(start, length, blocks);
            return Some(vec![Extent { block: start, blocks: blocks as u32 }]);
        }
        let longest: Vec<_> = self.by_length.iter().rev().take(Extent::MAX).copied().collect();
        let enough = longest.iter().map(|r| r.0).sum::<u64>() >= blocks;
        if !enough || longest.first()?.0 < head {
            return None;
        }
        let mut left = blocks;
        let mut extents = Vec::new();
        for (length, start) in longest {
            let part = length.min(left);
            self.cut(start, length, part);
            extents.push(Extent { block: start, blocks: part as u32 });
            left -= part;
            if left == 0 {
                break;
            }
        }
        Some(extents)
    }

    /// The most blocks that [`Self::take`] could give at once.
    pub fn longest(&self) -> u64 {
        let runs: u64 = self.by_length.iter().rev().take(Extent::MAX).map(|r| r.0).sum();
        runs.min(self.free.saturating_sub(self.reserve))
    }

    /// Takes exactly this extent. `false`, and nothing changed, unless all of it is free.
    pub fn claim(&mut self, extent: Extent) -> bool {
        let Some((&start, &length)) = self.by_start.range(..=extent.block).next_back() else {
            return false;
        };
        if start + length < extent.end() {
            return false;
        }
        self.remove(start, length);
        self.insert(start, extent.block - start);
        self.insert(extent.end(), start + length - extent.end());
        self.free -= u64::from(extent.blocks);
        true
    }

    /// Never gives this block to anyone: now if it is free, else when it is given back.
    pub fn avoid(&mut self, block: u64) {
        self.bad.insert(block);
        self.claim(Extent { block, blocks: 1 });
    }

    /// Gives extents that were taken to nobody any more, and does not have them given back either,
    /// as they cannot be written. `false`, and nothing changed, if that is too much of the drive.
    pub fn keep_out(&mut self, extents: &[Extent]) -> bool {
        let blocks: u64 = extents.iter().map(|extent| u64::from(extent.blocks)).sum();
        let few = self.kept_out + blocks <= self.total / KEPT_OUT;
        self.kept_out += if few { blocks } else { 0 };
        few
    }

    /// Gives extents back.
    pub fn give(&mut self, extents: &[Extent]) {
        for extent in extents {
            let mut block = extent.block;
            let bad: Vec<_> = self.bad.range(block..extent.end()).copied().collect();
            for end in bad.into_iter().chain([extent.end()]) {
                if end > block {
                    self.give_good(Extent { block, blocks: (end - block) as u32 });
                }
                block = end + 1;
            }
        }
    }

    fn give_good(&mut self, extent: Extent) {
        let (mut start, mut end) = (extent.block, extent.end());
        let before = self.by_start.range(..=start).next_back().map(|(&s, &l)| (s, l));
        if let Some((s, l)) = before {
            assert!(s + l <= start, "blocks {extent:?} were freed twice");
            if s + l == start {
                self.remove(s, l);
                start = s;
            }
        }
        let after = self.by_start.range(extent.block..).next().map(|(&s, &l)| (s, l));
        if let Some((s, l)) = after {
            assert!(s >= end, "blocks {extent:?} were freed twice");
            if s == end {
                self.remove(s, l);
                end = s + l;
            }
        }
        self.insert(start, end - start);
        self.free += u64::from(extent.blocks);
    }

    fn cut(&mut self, start: u64, length: u64, blocks: u64) {
        self.remove(start, length);
        self.insert(start + blocks, length - blocks);
        self.free -= blocks;
    }

    fn insert(&mut self, start: u64, length: u64) {
        if length > 0 {
            self.by_start.insert(start, length);
            self.by_length.insert((length, start));
        }
    }

    fn remove(&mut self, start: u64, length: u64) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bad_block_goes_to_nobody() {
        let mut it = Allocator::new(0, 100);
        assert!(it.claim(Extent { block: 10, blocks: 10 }));
        // One that is free, one that is a chunk's, at its ends and within, and one twice.
        for bad in [50, 10, 14, 15, 19, 50] {
            it.avoid(bad);
        }
        assert_eq!(it.used(), 11);
        it.give(&[Extent { block: 10, blocks: 10 }]);
        assert_eq!(it.used(), 5);
        let free: Vec<_> = it.by_start.iter().map(|(&s, &l)| (s, l)).collect();
        assert_eq!(free, [(0, 10), (11, 3), (16, 3), (20, 30), (51, 49)]);
    }

    proptest! {
        #[test]
        fn no_block_is_given_twice_or_lost(
            ops in prop::collection::vec(
                (any::<bool>(), 1u64..40, any::<prop::sample::Index>()), 1..200,
            ),
        ) {
            const FIRST: u64 = 7;
            const END: u64 = 1007;
            let mut it = Allocator::new(FIRST, END);
            let mut held: Vec<Vec<Extent>> = Vec::new();
            for (take, blocks, which) in ops {
                if take || held.is_empty() {
                    let longest = it.longest();
                    match it.take(blocks, 1, false) {
                        Some(extents) => {
                            prop_assert!(longest >= blocks);
                            let given = extents.iter().map(|e| u64::from(e.blocks));
                            prop_assert_eq!(given.sum::<u64>(), blocks);
                            prop_assert!(extents.len() <= Extent::MAX);
                            held.push(extents);
                        }
                        None => prop_assert!(it.longest() < blocks),
                    }
                } else {
                    let extents = held.swap_remove(which.index(held.len()));
                    it.give(&extents);
                }
                let mut owner = vec![0; END as usize];
                for e in held.iter().flatten() {
                    (e.block..e.end()).for_each(|b| owner[b as usize] += 1);
                }
                for (&s, &l) in &it.by_start {
                    (s..s + l).for_each(|b| owner[b as usize] += 1);
                }
                prop_assert!(owner[..FIRST as usize].iter().all(|&n| n == 0));
                prop_assert!(owner[FIRST as usize..].iter().all(|&n| n == 1));
                prop_assert_eq!(it.by_start.len(), it.by_length.len());
                let mut copy = Allocator::new(FIRST, END);
                for &e in held.iter().flatten() {
                    prop_assert!(copy.claim(e));
                    prop_assert!(!copy.claim(e));
                }
                prop_assert_eq!(&copy.by_start, &it.by_start);
                prop_assert_eq!(copy.used(), it.used());
            }
        }
    }
}
