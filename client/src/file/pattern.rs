//! What a handle is going to write, guessed from what it wrote: records at one distance, or one
//! stream. Where several mounts write a file, the right to write is asked for so far ahead.
//!
//! A record is what is written without a gap: the caller's cache hands one over in several pieces.

use std::ops::Range;
use weft_net::sync::Mutex;
use weft_proto::v1::Records;

/// Records that are asked for ahead, at most.
const MAX_AHEAD: u32 = 64;
/// Bytes that are, at most.
const MAX_BYTES: u64 = 16 << 20;
/// A stream is taken for one after so many bytes.
const MIN_STREAM: u64 = 1 << 20;

#[derive(Default)]
pub(crate) struct WritePattern(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// What is being written.
    record: Range<u64>,
    /// The length of the record before it; 0: there was none.
    len: u64,
    /// From that to this one.
    stride: u64,
    /// How many followed each other like this.
    alike: u32,
}

impl WritePattern {
    /// Something is about to be written. Answers what the right to write is to be asked for, first
    /// what has just that place.
    pub fn note(&self, range: Range<u64>) -> Records {
        let seen = &mut *self.0.lock();
        let within = seen.record.start <= range.start && range.end <= seen.record.end;
        if range.start == seen.record.end {
            seen.record.end = range.end;
        } else if !within || seen.record.is_empty() {
            seen.next(&range);
        }
        seen.ahead(range)
    }
}

impl Seen {
    /// Another record begins.
    fn next(&mut self, range: &Range<u64>) {
        let len = self.record.end - self.record.start;
        let stride = range.start.saturating_sub(self.record.start);
        let first = self.len == 0;
        self.alike = match (len, stride) == (self.len, self.stride) || first {
            true if stride >= len && len > 0 => self.alike + 1,
            _ => 0,
        };
        (self.record, self.len, self.stride) = (range.clone(), len, stride);
    }

    fn ahead(&self, range: Range<u64>) -> Records {
        let Self { record, len, stride, alike } = self;
        let left = MAX_BYTES.checked_div(*len).unwrap_or(0).min(MAX_AHEAD.into()) as u32;
        let count = left.min(1 << (*alike).min(6));
        // The next records, from this one on, as long as the last was.
        if *alike >= 2
            && count > 1
            && range.start == record.start
            && range.end - range.start <= *len
        {
            return Records { off: record.start, len: *len, stride: *stride, count };
        }
        // The rest of a stream that goes on as it did.
        let streamed = record.end - record.start;
        if *len == 0 && streamed >= MIN_STREAM {
            let len = range.end - range.start;
            let count = (streamed.min(MAX_BYTES) / len.max(1)).clamp(1, MAX_AHEAD.into()) as u32;
            return Records { off: range.start, len, stride: len, count };
        }
        Records::one(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(pattern: &WritePattern, off: u64, len: u64) -> (u64, u64, u32) {
        let Records { len, stride, count, .. } = pattern.note(off..off + len);
        (len, stride, count)
    }

    #[test]
    fn records_at_one_distance_are_asked_for_ahead() {
        let pattern = WritePattern::default();
        assert_eq!(asked(&pattern, 0, 100), (100, 100, 1));
        assert_eq!(asked(&pattern, 300, 100), (100, 100, 1));
        let later: Vec<_> = (2..9).map(|n| asked(&pattern, 300 * n, 100)).collect();
        assert_eq!(later[0], (100, 300, 4));
        assert_eq!(later[5..], [(100, 300, 64); 2]);
        // Once more the same, as when it was tried without waiting first.
        assert_eq!(asked(&pattern, 2400, 100), (100, 300, 64));
        assert_eq!(asked(&pattern, 5, 100), (100, 100, 1));
    }

    #[test]
    fn a_record_in_pieces_is_one_record() {
        let pattern = WritePattern::default();
        let records = |n: u64| {
            let pieces = [(0, 30), (30, 60), (90, 10)];
            pieces.map(|(at, len)| asked(&pattern, 300 * n + at, len))
        };
        let _ = (records(0), records(1));
        // The right to all of a record, and of those that follow, is asked for with its beginning.
        assert_eq!(records(2)[0], (100, 300, 4));
        assert_eq!(records(3)[0], (100, 300, 8));
    }

    #[test]
    fn a_stream_is_asked_for_ahead_when_it_has_lasted() {
        let pattern = WritePattern::default();
        let all: Vec<_> = (0..20).map(|n| asked(&pattern, n << 17, 1 << 17)).collect();
        assert_eq!(all[..7], [(1 << 17, 1 << 17, 1); 7]);
        assert_eq!(all[7], (1 << 17, 1 << 17, 8));
        assert_eq!(all[19], (1 << 17, 1 << 17, 20));
    }

    #[test]
    fn whatever_is_written_is_asked_for() {
        let writes = proptest::collection::vec((0..5000_u64, 1..300_u64), 1..40);
        proptest::proptest!(|(writes in writes)| {
            let pattern = WritePattern::default();
            for (off, len) in writes {
                let asked = pattern.note(off..off + len);
                let first = asked.first();
                proptest::prop_assert!(first.start <= off && off + len <= first.end);
                proptest::prop_assert!(asked.ranges().is_ok());
            }
        });
    }
}
