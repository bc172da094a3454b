//! Content whose place in the log went with its session, or was given up: its file has it still,
//! and commits it by itself.
//!
//! Invariant: what is done or synced later comes after it, as if it had its place still (I2).

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, Weak};
use weft_proto::Result;

/// Those who have such content.
pub(crate) trait Owing: Send + Sync {
    /// Commits it. Errors: why something is left.
    fn pay(&self) -> Pin<Box<dyn Future<Output = Result<()>> + Send + '_>>;
}

#[derive(Default)]
pub(super) struct Owed {
    files: OnceLock<Weak<dyn Owing>>,
    /// How often content has lost its place; and how many of these times are settled.
    lost: AtomicU64,
    paid: AtomicU64,
}

impl Owed {
    /// Tells who has content. Only the first is taken.
    pub fn set_owing(&self, files: Weak<dyn Owing>) {
        let _ = self.files.set(files);
    }

    pub fn owe(&self) {
        self.lost.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether there may be content without a place.
    pub fn owes(&self) -> bool {
        self.lost.load(Ordering::Acquire) != self.paid.load(Ordering::Acquire)
    }

    /// Returns when such content is committed, or given up.
    pub async fn pay(&self) -> Result<()> {
        while self.owes()
            && let Some(files) = self.files.get().and_then(Weak::upgrade)
        {
            let lost = self.lost.load(Ordering::Acquire);
            files.pay().await?;
            self.paid.fetch_max(lost, Ordering::AcqRel);
        }
        Ok(())
    }
}
