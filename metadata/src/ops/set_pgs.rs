//! Sets the placement groups of a pool, or adds and retires some of them. A group that is left out,
//! or named among those to be retired, is retired, and never loses a seat: segments point at seats
//! for ever. One that was retired before is dropped if the entry says so and no segment names it.
//!
//! What is under way to a group when that is retired can still be committed: the leader has a group
//! dropped long after. What comes when it has been dropped is refused, and its client writes it
//! again, to another. The entry says which go, not its reader: one from a version that dropped none
//! drops none, whoever applies it.

use crate::operation::{Context, EMPTY, Fault, Operation, Reply, refuse};
use crate::schema::{self, Cluster, Group, Pool, Tag};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::cluster;
use std::collections::{BTreeMap, BTreeSet};
use weft_proto::{ErrorKind, v1};

/// Most seats of a group: a seat is one byte in a segment's record.
const MAX_SEATS: usize = 256;

pub(crate) struct Plan {
    cluster: Cluster,
    /// The groups that change, as they will be.
    changed: Vec<Group>,
    dropped: Vec<u32>,
    next_pg: u32,
}

impl Operation for v1::SetPgsEntry {
    type Plan = Plan;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Plan, Fault> {
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
        let unused = state.counters()?.next_pg;
        let (mut changed, mut dropped, mut next_pg) = (Vec::new(), Vec::new(), unused);
        let mut named = BTreeSet::new();
        for info in &self.pgs {
            check_group(info, old.get(&info.id), self.pool, &known)?;
            if !named.insert(info.id) {
                return refuse(ErrorKind::Invalid, format!("group {} is listed twice", info.id));
            }
            let known = old.get(&info.id);
            if known.is_none() {
                next_pg = next_pg.max(after(info.id, unused)?);
            }
            let (segments, sealed) = known.map_or((0, false), |g| (g.segments, g.sealed));
            let new = Group { pool: self.pool, info: info.clone(), segments, sealed };
            if known != Some(&new) {
                changed.push(new);
            }
        }
        let asked: BTreeSet<u32> = self.dropped.iter().copied().collect();
        let retired: BTreeSet<u32> = self.retired.iter().copied().collect();
        for group in old.into_values() {
            if group.pool != self.pool || named.contains(&group.info.id) {
                continue;
            }
            if !group.info.retired {
                if self.others_stay && !retired.contains(&group.info.id) {
                    continue;
                }
                let info = v1::PgInfo { retired: true, ..group.info };
                changed.push(Group { info, ..group });
            } else if group.segments == 0 && asked.contains(&group.info.id) {
                dropped.push(group.info.id);
            }
        }
        Ok(Plan { cluster, changed, dropped, next_pg })
    }

    fn apply(&self, plan: Plan, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        let Plan { cluster, changed, dropped, next_pg } = plan;
        for group in &changed {
            tx.put(schema::group(group.info.id), group);
        }
        for &id in &dropped {
            tx.delete(schema::group(id));
        }
        if !changed.is_empty() || !dropped.is_empty() {
            tx.edit_counters(|counters| counters.next_pg = next_pg)?;
            cluster::bump(tx, cluster);
        }
        Ok(EMPTY)
    }
}

/// The id behind that of a new group, which must be one that none has had.
fn after(id: u32, unused: u32) -> Result<u32, Fault> {
    match id.checked_add(1) {
        Some(next) if id >= unused => Ok(next),
        _ => refuse(
            ErrorKind::Invalid,
            format!("group {id}: the id was used before, or is the last"),
        ),
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
    if !info.moves.is_empty() || old.is_some_and(|old| old.sealed) {
        return bad("seats of it are or were given away".into());
    }
    match old {
        Some(old) if old.pool != pool => bad(format!("belongs to pool {}", old.pool)),
        Some(old) if old.info.targets.len() > seats => bad("would lose seats".into()),
        _ => Ok(()),
    }
}
