//! What all files of a mount share.

use crate::Options;
use crate::accesses::Accesses;
use crate::budget::Budget;
use crate::locks::Locks;
use crate::meta::Meta;
use crate::opens::Opens;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use tokio::sync::Semaphore;
use weft_proto::InodeId;
use weft_segments::Segments;

/// Inodes whose cached content is remembered to be good.
const COHERENT: usize = 64 << 10;

/// A cache of file content above this library: the kernel's page cache.
pub trait ContentCache: Send + Sync {
    /// Forgets a range of the content of an inode, to its end if that ends with the largest number;
    /// ends when nobody uses it any more, which may have to wait for reads and writes there to be
    /// answered. It is forgotten also if nobody waits for that.
    fn forget(&self, ino: InodeId, range: Range<u64>) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Content is cached in pieces of so many bytes.
    fn page(&self) -> u64;
}

pub(crate) struct Mount {
    pub options: Options,
    pub meta: Arc<Meta>,
    pub segments: Arc<Segments>,
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
    pub fn new(options: Options, meta: Arc<Meta>, segments: Arc<Segments>) -> Arc<Self> {
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
            segments,
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

    /// What caches content above, if anything does.
    pub fn content_cache(&self) -> Option<&Arc<dyn ContentCache>> {
        self.above.get()
    }

    /// What is cached above of this inode is not to be relied on at its next open.
    pub fn not_coherent(&self, ino: InodeId) {
        self.coherent.remove(&ino);
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
