//! Owners of locks, from one process that serves a mount to the next.
//!
//! Invariant: the group knows every lock that goes along, and no request about one is under way.

use super::entry::{Gate, Holder};
use super::remote::Locks;
use crate::types::HandleId;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_proto::locks::Ranges;
use weft_proto::{InodeId, v1};

impl Locks {
    /// Tells the leader of all locks that it does not know.
    pub async fn publish_each(self: &Arc<Self>) {
        for ino in self.table.locked() {
            self.publish(ino).await;
        }
    }

    /// The last name of a place in a queue, and the owners of locks; `None` while a request about
    /// one is under way, or the leader does not know all.
    pub fn at_rest(&self) -> Option<(u64, Vec<v1::LockHolder>)> {
        if Arc::strong_count(&self.leaving) > 1 {
            return None;
        }
        let holders = self.table.at_rest()?;
        Some((self.tickets.load(Ordering::Relaxed), holders))
    }

    /// Takes [`Self::at_rest`] over, in the session of now.
    pub fn adopt(&self, last_ticket: u64, holders: Vec<v1::LockHolder>) {
        self.tickets.store(last_ticket, Ordering::Relaxed);
        for holder in holders {
            let entry = Holder {
                owner: (holder.flock, holder.owner),
                session: self.group.sessions.current(),
                held: true,
                here: Ranges::default(),
                told: true,
                doubtful: holder.lost,
                handles: holder.handles.into_iter().map(HandleId).collect(),
                asking: 0,
                gate: Gate::default(),
            };
            self.table.adopt(InodeId(holder.ino), entry);
        }
    }
}
