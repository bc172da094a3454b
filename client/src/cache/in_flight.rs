//! Changes of this mount that are about to be sent, or were and are not answered. Others may see
//! each of them already.
//!
//! Invariant (I6): what such a change is about is not answered from what was known before it.
//! Above, its attributes are not used either; names that are cached there stay until the answer: to
//! take them back needs the lock of their directory, which the kernel holds for the caller.

use super::leases::Leases;
use super::table::{Mode, Table};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::timeout;
use tracing::warn;
use weft_proto::planted::{self, Bug};
use weft_proto::v1::meta_request::Op;
use weft_proto::{Footprint, InodeId, v1};

/// A change waits so long at most for attributes to be forgotten above. That takes no lock, but may
/// come behind what waits for one.
pub(super) const FORGET_TIMEOUT: Duration = Duration::from_secs(1);

/// A change in flight, until this is dropped.
pub(crate) struct InFlight<'a> {
    leases: &'a Leases,
    inos: Vec<InodeId>,
    names: Vec<(InodeId, Bytes)>,
}

impl Leases {
    /// To be called before a change is sent, and its outcome to be dropped when the answer has been
    /// learned.
    pub async fn in_flight(&self, op: &Op) -> InFlight<'_> {
        let Footprint { names, changes, .. } = match op {
            // What was done here is shown here before, unless that was in a session that is over.
            Op::MakeFiles(_) | Op::Batch(v1::BatchOp { session: 0, .. }) => Footprint::default(),
            op => op.footprint(),
        };
        let inos = self.begin_change(changes, &names);
        let in_flight = InFlight { leases: self, inos, names };
        if let Some(above) = self.above.get().filter(|_| !in_flight.inos.is_empty()) {
            let forgotten = above.forget_attrs(&in_flight.inos, &in_flight.names);
            if timeout(FORGET_TIMEOUT, forgotten).await.is_err() {
                warn!("a change is sent while the kernel may still use what was before it");
            }
        }
        in_flight
    }

    /// Answers all inodes that a change may be seen at.
    fn begin_change(&self, changes: Vec<InodeId>, names: &[(InodeId, Bytes)]) -> Vec<InodeId> {
        let table = &mut *self.table.lock();
        let dirs = names.iter().map(|(dir, _)| *dir);
        let led_to = names.iter().filter_map(|(dir, name)| table.led_to(*dir, name));
        let inos: BTreeSet<_> = changes.into_iter().chain(dirs).chain(led_to).collect();
        for ino in &inos {
            table.in_flight.entry(*ino).or_default().changes += 1;
        }
        for (dir, name) in names {
            let names = &mut table.in_flight.entry(*dir).or_default().names;
            *names.entry(name.clone()).or_default() += 1;
        }
        inos.into_iter().collect()
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let in_flight = &mut self.leases.table.lock().in_flight;
        for (dir, name) in &self.names {
            let Some(of) = in_flight.get_mut(dir) else { continue };
            if let Some(changes) = of.names.get_mut(name) {
                *changes -= 1;
                if *changes == 0 {
                    of.names.remove(name);
                }
            }
        }
        for ino in &self.inos {
            let Some(of) = in_flight.get_mut(ino) else { continue };
            of.changes -= 1;
            if of.changes == 0 {
                in_flight.remove(ino);
            }
        }
    }
}

impl Table {
    /// Whether an inode is being changed, whoever sees it.
    pub(super) fn is_changing(&self, ino: InodeId) -> bool {
        self.in_flight.contains_key(&ino)
    }

    /// Whether a name is.
    pub(super) fn is_name_changing(&self, dir: InodeId, name: &[u8]) -> bool {
        self.in_flight.get(&dir).is_some_and(|of| of.names.contains_key(name))
    }

    /// Whether attributes of an inode may be other than they are known to be.
    pub(super) fn is_in_flight(&self, ino: InodeId) -> bool {
        self.is_changing(ino) && self.is_seen_by_others(ino)
    }

    /// Whether a name may lead elsewhere than it is known to.
    pub(super) fn is_name_in_flight(&self, dir: InodeId, name: &[u8]) -> bool {
        self.is_name_changing(dir, name) && self.is_seen_by_others(dir)
    }

    /// Others look at nothing that this mount has the right to write until it has given that back.
    fn is_seen_by_others(&self, ino: InodeId) -> bool {
        let held = self.inodes.get(&ino);
        !held.is_some_and(|held| held.mode == Mode::Write || held.flushing)
            && !planted::is(Bug::OldWhileChanging)
    }

    /// What a name is known to lead to.
    pub(super) fn led_to(&self, dir: InodeId, name: &[u8]) -> Option<InodeId> {
        self.inodes.get(&dir)?.names.get(name).copied().flatten()
    }
}
