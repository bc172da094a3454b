//! A map from byte ranges to values: what lies where in a file.
//!
//! Invariant: ranges are not empty and do not overlap; a later insert replaces what it covers.

use std::collections::BTreeMap;
use std::ops::Range;

/// A value that describes a range and can describe a later part of it.
pub(crate) trait Part: Clone {
    /// The value for the same range without its first `by` bytes.
    fn advanced(&self, by: u64) -> Self;
}

impl Part for () {
    fn advanced(&self, _: u64) {}
}

#[derive(Clone, Debug)]
pub(crate) struct RangeMap<V> {
    /// Start of a range, to its end and value.
    parts: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for RangeMap<V> {
    fn default() -> Self {
        Self { parts: BTreeMap::new() }
    }
}

impl<V: Part> RangeMap<V> {
    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    pub fn clear(&mut self) {
        self.parts.clear();
    }

    /// End of the last range; 0 if there is none.
    pub fn end(&self) -> u64 {
        self.parts.last_key_value().map_or(0, |(_, (end, _))| *end)
    }

    /// Takes out what lies in `range`, cutting what reaches over its edges. Answers the parts that
    /// went, in order.
    pub fn remove(&mut self, range: Range<u64>) -> Vec<(Range<u64>, V)> {
        let mut gone = Vec::new();
        if range.is_empty() {
            return gone;
        }
        let first = self
            .parts
            .range(..range.start)
            .next_back()
            .filter(|(_, (end, _))| *end > range.start)
            .map(|(start, _)| *start);
        let starts: Vec<u64> =
            first.into_iter().chain(self.parts.range(range.clone()).map(|(s, _)| *s)).collect();
        for start in starts {
            let Some((end, value)) = self.parts.remove(&start) else { continue };
            let cut = start.max(range.start)..end.min(range.end);
            if start < cut.start {
                self.parts.insert(start, (cut.start, value.clone()));
            }
            if cut.end < end {
                self.parts.insert(cut.end, (end, value.advanced(cut.end - start)));
            }
            let value = value.advanced(cut.start - start);
            gone.push((cut, value));
        }
        gone
    }

    /// Puts `value` at `range`, replacing what was there. Answers what was replaced.
    pub fn insert(&mut self, range: Range<u64>, value: V) -> Vec<(Range<u64>, V)> {
        let gone = self.remove(range.clone());
        if !range.is_empty() {
            self.parts.insert(range.start, (range.end, value));
        }
        gone
    }

    /// Makes the part that ends at `at` reach to `end`; the bytes between must be free. Answers
    /// whether there was such a part.
    pub fn extend(&mut self, at: u64, end: u64) -> bool {
        match self.parts.range_mut(..at).next_back() {
            Some((_, (old, _))) if *old == at => {
                *old = end;
                true
            }
            _ => false,
        }
    }

    /// What lies in `range`, in order, cut to it.
    pub fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, V)> + '_ {
        let first = self
            .parts
            .range(..range.start)
            .next_back()
            .filter(|(_, (end, _))| *end > range.start && !range.is_empty())
            .map(|(start, _)| *start)
            .unwrap_or(range.start);
        let (low, high) = (range.start, range.end.max(range.start));
        self.parts.range(first..high.max(first)).map(move |(start, (end, value))| {
            let cut = (*start).max(low)..(*end).min(high);
            let value = value.advanced(cut.start - start);
            (cut, value)
        })
    }

    /// `range` in order and without gaps: parts, and `None` for what no part covers.
    pub fn cover(&self, range: Range<u64>) -> Vec<(Range<u64>, Option<V>)> {
        let mut out = Vec::new();
        let mut at = range.start;
        for (part, value) in self.overlapping(range.clone()) {
            if at < part.start {
                out.push((at..part.start, None));
            }
            at = part.end;
            out.push((part, Some(value)));
        }
        if at < range.end {
            out.push((at..range.end, None));
        }
        out
    }

    /// All parts, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &V)> {
        self.parts.iter().map(|(start, (end, value))| (*start..*end, value))
    }

    /// Keeps the parts for which `keep` says so.
    pub fn retain(&mut self, mut keep: impl FnMut(&V) -> bool) {
        self.parts.retain(|_, (_, value)| keep(value));
    }

    /// Moves every part by `by` bytes; none may come to lie before 0.
    pub fn shift(&mut self, by: i64) {
        let parts = std::mem::take(&mut self.parts);
        self.parts = parts
            .into_iter()
            .map(|(start, (end, v))| {
                (start.saturating_add_signed(by), (end.saturating_add_signed(by), v))
            })
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Where in its own source a range's bytes begin.
    impl Part for (u8, u64) {
        fn advanced(&self, by: u64) -> Self {
            (self.0, self.1 + by)
        }
    }

    fn op() -> impl Strategy<Value = (bool, u64, u64, u8)> {
        (any::<bool>(), 0u64..64, 0u64..24, any::<u8>())
    }

    proptest! {
        #[test]
        fn behaves_like_an_array(
            ops in prop::collection::vec(op(), 1..40),
            from in 0u64..70,
            len in 0u64..40,
        ) {
            let mut map = RangeMap::default();
            let mut model: Vec<Option<(u8, u64)>> = vec![None; 128];
            for (insert, off, len, tag) in ops {
                let range = off..off + len;
                let gone = match insert {
                    true => map.insert(range, (tag, 0)),
                    false => map.remove(range),
                };
                let mut was = vec![None; 128];
                for (range, value) in gone {
                    for i in range.clone() {
                        was[i as usize] = Some(value.advanced(i - range.start));
                    }
                }
                for i in off..off + len {
                    prop_assert_eq!(was[i as usize], model[i as usize]);
                    model[i as usize] = insert.then_some((tag, i - off));
                }
            }
            let mut at = from;
            for (range, value) in map.cover(from..from + len) {
                prop_assert_eq!(range.start, at);
                prop_assert!(!range.is_empty());
                for i in range.clone() {
                    prop_assert_eq!(value.map(|v| v.advanced(i - range.start)), model[i as usize]);
                }
                at = range.end;
            }
            prop_assert_eq!(at, from + len);
            let end = model.iter().rposition(Option::is_some).map_or(0, |i| i as u64 + 1);
            prop_assert_eq!(map.end(), end);
        }
    }

    #[test]
    fn extends_only_at_an_end() {
        let mut map = RangeMap::default();
        map.insert(0..4, ());
        assert!(!map.extend(3, 9));
        assert!(map.extend(4, 9));
        assert_eq!(map.end(), 9);
        map.shift(5);
        assert!(map.overlapping(0..100).map(|(r, ())| r).eq(std::iter::once(5..14)));
    }
}
