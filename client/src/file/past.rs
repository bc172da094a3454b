//! What is written past the cache above while that may hold older bytes of the same pages.
//!
//! A program may be storing in such a page. The cache then writes it back whole, before it forgets
//! it, and what the page has of those bytes is from before they were written: it is left out.
//! Invariant: bytes are left out from when they were written past the cache until the pages are
//! gone, or filled with them, so that neither is lost: what was written, or what was stored beside
//! it, or over it by who has seen it.

use crate::ranges::{Part, RangeMap};
use std::ops::Range;

/// A write past the cache, by number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Number(u64);

impl Part for Number {
    fn advanced(&self, _: u64) -> Self {
        *self
    }
}

#[derive(Default)]
pub(super) struct Past {
    last: u64,
    ranges: RangeMap<Number>,
}

impl Past {
    /// A number for a write that begins.
    pub fn begin(&mut self) -> Number {
        self.last += 1;
        Number(self.last)
    }

    /// What was cached when this was written is gone.
    pub fn end(&mut self, number: Number) {
        self.ranges.retain(|by| *by != number);
    }

    pub fn wrote(&mut self, range: Range<u64>, by: Number) {
        self.ranges.insert(range, by);
    }

    /// The cache has these bytes as they are now.
    pub fn filled(&mut self, range: Range<u64>) {
        self.ranges.remove(range);
    }

    /// What the cache writes back of `range` and has as it is.
    pub fn rest(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let parts = self.ranges.cover(range).into_iter();
        parts.filter_map(|(range, by)| by.is_none().then_some(range))
    }

    /// What was appended from `base` on has landed elsewhere.
    pub fn shift(&mut self, base: u64, by: i64) {
        for (range, number) in self.ranges.remove(base..u64::MAX) {
            let moved = range.start.saturating_add_signed(by)..range.end.saturating_add_signed(by);
            self.ranges.insert(moved, number);
        }
    }
}
