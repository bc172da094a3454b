//! What is asked of a cluster map; and changes of it, which lead from one version to a later one,
//! as a message of the same type with `since` set.
//!
//! Invariant: [`apply`] of [`changes`] between two maps to the first gives the second; and of
//! changes to those that end where they begin gives the changes of both.

use crate::v1::{ClusterMap, PgInfo, PoolInfo, TargetInfo};
use crate::{Error, ErrorKind, Result};
use prost::Message;
use std::collections::{HashMap, HashSet};

/// Most bytes of an encoded map: what whoever is sent one takes. One of 10,000 targets has about 2
/// MiB, and more with every placement group that is retired and still in use.
pub const MAX_BYTES: usize = 64 << 20;

/// The weight of a target that is to hold what its capacity says; weights are in thousandths.
pub const WEIGHT_OF_ONE: u32 = 1000;
/// The largest weight.
pub const MAX_WEIGHT: u32 = 10 * WEIGHT_OF_ONE;

impl ClusterMap {
    /// The placement groups of all pools.
    pub fn groups(&self) -> impl Iterator<Item = &PgInfo> {
        self.pools.iter().flat_map(|pool| &pool.pgs)
    }
}

impl TargetInfo {
    /// What it is to hold, beside what its capacity says.
    pub fn weight_in_thousandths(&self) -> u32 {
        if self.weight == 0 { WEIGHT_OF_ONE } else { self.weight }
    }

    /// What it is to hold beside others: its capacity times its weight.
    pub fn share(&self) -> u64 {
        let share = u128::from(self.capacity_bytes) * u128::from(self.weight_in_thousandths());
        u64::try_from(share / u128::from(WEIGHT_OF_ONE)).unwrap_or(u64::MAX)
    }
}

impl PgInfo {
    /// The targets whose business a seat's chunks are: the one that has it, and one that it is
    /// being given to.
    pub fn holders(&self, seat: u8) -> impl Iterator<Item = u32> {
        let moves = self.moves.iter().filter(move |m| m.seat == u32::from(seat));
        let now = self.targets.get(usize::from(seat)).copied();
        now.into_iter().chain(moves.map(|m| m.to))
    }
}

/// What leads from one map to another; `None` if changes cannot say that: there was no map before,
/// or all members or a pool are gone.
pub fn changes(old: &ClusterMap, new: &ClusterMap) -> Option<ClusterMap> {
    if old.epoch == 0 || old.epoch >= new.epoch || old.cluster != new.cluster {
        return None;
    }
    let members = if old.members == new.members { Vec::new() } else { new.members.clone() };
    let (targets, dropped_targets) = changed(&old.targets, &new.targets, |target| target.id);
    let (told, pools_gone) = changed(&old.pools, &new.pools, |pool| pool.id);
    if !pools_gone.is_empty() || (new.members.is_empty() && !old.members.is_empty()) {
        return None;
    }
    let (mut pools, mut dropped_pgs) = (Vec::new(), Vec::new());
    for pool in told {
        let before = old.pools.iter().find(|before| before.id == pool.id);
        let before = before.map_or(&[][..], |before| &before.pgs);
        let (pgs, gone) = changed(before, &pool.pgs, |pg| pg.id);
        pools.push(PoolInfo {
            pgs: pgs.into_iter().cloned().collect(),
            name: pool.name.clone(),
            ..*pool
        });
        dropped_pgs.extend(gone);
    }
    Some(ClusterMap {
        epoch: new.epoch,
        members,
        targets: targets.into_iter().cloned().collect(),
        pools,
        next_pg: new.next_pg,
        cluster: new.cluster.clone(),
        since: old.epoch,
        dropped_pgs,
        dropped_targets,
    })
}

/// Records that are new or not the same, and ids of those that are gone.
fn changed<'a, R: PartialEq>(
    old: &[R],
    new: &'a [R],
    id: impl Fn(&R) -> u32,
) -> (Vec<&'a R>, Vec<u32>) {
    let mut before: HashMap<u32, &R> = old.iter().map(|record| (id(record), record)).collect();
    let differs = |record: &&R| before.remove(&id(record)) != Some(*record);
    let changed = new.iter().filter(differs).collect();
    let mut gone: Vec<u32> = before.into_keys().collect();
    gone.sort_unstable();
    (changed, gone)
}

/// Carries changes out on the map that they are of, or adds them to changes that end there.
///
/// Errors: `StaleMap`, they are of another epoch, or another cluster's, or would make the map
/// larger than anybody may have one; the map is as it was.
pub fn apply(map: &mut ClusterMap, changes: ClusterMap) -> Result<()> {
    let refuse = |what| Err(Error::new(ErrorKind::StaleMap, what));
    if changes.since == 0 || changes.since != map.epoch || changes.cluster != map.cluster {
        return refuse(format!(
            "changes of map {} do not apply to map {}",
            changes.since, map.epoch
        ));
    }
    if map.encoded_len() + changes.encoded_len() > MAX_BYTES {
        return refuse(format!("changes of map {} make it too large", changes.since));
    }
    (map.epoch, map.next_pg) = (changes.epoch, changes.next_pg);
    if !changes.members.is_empty() {
        map.members = changes.members;
    }
    drop_these(&mut map.targets, &changes.dropped_targets, |target| target.id);
    put(&mut map.targets, changes.targets, |target| target.id);
    for pool in &mut map.pools {
        drop_these(&mut pool.pgs, &changes.dropped_pgs, |pg| pg.id);
    }
    for mut pool in changes.pools {
        let mut pgs = match map.pools.iter_mut().find(|known| known.id == pool.id) {
            Some(known) => std::mem::take(&mut known.pgs),
            None => Vec::new(),
        };
        put(&mut pgs, std::mem::take(&mut pool.pgs), |pg| pg.id);
        put(&mut map.pools, vec![PoolInfo { pgs, ..pool }], |pool| pool.id);
    }
    if map.since != 0 {
        map.dropped_pgs.extend(changes.dropped_pgs);
        map.dropped_targets.extend(changes.dropped_targets);
    }
    Ok(())
}

fn drop_these<R>(records: &mut Vec<R>, gone: &[u32], id: impl Fn(&R) -> u32) {
    if !gone.is_empty() {
        let gone: HashSet<u32> = gone.iter().copied().collect();
        records.retain(|record| !gone.contains(&id(record)));
    }
}

/// Puts records in the place of those with their ids. All are in the order of their ids then.
fn put<R>(records: &mut Vec<R>, new: Vec<R>, id: impl Fn(&R) -> u32) {
    if new.is_empty() {
        return;
    }
    let replaced: HashSet<u32> = new.iter().map(&id).collect();
    records.retain(|record| !replaced.contains(&id(record)));
    records.extend(new);
    records.sort_by_key(id);
}

#[cfg(test)]
mod tests;
