//! The bound on bytes that were written and are not committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use weft_net::buggify::{self, Point};
use weft_proto::{Error, ErrorKind, Result};

/// Most bytes that one file keeps durable without committing them.
const MAX_DURABLE: usize = 64 << 20;
/// Room beside that for what is written back while the leases are over, when nothing can be
/// committed, and for what has to be written back before a lease is given back.
const RESERVE_BYTES: usize = 64 << 20;

pub(crate) struct Budget {
    room: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
    limit: usize,
    patience: Duration,
    waiting: AtomicUsize,
    /// Someone waits for room.
    pub pressure: Notify,
}

struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Budget {
    pub fn new(limit: usize, patience: Duration) -> Arc<Self> {
        // Two writes of the longest kind must always fit, or a writer could wait for itself.
        let limit = limit.clamp(4 << 20, Semaphore::MAX_PERMITS);
        Arc::new(Self {
            room: Arc::new(Semaphore::new(limit)),
            reserve: Arc::new(Semaphore::new(RESERVE_BYTES)),
            limit,
            patience,
            waiting: AtomicUsize::new(0),
            pressure: Notify::new(),
        })
    }

    /// Room for `len` bytes, if there is.
    pub fn try_take(&self, len: usize) -> Option<OwnedSemaphorePermit> {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.room.clone().try_acquire_many_owned(len).ok()
    }

    /// The same, with the reserve if there is no other.
    pub fn try_take_more(&self, len: usize) -> Option<OwnedSemaphorePermit> {
        self.try_take(len).or_else(|| {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            self.reserve.clone().try_acquire_many_owned(len).ok()
        })
    }

    /// Waits for room in the reserve, unless there is other room at once. `None` at the end.
    pub async fn take_more(&self, len: usize) -> Option<OwnedSemaphorePermit> {
        if let Some(permit) = self.try_take(len) {
            return Some(permit);
        }
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.reserve.clone().acquire_many_owned(len).await.ok()
    }

    /// Waits for room for `len` bytes.
    pub async fn take(&self, len: usize) -> Result<OwnedSemaphorePermit> {
        if let Some(permit) = self.try_take(len) {
            return Ok(permit);
        }
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        self.pressure.notify_one();
        match timeout(self.patience, self.room.clone().acquire_many_owned(len)).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Error::new(
                ErrorKind::Io,
                format!(
                    "the write buffer of {} bytes is full and nothing could be committed for {:?}",
                    self.limit, self.patience
                ),
            )),
        }
    }

    /// Nobody waits any more.
    pub fn end(&self) {
        self.room.close();
        self.reserve.close();
    }

    pub fn is_short(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Whether a file with so many durable bytes should commit them now.
    pub fn wants_commit(&self, durable: u64) -> bool {
        let soon = self.is_short() || buggify::fires(Point::CommitSoon);
        durable > 0 && (soon || durable >= MAX_DURABLE.min(self.limit / 4) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::pin::pin;

    /// Else its lease is not given back before all that waits for other files is committed.
    #[tokio::test]
    async fn what_is_taken_back_waits_for_the_reserve() {
        let budget = Budget::new(4 << 20, Duration::MAX);
        let _others = budget.try_take(4 << 20).expect("all of it is free");
        let reserve = budget.try_take_more(RESERVE_BYTES).expect("and so is the reserve");
        let mut page = pin!(budget.take_more(4096));
        assert!(page.as_mut().now_or_never().is_none());
        drop(reserve);
        assert!(page.await.is_some());
        assert!(budget.try_take(4096).is_none(), "there is no other room");
        budget.end();
        assert!(budget.take_more(RESERVE_BYTES).await.is_none());
    }
}
