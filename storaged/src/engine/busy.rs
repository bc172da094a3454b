//! At most one change of a chunk at a time: a second put or delete of it waits for the first.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::Notify;
use weft_proto::ChunkId;

#[derive(Default, Clone)]
pub(super) struct Busy(Arc<Inner>);

#[derive(Default)]
struct Inner {
    ids: Mutex<HashSet<ChunkId>>,
    left: Notify,
}

/// Holds chunks until dropped.
pub(super) struct Hold {
    busy: Arc<Inner>,
    ids: Vec<ChunkId>,
}

impl Busy {
    /// Waits until nobody changes any of these chunks, then holds them all at once.
    pub async fn hold(&self, ids: Vec<ChunkId>) -> Hold {
        loop {
            let left = self.0.left.notified();
            {
                let mut held = self.0.ids.lock();
                if ids.iter().all(|id| !held.contains(id)) {
                    held.extend(&ids);
                    return Hold { busy: self.0.clone(), ids };
                }
            }
            left.await;
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        {
            let mut held = self.busy.ids.lock();
            for id in &self.ids {
                held.remove(id);
            }
        }
        self.busy.left.notify_waiters();
    }
}
