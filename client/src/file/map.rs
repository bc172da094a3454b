//! The right to map a file to write, which one mount has at a time.

use super::table::Files;
use crate::types::HandleId;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tracing::debug;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{InodeId, v1};

/// The last descriptor of a handle was closed so long ago at most, if the end of that is on its
/// way.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

impl Files {
    /// The caller may map a file to write through this handle. Answers whether this mount has the
    /// right to that, which one has at a time.
    pub async fn map(&self, id: HandleId) -> bool {
        let Ok(handle) = self.handle(id) else { return false };
        let (ino, opens) = (handle.file.ino, &self.context.opens);
        // Before the lease is looked at: whoever takes that back asks whether it is mapped.
        let begun = opens.begin_to_map(ino);
        let granted = self.context.leases.may_map(ino)
            || match self.context.requests.ask(Op::Map(v1::MapOp { ino: ino.0 })).await {
                Ok(Reply::Map(map)) => map.granted,
                Ok(_) => false,
                Err(error) => {
                    debug!(%ino, %error, "it is not known who maps a file");
                    false
                }
            };
        // What is cached by now was filled under a lease to read.
        let first = !opens.may_be_mapped(ino);
        let taken = if first && !granted { Some(handle.file.take_back().await) } else { None };
        handle.maps.store(true, Ordering::Relaxed);
        let entitled = opens.map(ino, begun, granted);
        if first && !entitled && taken.is_none() {
            // What was granted went with its session.
            drop(handle.file.take_back().await);
        }
        drop(taken);
        entitled
    }

    /// Whether the caller needs the right to map a file to write. Of a descriptor that was closed,
    /// the end may still be on its way from the caller: it is waited for.
    pub async fn needs_map(&self, ino: InodeId) -> bool {
        let mut ends = self.context.opens.unmapped();
        let until = Instant::now() + CLOSE_TIMEOUT;
        loop {
            ends.borrow_and_update();
            if !self.context.opens.maps(ino) {
                return false;
            }
            let in_use = self.handles.read().values().any(|handle| {
                let maps = handle.maps.load(Ordering::Relaxed);
                handle.file.ino == ino && maps && !handle.closing.load(Ordering::Relaxed)
            });
            if in_use || timeout_at(until, ends.changed()).await.is_err() {
                return true;
            }
        }
    }
}
