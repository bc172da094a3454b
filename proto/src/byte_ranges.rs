//! Sets of byte ranges of a file, and records at a distance.
//!
//! Invariant: ranges of a set are not empty, and neither overlap nor touch: they are as few as can
//! be.

use crate::v1::Records;
use crate::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::ops::Range;

/// Records that are asked for at a time, at most.
const MAX_RECORDS: u32 = 256;

/// Bytes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByteRanges {
    /// Starts, to ends.
    ends: BTreeMap<u64, u64>,
}

impl ByteRanges {
    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The last range that begins at `at` or before.
    fn at(&self, at: u64) -> Option<Range<u64>> {
        self.ends.range(..=at).next_back().map(|(start, end)| *start..*end)
    }

    /// Adds bytes.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // Those that it touches become one with it, from the last to the first.
        while let Some(touched) = self.at(end).filter(|touched| touched.end >= start) {
            self.ends.remove(&touched.start);
            (start, end) = (start.min(touched.start), end.max(touched.end));
        }
        self.ends.insert(start, end);
    }

    /// Whether all these bytes are among them.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        range.is_empty() || self.at(range.start).is_some_and(|found| found.end >= range.end)
    }

    /// Whether any of these bytes is among them.
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        let before = |last: u64| self.at(last).is_some_and(|found| found.end > range.start);
        !range.is_empty() && before(range.end - 1)
    }

    /// All ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ends.iter().map(|(start, end)| *start..*end)
    }
}

impl Records {
    /// One range.
    pub fn one(range: Range<u64>) -> Self {
        let len = range.end.saturating_sub(range.start);
        Self { off: range.start, len, stride: len, count: 1 }
    }

    /// The first one.
    pub fn first(&self) -> Range<u64> {
        self.off..self.off.saturating_add(self.len)
    }

    /// All of them, in order, up to the end of what a file can have. Errors: `Invalid` for records
    /// without bytes, and for too many.
    pub fn ranges(&self) -> Result<Vec<Range<u64>>> {
        let Self { off, len, stride, count } = *self;
        let first_ends = off.checked_add(len).is_some();
        if len == 0 || !(1..=MAX_RECORDS).contains(&count) || !first_ends {
            let what = format!("{count} records of {len} bytes at {off}, at most {MAX_RECORDS}");
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let nth = |n: u32| {
            let start = stride.checked_mul(n.into())?.checked_add(off)?;
            Some(start..start.checked_add(len)?)
        };
        Ok((0..count).map_while(nth).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_set_is_what_a_list_of_bytes_is(
            ranges in prop::collection::vec((0..60_u64, 0..12_u64), 0..20),
            (at, len) in (0..60_u64, 0..12_u64),
        ) {
            let (mut set, mut bytes) = (ByteRanges::default(), [false; 80]);
            for (start, len) in ranges {
                set.insert(start..start + len);
                (start..start + len).for_each(|byte| bytes[byte as usize] = true);
            }
            let asked = &bytes[at as usize..(at + len) as usize];
            prop_assert_eq!(set.covers(&(at..at + len)), asked.iter().all(|byte| *byte));
            prop_assert_eq!(set.overlaps(&(at..at + len)), asked.iter().any(|byte| *byte));
            // As few as there are runs.
            let begins = |n: &usize| bytes[*n] && (*n == 0 || !bytes[*n - 1]);
            prop_assert_eq!(set.len(), (0..bytes.len()).filter(begins).count());
            prop_assert_eq!(set.is_empty(), set.iter().next().is_none());
            prop_assert!(set.iter().flatten().all(|byte| bytes[byte as usize]));
        }
    }

    #[test]
    fn the_end_of_all_numbers_is_no_panic() {
        let mut set = ByteRanges::default();
        set.insert(5..u64::MAX);
        assert!(set.covers(&(6..u64::MAX)) && set.overlaps(&(u64::MAX - 1..u64::MAX)));
        let far = Records { off: u64::MAX - 10, len: 5, stride: 5, count: 3 };
        assert_eq!(far.ranges().unwrap(), [far.first(), u64::MAX - 5..u64::MAX]);
        for bad in [
            Records { len: 0, ..far },
            Records { count: 0, ..far },
            Records { count: MAX_RECORDS + 1, ..far },
            Records { len: 11, ..far },
        ] {
            assert_eq!(bad.ranges().unwrap_err().kind, ErrorKind::Invalid, "{bad:?}");
        }
    }
}
