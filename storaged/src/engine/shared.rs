//! What the committer and the operations of one open target share.

use super::alloc::Allocator;
use super::busy::Busy;
use super::device::Device;
use super::discard::Discard;
use super::index::Index;
use super::readers::Readers;
use super::scrub::Scrub;
use super::superblock::Superblock;
use parking_lot::{Mutex, RwLock};
use rangemap::RangeInclusiveSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::oneshot;
use weft_proto::planted::{self, Bug};
use weft_proto::{ChunkId, Error, ErrorKind, Result};

/// What the committer and the operations share.
pub(super) struct Core {
    pub path: PathBuf,
    pub device: Arc<dyn Device>,
    pub superblock: RwLock<Superblock>,
    pub index: Index,
    pub allocator: Arc<Mutex<Allocator>>,
    /// Where freed space goes.
    pub discard: Discard,
    pub readers: Readers,
    pub busy: Busy,
    /// Number of the next put; orders chunk headers in a rebuild.
    pub stamp: AtomicU64,
    pub counters: Counters,
    /// Tells this opening of the target from others.
    pub opened: u64,
    /// Sessions that have ended, by id. Only the committer adds to them.
    pub fenced: RwLock<RangeInclusiveSet<u64>>,
    pub scrub: Mutex<Scrub>,
    /// Why nothing can be written any more.
    pub failure: Mutex<Option<String>>,
}

#[derive(Default)]
pub(super) struct Counters {
    pub chunks: AtomicU64,
    pub read_errors: AtomicU64,
    pub write_errors: AtomicU64,
    pub checksum_errors: AtomicU64,
    /// Journal records written.
    pub commits: AtomicU64,
}

impl Core {
    /// Ends writes to this target until a restart.
    pub fn fail(&self, why: String) {
        let mut failure = self.failure.lock();
        if failure.is_none() {
            tracing::error!(target = %self.path.display(), "target takes no more writes: {why}");
            *failure = Some(why);
        }
    }

    /// What a thread of the engine answers; `None`: it has ended.
    pub async fn answer<T: Send>(&self, answer: oneshot::Receiver<T>) -> Option<T> {
        if !self.device.is_simulated() {
            return answer.await.ok();
        }
        // A thread of a runtime may not block there itself.
        std::thread::scope(|s| s.spawn(|| answer.blocking_recv()).join()).ok()?.ok()
    }

    /// Does what may wait for the drive of the index.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if self.device.is_simulated() {
            return work();
        }
        tokio::task::spawn_blocking(work)
            .await
            .unwrap_or_else(|e| Err(Error::new(ErrorKind::Internal, e.to_string())))
    }

    pub fn check_fence(&self, id: ChunkId) -> Result<()> {
        match self.fenced.read().contains(&id.segment.session.0) {
            _ if planted::is(Bug::FenceIgnored) => Ok(()),
            false => Ok(()),
            true => {
                let what = format!("chunk {id} comes too late: its session has ended");
                Err(Error::new(ErrorKind::SessionExpired, what))
            }
        }
    }

    pub fn check_writable(&self) -> Result<()> {
        match &*self.failure.lock() {
            None => Ok(()),
            Some(why) => Err(Error::new(
                ErrorKind::Io,
                format!(
                    "{} takes no writes: {why}; check the drive, then restart",
                    self.path.display()
                ),
            )),
        }
    }
}
