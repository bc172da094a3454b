//! Changes which targets are up, down, out or full.

use crate::known::Known;
use crate::operation::{Context, EMPTY, Fault, Operation, Reply, refuse};
use crate::schema::{self, Cluster};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::cluster;
use std::collections::BTreeMap;
use v1::TargetState;
use weft_proto::map::MAX_WEIGHT;
use weft_proto::{ErrorKind, v1};

impl Operation for v1::SetTargetStateEntry {
    /// The targets that change, as they will be.
    type Plan = (Cluster, Vec<v1::TargetInfo>);

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Self::Plan, Fault> {
        let cluster = cluster::existing(state)?;
        let mut changed = BTreeMap::new();
        for change in &self.changes {
            let Some(old) = state.load::<v1::TargetInfo>(&schema::target(change.target))? else {
                return refuse(
                    ErrorKind::NotFound,
                    format!("target {} does not exist", change.target),
                );
            };
            if change.state() == TargetState::Unknown {
                return refuse(ErrorKind::Invalid, "a target's state cannot become unknown");
            }
            if change.weight.is_some_and(|weight| !(1..=MAX_WEIGHT).contains(&weight)) {
                let what = format!("a weight is 1 to {MAX_WEIGHT} thousandths");
                return refuse(ErrorKind::Invalid, what);
            }
            // It goes with the state that it is about.
            let down_ns = match (change.state(), change.down_ns) {
                (TargetState::Down, 0) => old.down_ns,
                (TargetState::Down, since) => since,
                _ => 0,
            };
            let new = v1::TargetInfo {
                state: change.state,
                down_ns,
                full: change.full,
                held_out: change.held_out.unwrap_or(old.held_out),
                draining: change.draining.unwrap_or(old.draining),
                weight: change.weight.unwrap_or(old.weight),
                ..old.clone()
            };
            match new == old {
                true => changed.remove(&change.target),
                false => changed.insert(change.target, new),
            };
        }
        Ok((cluster, changed.into_values().collect()))
    }

    fn apply(&self, plan: Self::Plan, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        let (cluster, changed) = plan;
        if changed.iter().any(|target| target.down_ns != 0) {
            super::raise_level(tx, Known::Downtimes as u32)?;
        }
        for target in &changed {
            tx.put(schema::target(target.id), target);
        }
        if !changed.is_empty() {
            cluster::bump(tx, cluster);
        }
        Ok(EMPTY)
    }
}
