//! What is open on a mount, and the failures that nobody was told, from one process to the next.

use super::log::ChangeLog;
use super::lost::Lost;
use super::opens::Opens;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_proto::{InodeId, v1};

impl Opens {
    /// The number of the last open, if the leader was told of every close, and what is open is so
    /// by `handles` handles.
    pub fn at_rest(&self, handles: usize) -> Option<u64> {
        let told = Arc::strong_count(&self.telling) == 1;
        let opens = self.table.lock().count();
        (told && opens == handles).then(|| self.last.load(Ordering::Relaxed))
    }

    /// Goes on behind the last number of another process.
    pub fn resume(&self, last: u64) {
        self.last.store(last, Ordering::Relaxed);
    }

    /// An inode is open once more, as the leader may know; and mapped by that, if `maps`. Its
    /// newest open counts as the last of the other process: the leader may have been told of one
    /// that is closed since, and takes no close of an older one.
    pub fn adopt(&self, ino: InodeId, maps: bool) {
        let mut table = self.table.lock();
        table.begin(ino, self.last.load(Ordering::Relaxed));
        table.tell(ino);
        if let Some(open) = table.0.get_mut(&ino).filter(|_| maps) {
            open.both += 1;
        }
    }

    /// Whether this mount has the right to map an inode to write.
    pub fn is_entitled(&self, ino: InodeId) -> bool {
        self.table.lock().0.get(&ino).is_some_and(|open| open.entitled)
    }

    /// This mount has the right to map an inode, which is open, to write.
    pub fn entitle(&self, ino: InodeId) {
        if let Some(open) = self.table.lock().0.get_mut(&ino) {
            open.entitled = open.both > 0;
        }
    }
}

impl ChangeLog {
    /// Puts what is lost, and nobody was told, into what the next process goes on with. Answers
    /// whether there is nothing that the group, or a handle, has not heard of.
    pub fn hand_over(&self, state: &mut v1::ClientState) -> bool {
        let lost = self.rest();
        lost.inspect(|lost| lost.hand_over(state)).is_some()
    }

    /// Takes [`Self::hand_over`] over.
    pub fn adopt(&self, state: &mut v1::ClientState) {
        self.table.lock().lost = Lost::adopt(state);
    }
}
