//! What all files of a mount share.

use crate::budget::Budget;
use crate::cache::{Leases, Pages};
use crate::locks::Locks;
use crate::meta::Sessions;
use crate::namespace::{ChangeLog, Opens, Requests};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::Semaphore;
use weft_hot::Hot;
use weft_segments::Segments;

pub(crate) struct Context {
    pub requests: Arc<Requests>,
    pub log: Arc<ChangeLog>,
    /// Closes wait until what was written is committed.
    pub close_sync: bool,
    pub opens: Arc<Opens>,
    pub locks: Arc<Locks>,
    pub sessions: Arc<Sessions>,
    pub leases: Arc<Leases>,
    pub pages: Arc<Pages>,
    pub segments: Arc<Segments>,
    /// Segments that are kept on a drive of this machine, if that is asked for and it is known of
    /// which cluster they are.
    pub hot: Arc<OnceLock<Arc<Hot>>>,
    pub budget: Arc<Budget>,
    /// Room for read-ahead, bytes.
    pub ahead: Arc<Semaphore>,
    /// Most bytes that one sequential reader has read ahead.
    pub read_ahead_bytes: u64,
    /// The wall clock: nanoseconds since 1970.
    pub clock: fn() -> i64,
    /// The mount is ending: nothing is taken in any more. Looked at under the lock of a file's
    /// state, so that what was taken in before is seen by who flushes all files after it was set.
    pub closing: AtomicBool,
}

impl Context {
    /// Whether nothing is taken in any more.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Whether what is written may not find room: who writes has to wait, to hear of that.
    pub fn is_short_of_room(&self) -> bool {
        self.log.is_low_on_room() || self.segments.map().current().has_full_targets
    }
}
