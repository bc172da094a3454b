//! What becomes of what is written, for who would write it once more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// A new one is 0: it was not taken in.
const TAKEN: u8 = 1;
const LOST: u8 = 2;

/// What became of one write: the buffers that it went into say so. Clones are of the same.
#[derive(Clone, Default)]
pub(crate) struct Fate(Arc<AtomicU8>);

impl Fate {
    /// Whether it was taken in, and is there, or is going to be, or may be, for all that is known.
    pub fn is_kept(&self) -> bool {
        self.0.load(Ordering::Acquire) == TAKEN
    }

    /// Whether somebody may still ask.
    pub(super) fn matters(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    pub fn take(&self) {
        self.0.store(TAKEN, Ordering::Release);
    }

    /// It was given up, and is certainly not there.
    pub(super) fn lose(&self) {
        self.0.store(LOST, Ordering::Release);
    }
}
