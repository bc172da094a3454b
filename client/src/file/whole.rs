//! Changes of a file as a whole, of which several mounts may write ranges.
//!
//! Such a change has others give their ranges back, and holds `order` while it waits for that. If
//! something were buffered under ranges here meanwhile, their recall would wait for `order`, and
//! two mounts for each other. So nothing is: what is written is committed, after the change.

use super::inode::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::MutexGuard;
use tokio::time::timeout_at;
use weft_proto::{Error, ErrorKind, Result};

/// `order`, and nothing is buffered under ranges until this is dropped.
pub(super) struct Whole<'a> {
    _order: MutexGuard<'a, ()>,
    _counted: Counted<'a>,
}

struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl File {
    /// The file is to be changed as a whole: to be followed by a flush. Errors: `TimedOut` if what
    /// was written before is not committed in time.
    pub(super) async fn begin_whole(&self) -> Result<Whole<'_>> {
        self.wholes.fetch_add(1, Ordering::AcqRel);
        let counted = Counted(&self.wholes);
        let order = timeout_at(self.context.requests.deadline(), self.order.lock()).await;
        let order = order.map_err(|_| {
            let what = "what was written before is not committed yet";
            Error::new(ErrorKind::TimedOut, what)
        })?;
        Ok(Whole { _order: order, _counted: counted })
    }

    /// Whether something waits before a lease may be given back. Of a file of which ranges are
    /// held, not what was written under another right, which ended with its session: that comes
    /// later, if nobody has changed the file, and its commit may be waiting for others' ranges.
    pub fn owes_recall(&self) -> bool {
        let state = self.state.lock();
        let right = state.buffered_under.right.filter(|_| state.is_dirty());
        let leases = &self.context.leases;
        right.is_some_and(|r| leases.keeps(self.ino, r) || !leases.holds_ranges(self.ino))
    }

    /// Whether something waits that was written under ranges.
    pub(super) fn owes_ranges(&self) -> bool {
        let state = self.state.lock();
        let right = state.buffered_under.right.filter(|_| state.is_dirty());
        right.is_some_and(|right| self.context.leases.is_of_ranges(self.ino, right))
    }
}
