//! Gives seats of placement groups to other targets. A move begins, chunks are made at the other
//! target, and it is finished when all are; or it is cancelled.
//!
//! Invariant: from the beginning of its first move on, a group is sealed: no new segment is
//! committed to it, for ever. So what is to be made at the other target only becomes less, and what
//! a client had on its way to the former target when the seat was given away is refused, and
//! written again elsewhere.

use crate::operation::{Context, EMPTY, Fault, Operation, Reply, refuse};
use crate::schema::{self, Cluster, Group};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::cluster;
use std::collections::BTreeMap;
use v1::TargetState;
use v1::move_seats_entry::{Change, Step};
use weft_proto::{ErrorKind, v1};

/// Most changes in one entry: each rewrites the record of a group.
pub(crate) const MAX_MOVES: usize = 4096;

impl Operation for v1::MoveSeatsEntry {
    /// The groups that change, as they will be.
    type Plan = (Cluster, Vec<Group>);

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Self::Plan, Fault> {
        let cluster = cluster::existing(state)?;
        if self.changes.len() > MAX_MOVES {
            return refuse(
                ErrorKind::Invalid,
                format!("{} moves in one entry, over {MAX_MOVES}", self.changes.len()),
            );
        }
        let mut changed: BTreeMap<u32, Group> = BTreeMap::new();
        for change in &self.changes {
            let group = match changed.remove(&change.pg) {
                Some(group) => group,
                None => match state.load(&schema::group(change.pg))? {
                    Some(group) => group,
                    None => {
                        let what = format!("placement group {} does not exist", change.pg);
                        return refuse(ErrorKind::NotFound, what);
                    }
                },
            };
            changed.insert(change.pg, carry_out(state, group, change)?);
        }
        Ok((cluster, changed.into_values().collect()))
    }

    fn apply(&self, plan: Self::Plan, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        let (cluster, changed) = plan;
        for group in &changed {
            tx.put(schema::group(group.info.id), group);
        }
        if !changed.is_empty() {
            cluster::bump(tx, cluster);
        }
        Ok(EMPTY)
    }
}

/// The group as it will be.
fn carry_out(state: &dyn Read, mut group: Group, change: &Change) -> Result<Group, Fault> {
    let id = group.info.id;
    let bad = |what: String| refuse(ErrorKind::Invalid, format!("placement group {id}: {what}"));
    let Some(wanted) = change.r#move else { return bad("a change without a move".into()) };
    let v1::SeatMove { seat, to, .. } = wanted;
    let begun = group.info.moves.iter().position(|known| (known.seat, known.to) == (seat, to));
    match change.step() {
        Step::Begin => {
            if !group.info.retired {
                return bad("takes new segments".into());
            }
            if group.info.moves.iter().any(|known| known.seat == seat || known.to == to) {
                return bad(format!("seat {seat} or target {to} is in a move already"));
            }
            if seat as usize >= group.info.targets.len() || group.info.targets.contains(&to) {
                return bad(format!("there is no seat {seat}, or target {to} has one"));
            }
            match state.load::<v1::TargetInfo>(&schema::target(to))? {
                Some(target) if target.state() != TargetState::Out => {}
                _ => return bad(format!("target {to} does not exist, or was given up")),
            }
            group.info.moves.push(wanted);
            group.sealed = true;
        }
        Step::Finish | Step::Cancel => {
            let Some(at) = begun else {
                return bad(format!("seat {seat} is not being given to target {to}"));
            };
            group.info.moves.remove(at);
            if change.step() == Step::Finish {
                match state.load::<v1::TargetInfo>(&schema::target(to))? {
                    Some(target) if target.state() != TargetState::Out => {}
                    // Who has the seat now may serve it yet.
                    _ => return bad(format!("target {to} was given up meanwhile")),
                }
                group.info.targets[seat as usize] = to;
            }
        }
        Step::Unknown => return bad("a step of an unknown kind".into()),
    }
    Ok(group)
}
