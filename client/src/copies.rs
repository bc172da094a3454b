//! Counts how often content is copied in memory: a figure for benches, of the whole process.

use std::sync::atomic::{AtomicU64, Ordering};

static COPIED: AtomicU64 = AtomicU64::new(0);

/// Bytes of file content that this process has copied from memory to memory, as far as this library
/// and its faces did it: into the buffers that are sent, and out of those that were received.
/// Shards that are rebuilt are not counted.
pub fn copied_bytes() -> u64 {
    COPIED.load(Ordering::Relaxed)
}

/// Counts bytes that were copied; for faces of this library, which copy to their callers.
pub fn note_copied(bytes: usize) {
    COPIED.fetch_add(bytes as u64, Ordering::Relaxed);
}
