//! What is known of locks beside their records.

use parking_lot::Mutex;
use std::collections::HashSet;
use weft_proto::v1::Lock;

/// Most inodes that are known to be locked to read only.
const MOST: usize = 1 << 16;

/// Inodes of which all locks of one sort are to read, so that another such lock needs no look at
/// each of them: thousands of readers of one file may lock it one after the other.
///
/// Belongs to the newest state. Invariant: what is here has no lock to write.
#[derive(Default)]
pub(crate) struct ReadLocked(Mutex<HashSet<(u64, bool)>>);

impl ReadLocked {
    pub fn has(&self, lock: &Lock) -> bool {
        self.0.lock().contains(&(lock.ino, lock.flock))
    }

    /// All records were looked at.
    pub fn note(&self, lock: &Lock) {
        let mut all = self.0.lock();
        if all.len() >= MOST {
            all.clear();
        }
        all.insert((lock.ino, lock.flock));
    }

    /// One is about to be locked to write.
    pub fn end(&self, lock: &Lock) {
        self.0.lock().remove(&(lock.ino, lock.flock));
    }

    /// The state is another.
    pub fn forget(&self) {
        self.0.lock().clear();
    }
}
