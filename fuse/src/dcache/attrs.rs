//! Attributes that the kernel is given, and what it follows of itself.

use super::Dcache;
use std::time::Duration;
use tokio::time::timeout;
use tracing::warn;
use weft_client::{Attr, FileKind, Filesystem, NameCache};
use weft_proto::{InodeId, Result};

/// A change waits so long at most for attributes that were told before it.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(1);
/// Attributes are asked for so often at most while a directory is closed again and again.
const MAX_TRIES: usize = 16;

impl Dcache {
    /// Attributes, and for how long the kernel may use them without asking.
    pub async fn attr(
        &self,
        fs: &Filesystem,
        ino: InodeId,
        thread: u32,
    ) -> Result<(Attr, Duration)> {
        let mut tries = 0;
        let found = loop {
            let opened = self.0.closed.opened(ino.0, thread).await;
            let found = fs.get_attr(ino).await?;
            tries += 1;
            // It may have been closed meanwhile.
            if !opened || !self.0.closed.has(ino.0) || tries == MAX_TRIES {
                break found;
            }
        };
        Ok(self.give_attr(found, thread, || fs.attr_to_cache(ino)))
    }

    /// Attributes that this thread is told, and for how long the kernel may use them: what is
    /// `known` of them and may be used, or what was `found`.
    pub(super) fn give_attr(
        &self,
        found: Attr,
        thread: u32,
        known: impl Fn() -> Option<(Attr, Duration)>,
    ) -> (Attr, Duration) {
        const SET_IDS: u32 = libc::S_ISUID | libc::S_ISGID;
        let ino = found.ino.0;
        let may = self.gives(|_| true) && known().is_some();
        if !may || !self.0.table.lock().give_attr(ino, thread) {
            return (found, Duration::ZERO);
        }
        // A write takes the bits from a program that the kernel would go on to see them of.
        let is_safe = |attr: &Attr| attr.mode & SET_IDS == 0 || attr.kind == FileKind::Directory;
        // It may have been recalled, or changed, meanwhile.
        let known = known().filter(|(attr, _)| is_safe(attr));
        let known = known.filter(|_| !self.0.closed.has(ino) && self.gives(|_| true));
        known.unwrap_or((found, Duration::ZERO))
    }

    /// Returns when nobody is told any more what attributes of these were before a request changed
    /// them: to be waited for before that is answered.
    pub async fn followed(&self, inos: &[InodeId]) {
        let inos = inos.iter().map(|ino| ino.0).collect();
        if timeout(FOLLOW_TIMEOUT, self.0.closed.gone(inos)).await.is_err() {
            warn!("a change is answered while the kernel may still be told what was before it");
        }
    }

    /// A request of this mount has changed access control lists, and with them the mode.
    pub async fn set_list(&self, ino: InodeId) {
        NameCache::followed(self, ino);
        self.followed(&[ino]).await;
    }
}
