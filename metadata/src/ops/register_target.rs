//! Makes a target known, or learns where a known one is now.

use crate::operation::{Context, Fault, Operation, Reply, refuse};
use crate::registration;
use crate::schema::{self, Cluster, Number, Tag};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::cluster;
use v1::TargetState;
use weft_proto::planted::{self, Bug};
use weft_proto::{ErrorKind, Uuid, v1};

/// How far above those that are given out the number of a target may be that another restore of the
/// same backup has given out.
const MAX_AHEAD: u32 = 1 << 18;

pub(crate) struct Plan {
    cluster: Cluster,
    given: v1::TargetInfo,
    known: Option<v1::TargetInfo>,
    /// The number that it had before the group was begun anew from a backup, which does not know
    /// it. A target keeps its number for ever.
    kept: Option<u32>,
}

impl Operation for v1::RegisterTargetEntry {
    type Plan = Plan;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Plan, Fault> {
        let cluster = cluster::existing(state)?;
        let Some(given) = self.target.clone() else {
            return refuse(ErrorKind::Protocol, "registration without a target");
        };
        if Uuid::from_slice(&given.uuid).is_none_or(|id| id == Uuid::NIL) {
            return refuse(ErrorKind::Invalid, "a target needs an identity of 16 random bytes");
        }
        if let Some(Number { value: id }) = state.load(&schema::forgotten(&given.uuid))? {
            return Err(registration::forgotten(id).into());
        }
        let targets = cluster::targets(state)?;
        let may_be = 1..state.counters()?.next_target.saturating_add(MAX_AHEAD);
        let restored = cluster.incarnation != 0 && may_be.contains(&given.id);
        let mut taken = targets.iter().any(|t| t.id == given.id);
        if restored && !taken {
            state.records(schema::all(Tag::Forgotten), |_, Number { value }| {
                taken |= value == u64::from(given.id);
                Ok(!taken)
            })?;
        }
        let kept = (restored && !taken).then_some(given.id);
        let is_place = |t: &v1::TargetInfo| {
            planted::is(Bug::BlankTargetKnown)
                && (&t.daemon, &t.path) == (&given.daemon, &given.path)
        };
        let known = targets.into_iter().find(|t| t.uuid == given.uuid || is_place(t));
        Ok(Plan { cluster, given, known, kept })
    }

    fn apply(&self, plan: Plan, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        let Plan { cluster, given, known, kept } = plan;
        let target = match &known {
            // Its state is decided by heartbeats, not by where it is.
            Some(old) => v1::TargetInfo {
                id: old.id,
                state: old.state,
                full: old.full,
                held_out: old.held_out,
                draining: old.draining,
                weight: old.weight,
                down_ns: old.down_ns,
                ..given
            },
            None => {
                let id = match kept {
                    Some(id) => tx.edit_counters(|c| {
                        c.next_target = c.next_target.max(id + 1);
                        id
                    })?,
                    None => tx.edit_counters(|c| {
                        c.next_target += 1;
                        c.next_target - 1
                    })?,
                };
                let state = match given.state() {
                    TargetState::Unknown => TargetState::Up,
                    state => state,
                };
                v1::TargetInfo {
                    id,
                    state: state.into(),
                    held_out: false,
                    draining: false,
                    weight: 0,
                    down_ns: 0,
                    ..given
                }
            }
        };
        if known.as_ref() != Some(&target) {
            tx.put(schema::target(target.id), &target);
            cluster::bump(tx, cluster);
        }
        Ok(Reply::Target(target))
    }
}
