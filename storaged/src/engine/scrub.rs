//! How far a scrub of all chunks has come, as the index keeps it.

use super::entry::{take_chunk, take_u64};
use std::time::Duration;
use weft_proto::{ChunkId, v1};

/// How far a scrub has come. It is kept in the index, and made durable with what is next: what a
/// crash takes back of it is read again.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Scrub {
    /// When all chunks had been read the last time, seconds since 1970; 0: never since the index
    /// was made.
    pub last_s: u64,
    /// How long this pass has lasted, without the time in which the target was closed.
    pub elapsed: Duration,
    /// Bytes that it has read.
    pub done_bytes: u64,
    /// The last chunk that it has read; `None`: none yet.
    pub after: Option<ChunkId>,
}

impl Scrub {
    /// Little-endian: last u64, elapsed in milliseconds u64, bytes u64, then the chunk, if any.
    pub(super) fn encode(&self) -> Vec<u8> {
        let numbers = [self.last_s, self.elapsed.as_millis() as u64, self.done_bytes];
        let mut out: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
        out.extend(self.after.into_iter().flat_map(|chunk| chunk.to_bytes()));
        out
    }

    /// Reads what `encode` wrote; `None` for anything else.
    pub(super) fn decode(mut input: &[u8]) -> Option<Self> {
        let input = &mut input;
        let (last_s, elapsed) = (take_u64(input)?, Duration::from_millis(take_u64(input)?));
        let done_bytes = take_u64(input)?;
        let after = if input.is_empty() { None } else { Some(take_chunk(input)?) };
        input.is_empty().then_some(Self { last_s, elapsed, done_bytes, after })
    }
}

impl From<Scrub> for v1::TargetScrub {
    fn from(scrub: Scrub) -> Self {
        let Scrub { last_s, done_bytes, elapsed, .. } = scrub;
        Self { last_s, done_bytes, elapsed_s: elapsed.as_secs() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_proto::{SegmentId, SessionId};

    proptest! {
        #[test]
        fn what_was_remembered_comes_back_and_garbage_is_refused(
            numbers: [u64; 3],
            chunk: Option<(u64, u64, u8)>,
            garbage: Vec<u8>,
        ) {
            let [last_s, elapsed, done_bytes] = numbers;
            let after = chunk.map(|(session, seq, shard)| {
                ChunkId { segment: SegmentId { session: SessionId(session), seq }, shard }
            });
            let elapsed = Duration::from_millis(elapsed);
            let scrub = Scrub { last_s, elapsed, done_bytes, after };
            prop_assert_eq!(Scrub::decode(&scrub.encode()), Some(scrub));
            let mut longer = scrub.encode();
            longer.push(0);
            prop_assert_eq!(Scrub::decode(&longer), None);
            let _ = Scrub::decode(&garbage);
        }
    }
}
