//! The content that is cached above this library, in the kernel's pages: which of it is good.

use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

/// Which version of an inode's content is cached above.
#[derive(Default)]
pub(crate) struct Coherence {
    version: AtomicU64,
    /// What was cached before is known to be gone. Before that, whoever opens the inode has to
    /// forget it, too: the cache does so only when it has the answer to an open.
    forgotten: AtomicBool,
}

impl Coherence {
    /// The cache is through with an open that said not to keep what was cached.
    pub fn forgotten(&self) {
        if !self.forgotten.load(Ordering::Relaxed) {
            self.forgotten.store(true, Ordering::Release);
        }
    }
}

/// What is known of the cache above.
pub(crate) struct Pages {
    coherent: quick_cache::sync::Cache<InodeId, Arc<Coherence>>,
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
        if after == before + 1
            && let Some(coherence) = self.coherent.get(&ino)
        {
            let (is, fails) = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = coherence.version.compare_exchange(before, after, is, fails);
        }
    }

    /// The inode was opened at `version`. Answers whether what was cached before is of that, and
    /// what to tell when the cache is through with this open.
    pub fn note_open(&self, ino: InodeId, version: u64) -> (bool, Arc<Coherence>) {
        let known = self.coherent.get(&ino);
        if let Some(known) = known.filter(|known| known.version.load(Ordering::Acquire) == version)
        {
            return (known.forgotten.load(Ordering::Acquire), known);
        }
        let version = AtomicU64::new(version);
        let coherence = Arc::new(Coherence { version, forgotten: AtomicBool::new(false) });
        self.coherent.insert(ino, coherence.clone());
        (false, coherence)
    }
}
