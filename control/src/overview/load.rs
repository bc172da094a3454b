//! What clients get of a cluster, or of a part of it.

use serde::{Deserialize, Serialize};

/// What clients are given a second, on average over the last five.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Bytes of chunks.
    pub read_bytes_per_s: u64,
    /// The same.
    pub written_bytes_per_s: u64,
    /// Reads of chunks.
    pub reads_per_s: u64,
    /// Writes of chunks.
    pub writes_per_s: u64,
    /// How long one takes, on average; 0: there was none.
    pub read_us: u64,
    /// The same.
    pub write_us: u64,
    /// Requests for chunks that have no answer yet.
    pub waiting: u64,
    /// Operations at the metadata leader.
    pub metadata_per_s: u64,
}

/// What was told longer ago says nothing of now.
pub(super) fn is_fresh(heard_ms: u64) -> bool {
    heard_ms < 5000
}

/// How much a mean counts among others: what is done less than once a second is told as 0.
pub(super) fn weight(a_second: u64) -> u64 {
    a_second.max(1)
}

/// What daemons tell may be anything.
pub(super) fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}
