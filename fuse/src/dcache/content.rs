//! The kernel's cached pages.

use super::Dcache;
use crate::notifier::{Notifier, page_size};
use std::future::ready;
use std::ops::Range;
use weft_client::{ContentCache, Forgotten};
use weft_proto::InodeId;

/// Content that the kernel has cached, which is forgotten in order with attributes that it is told.
pub struct Content {
    dcache: Dcache,
    notifier: Notifier,
}

impl Content {
    pub fn new(dcache: Dcache, notifier: Notifier) -> Self {
        Self { dcache, notifier }
    }
}

impl ContentCache for Content {
    fn forget(&self, ino: InodeId, range: Range<u64>) -> Forgotten {
        let far = |at: u64| i64::try_from(at).ok();
        let (start, end) = (far(range.start), far(range.end));
        let Some(start) = start.filter(|_| !range.is_empty()) else {
            return Box::pin(ready(()));
        };
        let range = (start, end.map_or(0, |end| end - start));
        self.dcache.0.send(&self.notifier, ino.0, range)
    }

    fn page(&self) -> u64 {
        page_size()
    }
}
