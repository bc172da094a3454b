//! Changes of the cluster map: what leads from one version of it to a later one, as a message of the same
//! type with `since` set.
//!
//! Invariant: [`apply`] of [`changes`] between two maps to the first gives the second; and of changes to
//! those that end where they begin gives the changes of both.

use crate::v1::{ClusterMap, PoolInfo};
use crate::{Error, ErrorKind, Result};
use prost::Message;
use std::collections::{HashMap, HashSet};

/// Most bytes of an encoded map: what whoever is sent one takes. One of 10,000 targets has about 2 MiB, and more
/// with every placement group that is retired and still in use.
pub const MAX_BYTES: usize = 64 << 20;

/// What leads from one map to another; `None` if changes cannot say that: there was no map before, or a member,
/// a target or a pool is gone.
pub fn changes(old: &ClusterMap, new: &ClusterMap) -> Option<ClusterMap> {
    if old.epoch == 0 || old.epoch >= new.epoch || old.cluster != new.cluster {
        return None;
    }
    let members = if old.members == new.members { Vec::new() } else { new.members.clone() };
    let (targets, gone) = changed(&old.targets, &new.targets, |target| target.id);
    let (told, pools_gone) = changed(&old.pools, &new.pools, |pool| pool.id);
    if !gone.is_empty()
        || !pools_gone.is_empty()
        || (new.members.is_empty() && !old.members.is_empty())
    {
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
/// Errors: `StaleMap`, they are of another epoch, or another cluster's, or would make the map larger than anybody
/// may have one; the map is as it was.
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
    put(&mut map.targets, changes.targets, |target| target.id);
    let dropped: HashSet<u32> = changes.dropped_pgs.iter().copied().collect();
    if !dropped.is_empty() {
        map.pools.iter_mut().for_each(|pool| pool.pgs.retain(|pg| !dropped.contains(&pg.id)));
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
    }
    Ok(())
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
mod tests {
    use super::*;
    use crate::v1::{NodeInfo, PgInfo, ProfileInfo, TargetInfo, TargetState};
    use proptest::prelude::*;

    /// Something that happens to a map.
    #[derive(Clone, Debug)]
    enum Step {
        AddTarget,
        Flip(usize),
        /// New groups in a pool; those there are retired.
        Place {
            pool: usize,
            groups: u32,
        },
        Drop(usize),
        AddPool,
        Members(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => Just(Step::AddTarget),
            4 => any::<usize>().prop_map(Step::Flip),
            3 => (any::<usize>(), 0u32..4).prop_map(|(pool, groups)| Step::Place { pool, groups }),
            3 => any::<usize>().prop_map(Step::Drop),
            1 => Just(Step::AddPool),
            1 => (1u64..4).prop_map(Step::Members),
        ]
    }

    fn happen(map: &mut ClusterMap, step: &Step) {
        map.epoch += 1;
        match *step {
            Step::AddTarget => {
                let id = map.targets.len() as u32 + 1;
                map.targets.push(TargetInfo { id, daemon: format!("d{id}"), ..Default::default() });
            }
            Step::Flip(at) => {
                let at = at % map.targets.len().max(1);
                if let Some(target) = map.targets.get_mut(at) {
                    target.full = !target.full;
                }
            }
            Step::Place { pool, groups } => {
                let at = pool % map.pools.len().max(1);
                let Some(pool) = map.pools.get_mut(at) else { return };
                pool.pgs.iter_mut().for_each(|pg| pg.retired = true);
                let fresh = map.next_pg..map.next_pg + groups;
                pool.pgs.extend(fresh.map(|id| PgInfo {
                    id,
                    targets: vec![id, 7],
                    retired: false,
                }));
                map.next_pg += groups;
            }
            Step::Drop(nth) => {
                let all: Vec<u32> = map.pools.iter().flat_map(|p| &p.pgs).map(|pg| pg.id).collect();
                let Some(&gone) = all.get(nth % all.len().max(1)) else { return };
                map.pools.iter_mut().for_each(|pool| pool.pgs.retain(|pg| pg.id != gone));
            }
            Step::AddPool => {
                let (id, profile) = (map.pools.len() as u32 + 1, Some(ProfileInfo { k: 2, m: 1 }));
                map.pools.push(PoolInfo { id, name: format!("p{id}"), profile, pgs: vec![] });
            }
            Step::Members(n) => {
                let member = |id| NodeInfo { id, address: format!("m{id}") };
                map.members = (1..=n).map(member).collect();
            }
        }
    }

    fn first() -> ClusterMap {
        ClusterMap { epoch: 1, cluster: vec![1; 16].into(), next_pg: 1, ..Default::default() }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        /// However the way is cut into pieces, and also where pieces are put together on the way.
        #[test]
        fn changes_lead_to_the_map_that_they_were_made_of(
            steps in prop::collection::vec(step(), 1..40), cuts in prop::collection::vec(any::<bool>(), 40),
            splits in prop::collection::vec(any::<bool>(), 40),
        ) {
            let mut maps = vec![first()];
            for step in &steps {
                let mut next = maps.last().unwrap().clone();
                happen(&mut next, step);
                maps.push(next);
            }
            let newest = maps.last().unwrap().clone();
            // What a server has published, each by what has changed.
            let kept = |(i, _): &(usize, &ClusterMap)| *i == 0 || *i == steps.len() || cuts[i % 40];
            let published: Vec<&ClusterMap> =
                maps.iter().enumerate().filter(kept).map(|(_, map)| map).collect();
            let each: Vec<ClusterMap> =
                published.windows(2).map(|two| changes(two[0], two[1]).unwrap()).collect();
            let mut map = published[0].clone();
            let mut waiting: Option<ClusterMap> = None;
            for (i, step) in each.iter().enumerate() {
                // As it is sent.
                let step = ClusterMap::decode(&step.encode_to_vec()[..]).unwrap();
                match &mut waiting {
                    Some(before) => apply(before, step).unwrap(),
                    None => waiting = Some(step),
                }
                if splits[i % 40] || i + 1 == each.len() {
                    apply(&mut map, waiting.take().unwrap()).unwrap();
                }
            }
            prop_assert_eq!(map, newest);
        }
    }

    #[test]
    fn changes_of_another_map_are_refused() {
        let (mut a, mut b) = (first(), first());
        happen(&mut b, &Step::AddTarget);
        let told = changes(&a, &b).unwrap();
        let before = b.clone();
        assert_eq!(apply(&mut b, told.clone()).unwrap_err().kind, ErrorKind::StaleMap);
        assert_eq!(apply(&mut b, a.clone()).unwrap_err().kind, ErrorKind::StaleMap);
        assert_eq!(b, before);
        apply(&mut a, told).unwrap();
        assert_eq!(a, b);
    }

    #[test]
    fn what_changes_cannot_say_is_told_whole() {
        let mut old = first();
        [Step::AddTarget, Step::AddPool, Step::Members(2)].iter().for_each(|s| happen(&mut old, s));
        let newer = |change: fn(&mut ClusterMap)| {
            let mut new = old.clone();
            new.epoch += 1;
            change(&mut new);
            changes(&old, &new)
        };
        assert!(newer(|_| ()).is_some());
        assert!(newer(|new| new.targets.clear()).is_none());
        assert!(newer(|new| new.pools.clear()).is_none());
        assert!(newer(|new| new.members.clear()).is_none());
        assert!(newer(|new| new.cluster = vec![2; 16].into()).is_none());
        assert!(newer(|new| new.epoch -= 1).is_none());
        assert!(changes(&ClusterMap::default(), &old).is_none());
    }

    /// A thousand targets of 4+2: the whole map has 200 KiB.
    #[test]
    fn a_target_that_goes_down_is_told_in_few_bytes() {
        let target = |id| TargetInfo {
            id,
            uuid: vec![7; 16].into(),
            daemon: format!("storage-{id}.example.org"),
            address: format!("storage-{id}.example.org:7440"),
            domain: format!("rack-{}", id % 40),
            state: TargetState::Up.into(),
            capacity_bytes: 16 << 40,
            path: "/dev/disk/by-id/nvme-eui.0025385b71b0a1c2".into(),
            ..Default::default()
        };
        let pg = |id| PgInfo {
            id,
            targets: (0..6).map(|i| (id * 7 + i) % 1000).collect(),
            retired: false,
        };
        let pgs = (1..=4000).map(pg).collect();
        let pool = PoolInfo { id: 1, name: "default".into(), pgs, ..Default::default() };
        let targets = (1..=1000).map(target).collect();
        let up = ClusterMap {
            epoch: 9,
            targets,
            pools: vec![pool],
            next_pg: 4001,
            ..Default::default()
        };
        let mut down = ClusterMap { epoch: 10, ..up.clone() };
        down.targets[500].set_state(TargetState::Down);
        assert!(up.encoded_len() > 200 << 10, "{}", up.encoded_len());
        let told = changes(&up, &down).unwrap().encoded_len();
        assert!(told < 300, "{told} bytes");
    }
}
