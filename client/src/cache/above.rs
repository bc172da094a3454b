//! What may be cached above this library of names and attributes, and when it is taken back.
//!
//! Invariants (I6): what may be cached ([`Leases::has_name`], [`Leases::attr_to_cache`]) is known
//! at that moment under a lease that is not on its way back, and is taken back before the lease is,
//! however it comes to that. Whoever caches notes it first and asks afterwards, so that a recall
//! that comes between the two finds it.

use super::in_flight::FORGET_TIMEOUT;
use super::leases::Leases;
use super::name_cache::{Forgotten, NameCache};
use crate::types::Attr;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tracing::warn;
use weft_proto::InodeId;

/// Attributes of an inode that this mount has changed are not cached for so long: who caches them
/// has to be told of each change.
const CHANGING_INTERVAL: Duration = Duration::from_secs(1);

impl Leases {
    /// Tells what caches names and attributes above this library. Only the first is taken.
    pub fn set_name_cache(&self, cache: Arc<dyn NameCache>) {
        let _ = self.above.set(cache);
    }

    /// Whether what caches above this library may open an inode without its name.
    pub fn is_known_above(&self, ino: InodeId) -> bool {
        self.above.get().is_some_and(|above| above.may_know(ino))
    }

    /// Whether a name leads to this inode, or to none, as a lease says.
    pub fn has_name(&self, dir: InodeId, name: &[u8], ino: Option<InodeId>) -> bool {
        let table = self.table.lock();
        let held = table.inodes.get(&dir).filter(|held| !held.leaving);
        let known = held.is_some_and(|held| match held.names.get(name) {
            Some(known) => *known == ino,
            None => held.complete && ino.is_none(),
        });
        let known = known && !table.is_name_changing(dir, name);
        drop(table);
        known && self.live()
    }

    /// Attributes of an inode that this mount is not changing, if they are known, and for how long
    /// they may be cached: no lease is certain to last longer.
    pub fn attr_to_cache(&self, ino: InodeId) -> Option<(Attr, Duration)> {
        let table = self.table.lock();
        let held = table.inodes.get(&ino).filter(|held| !held.leaving)?;
        let rests = held.changed.is_none_or(|at| at.elapsed() >= CHANGING_INTERVAL);
        let attr = held.attr.filter(|_| rests && !table.is_changing(ino))?;
        drop(table);
        let left = self.left();
        (!left.is_zero()).then_some((attr, left))
    }

    /// Has the attributes of an inode and the names in it be forgotten above.
    pub fn forget_above(&self, ino: InodeId) -> Forgotten {
        match self.above.get() {
            Some(above) => above.forget(ino),
            None => Box::pin(ready(())),
        }
    }

    /// The same of all inodes.
    pub fn forget_all_above(&self) -> Forgotten {
        match self.above.get() {
            Some(above) => above.forget_all(),
            None => Box::pin(ready(())),
        }
    }

    /// Attributes of an inode are other than they were, by a change that whoever caches them does
    /// not take for one. Returns when they are used no more.
    pub async fn forget_attr_settled(&self, ino: InodeId) {
        if let Some(above) = self.above.get() {
            let forgotten = above.forget_attrs(&[ino], &[]);
            if timeout(FORGET_TIMEOUT, forgotten).await.is_err() {
                warn!("a change is answered while the kernel may still use what was before it");
            }
        }
    }

    /// Attributes of an inode that are cached above are old, or about to be.
    pub fn forget_attr_above(&self, ino: InodeId) {
        if let Some(above) = self.above.get() {
            // It goes on by itself.
            drop(above.forget_attrs(&[ino], &[]));
        }
    }
}
