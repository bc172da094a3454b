//! Chunks that a target lacks, until they are made there again.

use std::collections::BTreeSet;
use std::ops::Bound;
use weft_proto::ChunkId;

/// Most missing chunks of a target that are made at a time.
pub(super) const MAX_MISSING: usize = 64;

/// Most of them that are remembered and were not tried in vain.
pub(super) const MAX_REMEMBERED: usize = 64 * MAX_MISSING;

/// Most that were: of these, some 10 MiB.
const MAX_IN_VAIN: usize = 1 << 18;

/// The chunks that one target lacks.
#[derive(Default)]
pub(super) struct Missing {
    fresh: Turns,
    /// Those that could not be made the last time. They keep no others out.
    in_vain: Turns,
}

/// Chunks that take turns.
#[derive(Default)]
struct Turns {
    chunks: BTreeSet<ChunkId>,
    /// The last that was told of: the next time it is the turn of those behind.
    told: Option<ChunkId>,
}

impl Turns {
    fn tell(&mut self, most: usize) -> Vec<ChunkId> {
        let after = self.told.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.chunks.range((after, Bound::Unbounded));
        let before = self.told.into_iter().flat_map(|told| self.chunks.range(..=told));
        let some: Vec<_> = behind.chain(before).take(most).copied().collect();
        self.told = some.last().copied().or(self.told);
        some
    }
}

impl Missing {
    /// Some of them, others each time; those that were tried in vain come last.
    pub fn tell(&mut self) -> Vec<ChunkId> {
        let mut some = self.fresh.tell(MAX_MISSING);
        some.extend(self.in_vain.tell(MAX_MISSING - some.len()));
        some
    }

    /// Answers whether it is remembered: else there is no room.
    pub fn note(&mut self, chunk: ChunkId) -> bool {
        if !self.in_vain.chunks.contains(&chunk) && self.fresh.chunks.len() < MAX_REMEMBERED {
            self.fresh.chunks.insert(chunk);
        }
        self.has(&chunk)
    }

    /// It could not be made.
    pub fn note_in_vain(&mut self, chunk: ChunkId) {
        if self.in_vain.chunks.len() < MAX_IN_VAIN && self.fresh.chunks.remove(&chunk) {
            self.in_vain.chunks.insert(chunk);
        }
    }

    pub fn forget(&mut self, chunk: &ChunkId) {
        self.fresh.chunks.remove(chunk);
        self.in_vain.chunks.remove(chunk);
    }

    /// Whether there is room for so many more that a look is worth it.
    pub fn has_room(&self) -> bool {
        self.fresh.chunks.len() <= MAX_REMEMBERED / 2
    }

    pub fn count(&self) -> usize {
        self.fresh.chunks.len() + self.in_vain.chunks.len()
    }

    /// Those after `after` and up to `last`, or all of them.
    pub fn between(&self, after: Option<ChunkId>, last: Option<ChunkId>) -> Vec<ChunkId> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = (after, last.map_or(Bound::Unbounded, Bound::Included));
        let (fresh, in_vain) = (&self.fresh.chunks, &self.in_vain.chunks);
        fresh.range(range).chain(in_vain.range(range)).copied().collect()
    }

    fn has(&self, chunk: &ChunkId) -> bool {
        self.fresh.chunks.contains(chunk) || self.in_vain.chunks.contains(chunk)
    }
}
