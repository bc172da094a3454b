//! Soft state of the leader: what it knows and does not replicate. It goes with its term, and
//! sessions and targets tell the next leader of theirs. What compaction counts is of the process.

pub mod compaction;
pub mod hot;
pub mod leases;
pub mod lock_counts;
pub mod lock_waits;
mod rate;
pub mod repair;
pub mod sessions;
pub mod targets;

use parking_lot::Mutex;
use sessions::Sessions;

/// What is known of sessions. Has one owner; nobody holds it while waiting for anything.
#[derive(Default)]
pub struct SoftState(Mutex<Sessions>);

impl SoftState {
    /// Looks at it, or changes it, at one moment.
    pub fn with<T>(&self, f: impl FnOnce(&mut Sessions) -> T) -> T {
        f(&mut self.0.lock())
    }
}
