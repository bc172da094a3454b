//! The content that is cached above this library, in the kernel's pages: which of it is good.

use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use weft_proto::InodeId;

/// Inodes whose cached content is remembered to be good.
const MAX_COHERENT: usize = 64 << 10;
/// All of a file.
pub(crate) const ALL: Range<u64> = 0..u64::MAX;

/// A cache of file content above this library: the kernel's page cache.
pub trait ContentCache: Send + Sync {
    /// Forgets a range of the content of an inode, to its end if that ends with the largest number;
    /// ends when nobody uses it any more, which may have to wait for reads and writes there to be
    /// answered. It is forgotten also if nobody waits for that.
    fn forget(&self, ino: InodeId, range: Range<u64>) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Content is cached in pieces of so many bytes.
    fn page(&self) -> u64;
}

/// What is known of the cache above.
pub(crate) struct Pages {
    /// The version that what the caller caches of an inode is of.
    coherent: quick_cache::sync::Cache<InodeId, u64>,
    cache: OnceLock<Arc<dyn ContentCache>>,
}

impl Default for Pages {
    fn default() -> Self {
        let coherent = quick_cache::sync::Cache::new(MAX_COHERENT);
        Self { coherent, cache: OnceLock::new() }
    }
}

impl Pages {
    /// Tells what caches content above this library. Only the first is taken.
    pub fn set_cache(&self, cache: Arc<dyn ContentCache>) {
        let _ = self.cache.set(cache);
    }

    /// What caches content above, if anything does.
    pub fn cache(&self) -> Option<&Arc<dyn ContentCache>> {
        self.cache.get()
    }

    /// What is cached above of this inode is not to be relied on at its next open.
    pub fn not_coherent(&self, ino: InodeId) {
        self.coherent.remove(&ino);
    }

    /// What is cached above of `range` is good no more. Does not wait until it is gone: who asks
    /// may hold it.
    pub fn forget_behind(&self, ino: InodeId, range: Range<u64>) {
        self.not_coherent(ino);
        if let Some(cache) = self.cache() {
            // It is on its way.
            drop(cache.forget(ino, range));
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
