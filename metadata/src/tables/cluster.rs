//! The cluster map: put together from its records, and changed with a new epoch.

use crate::operation::{Fault, refuse};
use crate::schema::{self, Cluster, Group, Pool, Tag};
use crate::store::{Read, StoreResult, Txn};
use std::collections::BTreeMap;
use weft_proto::{ErrorKind, v1};

/// The cluster's record, or [`ErrorKind::Unavailable`].
pub(crate) fn existing(state: &dyn Read) -> Result<Cluster, Fault> {
    match state.cluster()? {
        Some(cluster) => Ok(cluster),
        None => refuse(ErrorKind::Unavailable, "the cluster is not initialised yet"),
    }
}

/// The whole map as of this moment.
pub(crate) fn cluster_map(state: &dyn Read) -> Result<v1::ClusterMap, Fault> {
    let cluster = existing(state)?;
    let mut pools: BTreeMap<u32, v1::PoolInfo> = BTreeMap::new();
    state.records(schema::all(Tag::Pool), |key, pool: Pool| {
        let id = id_of(key);
        let profile = Some(pool.profile);
        pools.insert(id, v1::PoolInfo { id, name: pool.name, profile, pgs: Vec::new() });
        Ok(true)
    })?;
    state.records(schema::all(Tag::Group), |_, group: Group| {
        if let Some(pool) = pools.get_mut(&group.pool) {
            pool.pgs.push(group.info);
        }
        Ok(true)
    })?;
    Ok(v1::ClusterMap {
        epoch: cluster.epoch,
        cluster: cluster.id,
        members: cluster.members,
        targets: targets(state)?,
        pools: pools.into_values().collect(),
        next_pg: state.counters()?.next_pg,
        ..Default::default()
    })
}

/// The 4-byte id that a key of the map ends with.
fn id_of(key: &[u8]) -> u32 {
    key.last_chunk().map_or(0, |b| u32::from_be_bytes(*b))
}

/// All targets, by id.
pub(crate) fn targets(state: &dyn Read) -> StoreResult<Vec<v1::TargetInfo>> {
    let mut targets = Vec::new();
    state.records(schema::all(Tag::Target), |_, target| {
        targets.push(target);
        Ok(true)
    })?;
    Ok(targets)
}

/// The map changed: its epoch grows.
pub(crate) fn bump(tx: &mut Txn<'_>, mut cluster: Cluster) {
    cluster.epoch += 1;
    tx.put_cluster(&cluster);
}
