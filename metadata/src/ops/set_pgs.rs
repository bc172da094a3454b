//! Sets the placement groups of a pool. A group that is left out is retired, never dropped, and
//! never loses a seat: segments point at seats for ever.

use super::{Context, EMPTY, Fault, Operation, Reply, cluster, refuse};
use crate::schema::{self, Cluster, Group, Pool, Tag};
use crate::store::{Read, StoreResult, Txn};
use std::collections::{BTreeMap, BTreeSet};
use weft_proto::{ErrorKind, v1};

/// Most seats of a group: a seat is one byte in a segment's record.
const MAX_SEATS: usize = 256;

impl Operation for v1::SetPgsEntry {
    /// The groups that change, as they will be.
    type Plan = (Cluster, Vec<Group>);

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Self::Plan, Fault> {
        let cluster = cluster::existing(state)?;
        if self.based_on_epoch != cluster.epoch {
            return refuse(
                ErrorKind::StaleMap,
                format!(
                    "placement was planned for epoch {}, the map has {}",
                    self.based_on_epoch, cluster.epoch
                ),
            );
        }
        if state.load::<Pool>(&schema::pool(self.pool))?.is_none() {
            return refuse(ErrorKind::NotFound, format!("pool {} does not exist", self.pool));
        }
        let mut old: BTreeMap<u32, Group> = BTreeMap::new();
        state.records(schema::all(Tag::Group), |_, group: Group| {
            old.insert(group.info.id, group);
            Ok(true)
        })?;
        let known: BTreeSet<u32> = cluster::targets(state)?.iter().map(|t| t.id).collect();
        let mut changed = Vec::new();
        let mut named = BTreeSet::new();
        for info in &self.pgs {
            check_group(info, old.get(&info.id), self.pool, &known)?;
            if !named.insert(info.id) {
                return refuse(ErrorKind::Invalid, format!("group {} is listed twice", info.id));
            }
            let new = Group { pool: self.pool, info: info.clone() };
            if old.get(&info.id) != Some(&new) {
                changed.push(new);
            }
        }
        for group in old.into_values() {
            if group.pool == self.pool && !named.contains(&group.info.id) && !group.info.retired {
                let info = v1::PgInfo { retired: true, ..group.info };
                changed.push(Group { info, ..group });
            }
        }
        Ok((cluster, changed))
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

/// Seats must be distinct known targets, at least as many as before.
fn check_group(
    info: &v1::PgInfo,
    old: Option<&Group>,
    pool: u32,
    known: &BTreeSet<u32>,
) -> Result<(), Fault> {
    let bad = |what: String| refuse(ErrorKind::Invalid, format!("group {}: {what}", info.id));
    let seats = info.targets.len();
    if seats == 0 || seats > MAX_SEATS {
        return bad(format!("{seats} seats, not 1..={MAX_SEATS}"));
    }
    if info.targets.iter().collect::<BTreeSet<_>>().len() != seats {
        return bad("a target has two seats".into());
    }
    if let Some(target) = info.targets.iter().find(|t| !known.contains(t)) {
        return bad(format!("target {target} does not exist"));
    }
    match old {
        Some(old) if old.pool != pool => bad(format!("belongs to pool {}", old.pool)),
        Some(old) if old.info.targets.len() > seats => bad("would lose seats".into()),
        _ => Ok(()),
    }
}
