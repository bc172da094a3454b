//! Takes a target that is gone out of the map, for good.
//!
//! Invariants: no placement group names a target that is not there; a number is given to one target
//! only, for ever; and what was forgotten is not taken in again.
//!
//! Seats of groups that hold segments have been given to others by then, which have made what it
//! held. Groups that hold nothing go with it, where nothing new is written to them: what is under
//! way to one is refused, and written once more elsewhere, as where a group is dropped otherwise.

use crate::known::Known;
use crate::operation::{Context, EMPTY, Fault, Operation, Reply, refuse};
use crate::schema::{self, Cluster, Group, Number, Tag};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::cluster;
use v1::TargetState;
use weft_proto::{ErrorKind, v1};

pub(crate) struct Plan {
    cluster: Cluster,
    target: v1::TargetInfo,
    /// Groups that go with it.
    dropped: Vec<u32>,
}

impl Operation for v1::ForgetTargetEntry {
    type Plan = Plan;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Plan, Fault> {
        let (cluster, id) = (cluster::existing(state)?, self.target);
        let Some(target) = state.load::<v1::TargetInfo>(&schema::target(id))? else {
            return refuse(ErrorKind::NotFound, format!("there is no target {id}"));
        };
        match target.state() {
            TargetState::Out => {}
            TargetState::Down => {
                let what = format!(
                    "target {id} is down, and may come back: weft target out {id} gives it up, and \
                     has what it held made at others"
                );
                return refuse(ErrorKind::Invalid, what);
            }
            _ => {
                let what = format!(
                    "target {id} serves: weft target drain {id} moves what it holds to others, \
                     weft target remove takes it from its daemon, and weft target out {id} gives \
                     it up"
                );
                return refuse(ErrorKind::Invalid, what);
            }
        }
        let (mut dropped, mut holding, mut open) = (Vec::new(), 0u64, 0u64);
        state.records(schema::all(Tag::Group), |_, group: Group| {
            if names(&group.info, id) {
                match (group.info.retired, group.segments) {
                    (true, 0) => dropped.push(group.info.id),
                    (_, 0) => open += 1,
                    _ => holding += 1,
                }
            }
            Ok(true)
        })?;
        if holding + open > 0 {
            let what = format!(
                "target {id} has a place in {} placement groups, of which {holding} hold data: \
                 what it held is not made at others yet. weft status says how far that is, and \
                 what keeps it; where there are too few others: weft target add",
                holding + open
            );
            return refuse(ErrorKind::Busy, what);
        }
        Ok(Plan { cluster, target, dropped })
    }

    fn apply(&self, plan: Plan, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        let Plan { cluster, target, dropped } = plan;
        super::raise_level(tx, Known::Forgetting as u32)?;
        for group in dropped {
            tx.delete(schema::group(group));
        }
        tx.delete(schema::target(target.id));
        tx.put(schema::forgotten(&target.uuid), &Number { value: target.id.into() });
        cluster::bump(tx, cluster);
        Ok(EMPTY)
    }
}

/// Whether the target has a seat of the group, or is being given one.
fn names(group: &v1::PgInfo, target: u32) -> bool {
    group.targets.contains(&target) || group.moves.iter().any(|m| m.to == target)
}
