//! A frame that waits for its turn.

use crate::frame::{HEADER_LEN, Header};
use bytes::Bytes;
use tokio::time::Instant;

/// What will be a frame when its turn comes.
pub(super) struct Waiting {
    pub header: Header,
    pub head: Bytes,
    pub payload: Vec<Bytes>,
    /// When its caller gives up. What has a cost has no such end.
    pub until: Option<Instant>,
    pub cost: Option<usize>,
}

impl Waiting {
    /// Bytes that it will be.
    pub fn len(&self) -> usize {
        HEADER_LEN + self.header.head_len as usize + self.header.payload_len as usize
    }

    /// Nobody waits for its answer any more.
    pub fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}
