//! Changes of this mount that were sent and are not answered. Others may see each of them already.
//!
//! Invariant (I6): what such a change is about is not answered from what was known before it.

use super::above::CHANGING_INTERVAL;
use super::leases::Leases;
use super::table::{Mode, Table};
use bytes::Bytes;
use std::collections::BTreeSet;
use weft_proto::planted::{self, Bug};
use weft_proto::v1::meta_request::Op;
use weft_proto::{Footprint, InodeId, v1};

/// A change in flight, until this is dropped.
pub(crate) struct InFlight<'a> {
    leases: &'a Leases,
    inos: BTreeSet<InodeId>,
    names: Vec<(InodeId, Bytes)>,
}

impl Leases {
    /// To be called before a change is sent, and to be dropped when the answer has been learned.
    pub fn in_flight(&self, op: &Op) -> InFlight<'_> {
        let Footprint { names, changes, .. } = match op {
            // What was done here is shown here before, unless that was in a session that is over.
            Op::MakeFiles(_) | Op::Batch(v1::BatchOp { session: 0, .. }) => Footprint::default(),
            op => op.footprint(),
        };
        let table = &mut *self.table.lock();
        let dirs = names.iter().map(|(dir, _)| *dir);
        let led_to = names.iter().filter_map(|(dir, name)| table.led_to(*dir, name));
        let inos: BTreeSet<_> = changes.into_iter().chain(dirs).chain(led_to).collect();
        for ino in &inos {
            table.in_flight.entry(*ino).or_default().changes += 1;
            if table.is_in_flight(*ino) && table.may_be_cached_above(*ino) {
                self.forget_attr_above(*ino);
            }
        }
        for (dir, name) in &names {
            let names = &mut table.in_flight.entry(*dir).or_default().names;
            *names.entry(name.clone()).or_default() += 1;
        }
        InFlight { leases: self, inos, names }
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
    /// Whether attributes of an inode may be other than they are known to be.
    pub(super) fn is_in_flight(&self, ino: InodeId) -> bool {
        self.in_flight.contains_key(&ino) && self.is_seen_by_others(ino)
    }

    /// Whether a name may lead elsewhere than it is known to.
    pub(super) fn is_name_in_flight(&self, dir: InodeId, name: &[u8]) -> bool {
        let of = self.in_flight.get(&dir);
        of.is_some_and(|of| of.names.contains_key(name)) && self.is_seen_by_others(dir)
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

    fn may_be_cached_above(&self, ino: InodeId) -> bool {
        let held = self.inodes.get(&ino);
        held.is_none_or(|held| held.changed.is_none_or(|at| at.elapsed() >= CHANGING_INTERVAL))
    }
}
