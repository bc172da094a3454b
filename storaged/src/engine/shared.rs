//! What the committer and the operations of one open target share.

use super::alloc::Allocator;
use super::busy::Busy;
use super::device::Device;
use super::discard::Discard;
use super::index::Index;
use super::readers::Readers;
use super::scrub::Scrub;
use super::superblock::Superblock;
use super::waits::Waits;
use parking_lot::{Mutex, RwLock};
use rangemap::RangeInclusiveSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use weft_proto::planted::{self, Bug};
use weft_proto::{ChunkId, Error, ErrorKind, Result};

/// An index that is made durable is waited for so long before its drive counts as one that hangs.
const FLUSH_PATIENCE: Duration = Duration::from_secs(60);

/// What the committer and the operations share.
pub(super) struct Core {
    pub path: PathBuf,
    pub device: Arc<dyn Device>,
    pub superblock: RwLock<Superblock>,
    pub index: Index,
    /// Who waits for the index to become durable before more can be written.
    pub flush_waits: Arc<Waits>,
    /// Turns to look into the index with a thread of the pool that all targets share.
    pub lookups: Arc<Semaphore>,
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
    /// Chunks that were lost when the target was opened, as far as nobody was told.
    pub dropped: Mutex<Vec<ChunkId>>,
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

    /// Does what may wait for the drive of the index. Errors as of [`Self::of_index`].
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if self.device.is_simulated() {
            return self.of_index(work());
        }
        let internal = |what: String| Error::new(ErrorKind::Internal, what);
        let turn = self.lookups.clone().acquire_owned().await;
        let turn = turn.map_err(|e| internal(e.to_string()))?;
        // Also for a thread, of which others may have taken all that there are.
        let wait = self.index.waits.begin();
        // The thread goes on when whoever waits for it has left.
        let work = move || {
            drop(wait);
            let _turn = turn;
            work()
        };
        let done = tokio::task::spawn_blocking(work).await;
        self.of_index(done.unwrap_or_else(|e| Err(internal(e.to_string()))))
    }

    /// What the index answered. One that is damaged stays so while it is open: it ends all writes,
    /// so that the cluster goes round the target, and nobody takes its error for one of a chunk.
    pub fn of_index<T>(&self, answer: Result<T>) -> Result<T> {
        answer.map_err(|e| {
            if e.kind != ErrorKind::Corrupt {
                return e;
            }
            let what = format!("{}; a restart makes the index anew", e.message);
            self.fail(what.clone());
            Error::new(ErrorKind::Io, what)
        })
    }

    /// How long the drive, or that of the index, has not answered.
    pub fn stalled(&self) -> Duration {
        let index = self.index.waits.longest();
        // That may take a while, and reads go on meanwhile.
        let flush = self.flush_waits.longest().saturating_sub(FLUSH_PATIENCE);
        self.device.stalled().max(index).max(flush)
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
