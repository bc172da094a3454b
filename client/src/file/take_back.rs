//! What is cached above this library of a file's content, in the kernel's pages, and how it is
//! taken back.
//!
//! Who fills that cache, or files there what it writes, holds the pages until its request is
//! answered; to take these back is to wait for that, and the request may wait for whoever takes
//! them back. So they are left out, also where the cache waits for one that had not come here yet,
//! and a read is answered only with what it read after. Only a write of a file in whose pages
//! programs store goes on, and is waited for: when the rest is forgotten, since the next one begins
//! before the kernel comes past its pages, and takes hold of those that come then.
//!
//! Invariants (I6): when everything was taken back ([`File::take_back`]), nothing that was read
//! before is used any more, and until [`Taken`] is dropped nothing fills the cache again.

use super::inode::File;
use super::write::WritePast;
use crate::ContentCache;
use crate::cache::ALL;
use futures_util::future::join_all;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tracing::warn;

/// Whether the cache waits for a request that came meanwhile is looked at after so long.
const MIN_LOOK_INTERVAL: Duration = Duration::from_millis(2);
/// The same is looked for again at least so often.
const MAX_LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// It is told that this takes longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Nothing is cached, and nothing fills the cache until this is dropped.
pub(crate) struct Taken(Arc<File>);

impl Taken {
    pub fn is_of(&self, file: &Arc<File>) -> bool {
        Arc::ptr_eq(&self.0, file)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.above.reopen();
    }
}

impl File {
    /// Takes back all that is cached above of the content.
    pub async fn take_back(self: &Arc<Self>) -> Taken {
        self.take(false).await
    }

    /// The same while the lease is held under which programs may have stored there, also since the
    /// cache began to write: what it writes now ends first.
    pub async fn take_mapped_back(self: &Arc<Self>) -> Taken {
        self.take(true).await
    }

    async fn take(self: &Arc<Self>, mapped: bool) -> Taken {
        let losses = self.above.close();
        let taken = Taken(self.clone());
        self.context.pages.not_coherent(self.ino);
        if let Some(cache) = self.context.pages.cache() {
            self.take_from(&**cache, mapped).await;
        }
        self.above.clear(losses);
        taken
    }

    async fn take_from(&self, cache: &dyn ContentCache, mapped: bool) {
        let _turn = self.above.turn.lock().await;
        let page = cache.page();
        let (mut rest, mut written) = self.above.idle(page);
        for range in &written {
            // What can be had of them now; the rest when they have ended.
            drop(cache.forget(self.ino, range.clone()));
        }
        loop {
            self.forget_all(cache, rest, mapped, &mut written).await;
            if !mapped || written.is_empty() {
                return;
            }
            // What is written now may be of whole pages, and must not come after what others write.
            let mut last = self.above.let_on(&written, page);
            let ended = |last| timeout(MAX_LOOK_INTERVAL, self.above.written(&written, page, last));
            while ended(last).await.is_err() {
                last = self.above.let_on(&written, page);
            }
            rest = std::mem::take(&mut written);
            self.above.clear_left(&rest);
        }
    }

    /// Of a file that is `mapped`, what is held by writes that wait is left out, and comes to
    /// `written`.
    async fn forget_all(
        &self,
        cache: &dyn ContentCache,
        mut rest: Vec<Range<u64>>,
        mapped: bool,
        written: &mut Vec<Range<u64>>,
    ) {
        let page = cache.page();
        loop {
            if rest.is_empty() {
                rest = self.above.left(page, mapped);
            }
            if rest.is_empty() {
                return;
            }
            let forgotten = rest.iter().map(|range| cache.forget(self.ino, range.clone()));
            let mut forgotten = join_all(forgotten);
            let (begun, mut pause, mut told) = (Instant::now(), MIN_LOOK_INTERVAL, false);
            let besides = loop {
                if timeout(pause, &mut forgotten).await.is_ok() {
                    break None;
                }
                let (free, writes) = self.above.besides(&rest, page, mapped);
                if free != rest {
                    break Some((free, writes));
                }
                if begun.elapsed() > PATIENCE && !std::mem::replace(&mut told, true) {
                    let ino = self.ino;
                    warn!(%ino, "cached content is being forgotten still: a request holds it");
                }
                if mapped && pause == MAX_LOOK_INTERVAL {
                    // What holds it may come only after one of these.
                    self.above.let_on(written, page);
                }
                pause = (pause * 2).min(MAX_LOOK_INTERVAL);
            };
            rest = match besides {
                Some((free, writes)) => {
                    // What can be had of them now.
                    for range in &writes {
                        drop(cache.forget(self.ino, range.clone()));
                    }
                    written.extend(writes.into_iter().filter(|_| mapped));
                    free
                }
                None => Vec::new(),
            };
        }
    }

    /// `range` was written past the cache above. Answers when what was cached of it is gone; `None`
    /// if nothing was.
    pub fn forget_written(
        self: &Arc<Self>,
        range: Range<u64>,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let cache = self.context.pages.cache()?;
        let stale = self.above.stale(range)?;
        let (file, all) = (self.clone(), stale == ALL);
        let forgotten = cache.forget(self.ino, stale);
        Some(async move {
            forgotten.await;
            if all {
                file.above.emptied();
            }
        })
    }

    /// An append was filed in `range` of the cache above, where the caller believed that the file
    /// ends, and may be elsewhere. Who wrote it holds pages there, and is answered first; until
    /// they are gone nothing comes back from there that would go over what is in the file.
    pub fn forget_misfiled(self: &Arc<Self>, range: Range<u64>, past: WritePast) {
        self.context.pages.not_coherent(self.ino);
        if let Some(forgotten) = self.forget_written(range) {
            tokio::spawn(async move {
                forgotten.await;
                drop(past);
            });
        }
    }
}
