//! What all files of a mount share.

use crate::Options;
use crate::accesses::Accesses;
use crate::budget::Budget;
use crate::locks::Locks;
use crate::meta::Meta;
use crate::opens::Opens;
use crate::store::Store;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::debug;
use weft_proto::InodeId;

/// Inodes whose cached content is remembered to be good.
const COHERENT: usize = 64 << 10;

/// A cache of file content above this library: the kernel's page cache.
pub trait ContentCache: Send + Sync {
    /// Forgets the content of an inode; ends when nobody uses it any more, which may have to wait for
    /// reads of that inode to be answered. It is forgotten also if nobody waits for that.
    fn forget(&self, ino: InodeId) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

pub(crate) struct Mount {
    pub options: Options,
    pub meta: Arc<Meta>,
    pub store: Arc<Store>,
    pub budget: Arc<Budget>,
    pub opens: Opens,
    pub locks: Locks,
    pub accesses: Accesses,
    /// Room for read-ahead, bytes.
    pub ahead: Arc<Semaphore>,
    /// The version that what the caller caches of an inode is of.
    coherent: quick_cache::sync::Cache<InodeId, u64>,
    above: OnceLock<Arc<dyn ContentCache>>,
}

impl Mount {
    pub fn new(options: Options, meta: Arc<Meta>, store: Arc<Store>) -> Arc<Self> {
        Arc::new(Self {
            budget: Budget::new(options.write_buffer_bytes, options.op_deadline),
            opens: Opens::new(meta.clone()),
            locks: Locks::default(),
            accesses: Accesses::default(),
            ahead: Arc::new(Semaphore::new(options.cache_bytes.min(Semaphore::MAX_PERMITS))),
            coherent: quick_cache::sync::Cache::new(COHERENT),
            above: OnceLock::new(),
            options,
            meta,
            store,
        })
    }

    /// The mount is gone: whoever waits for the cluster ends.
    pub fn end(&self) {
        self.meta.sessions.end();
        self.budget.end();
    }

    /// Tells what caches content above this library. Only the first is taken.
    pub fn set_content_cache(&self, above: Arc<dyn ContentCache>) {
        let _ = self.above.set(above);
    }

    /// What is cached above of this inode is good no more. Returns when it is gone, or `patience`
    /// is over: a read whose pages it waits for may itself wait for who waits for us.
    pub async fn forget_above(&self, ino: InodeId, patience: Duration) {
        self.coherent.remove(&ino);
        let Some(above) = self.above.get() else { return };
        if timeout(patience, above.forget(ino)).await.is_err() {
            debug!(%ino, "cached content is being forgotten still");
        }
    }

    /// This mount's own commit led from one version to the next: what is cached followed.
    pub fn note_commit(&self, ino: InodeId, before: u64, after: u64) {
        if after == before + 1 && self.coherent.get(&ino) == Some(before) {
            self.coherent.insert(ino, after);
        }
    }

    /// The inode was opened at `version`. Answers whether what was cached before is of that.
    pub fn note_open(&self, ino: InodeId, version: u64) -> bool {
        let same = self.coherent.get(&ino) == Some(version);
        if !same {
            self.coherent.insert(ino, version);
        }
        same
    }
}
