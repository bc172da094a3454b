//! Tests of `map`.

use super::*;
use crate::v1::{NodeInfo, PgInfo, ProfileInfo, TargetInfo, TargetState};
use proptest::prelude::*;

/// Something that happens to a map.
#[derive(Clone, Debug)]
enum Step {
    AddTarget,
    Forget(usize),
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
        1 => any::<usize>().prop_map(Step::Forget),
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
            // Its number may be that of one that is gone.
            let id = map.targets.last().map_or(0, |last| last.id) + 1;
            map.targets.push(TargetInfo { id, daemon: format!("d{id}"), ..Default::default() });
        }
        Step::Forget(nth) => {
            if !map.targets.is_empty() {
                map.targets.remove(nth % map.targets.len());
            }
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
                ..Default::default()
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
            let member = |id| NodeInfo { id, address: format!("m{id}"), ..Default::default() };
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
        steps in prop::collection::vec(step(), 1..40),
            cuts in prop::collection::vec(any::<bool>(), 40),
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
    assert_eq!(newer(|new| new.targets.clear()).unwrap().dropped_targets, [1]);
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
        ..Default::default()
    };
    let pgs = (1..=4000).map(pg).collect();
    let pool = PoolInfo { id: 1, name: "default".into(), pgs, ..Default::default() };
    let targets = (1..=1000).map(target).collect();
    let up =
        ClusterMap { epoch: 9, targets, pools: vec![pool], next_pg: 4001, ..Default::default() };
    let mut down = ClusterMap { epoch: 10, ..up.clone() };
    down.targets[500].set_state(TargetState::Down);
    assert!(up.encoded_len() > 200 << 10, "{}", up.encoded_len());
    let told = changes(&up, &down).unwrap().encoded_len();
    assert!(told < 300, "{told} bytes");
}
