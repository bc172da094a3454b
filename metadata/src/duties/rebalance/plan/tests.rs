//! Tests of `plan`.

use super::*;
use crate::placement::{Candidate, change};
use proptest::prelude::*;
use v1::TargetState::Up;
use weft_proto::Profile;

const MIB: u64 = 1 << 20;

/// Targets in nodes of these sizes, and groups of them that are all open, or all retired.
fn cluster(nodes: &[usize], profile: Profile, seed: u64) -> v1::ClusterMap {
    let of_node = |(n, &size): (usize, &usize)| std::iter::repeat_n(format!("n{n}"), size);
    let domains = nodes.iter().enumerate().flat_map(of_node);
    let target = |(id, domain)| v1::TargetInfo {
        id,
        domain,
        state: Up.into(),
        capacity_bytes: 1 << 34,
        ..Default::default()
    };
    let targets: Vec<_> = (1..).zip(domains).map(target).collect();
    let pools = vec![v1::PoolInfo { id: 1, profile: Some(profile.into()), ..Default::default() }];
    let mut map = v1::ClusterMap { targets, pools, next_pg: 1, ..Default::default() };
    place(&mut map, profile, seed);
    map
}

/// The groups that such targets have: what is replaced is retired.
fn place(map: &mut v1::ClusterMap, profile: Profile, seed: u64) {
    let of = |t: &v1::TargetInfo| Candidate {
        target: t.id,
        domain: t.domain.clone(),
        weight: t.share(),
    };
    let candidates: Vec<_> = map.targets.iter().map(of).collect();
    let pgs = &mut map.pools[0].pgs;
    let open: Vec<usize> = (0..pgs.len()).filter(|&i| !pgs[i].retired).collect();
    let groups: Vec<_> = open.iter().map(|&i| pgs[i].targets.clone()).collect();
    let Some(planned) = change(&groups, &candidates, profile, seed) else { return };
    for (at, stays) in open.into_iter().zip(planned.stays) {
        pgs[at].retired = !stays;
    }
    for targets in planned.made {
        pgs.push(v1::PgInfo { id: map.next_pg, targets, ..Default::default() });
        map.next_pg += 1;
    }
}

type Bytes = BTreeMap<u32, Vec<u64>>;

fn lot(bytes: &u64) -> Lot {
    Lot { bytes: *bytes, chunks: bytes / MIB }
}

/// What each target holds, and what lies in the retired groups, of what lies in each seat.
fn counted(map: &v1::ClusterMap, bytes: &Bytes) -> (BTreeMap<u32, u64>, Vec<Held>) {
    let mut used: BTreeMap<u32, u64> = map.targets.iter().map(|t| (t.id, 0)).collect();
    let mut held = Vec::new();
    for pg in map.groups() {
        let Some(seats) = bytes.get(&pg.id) else { continue };
        pg.targets.iter().zip(seats).for_each(|(id, bytes)| *used.get_mut(id).unwrap() += bytes);
        if pg.retired {
            held.push(Held { pg: pg.id, seats: seats.iter().map(lot).collect() });
        }
    }
    (used, held)
}

/// How many of a group's seats lie in its fullest domain.
fn nearest(map: &v1::ClusterMap, pg: &v1::PgInfo) -> usize {
    let domain = |id: &u32| map.targets.iter().find(|t| t.id == *id).unwrap().domain.as_str();
    let near = |id: &u32| pg.targets.iter().filter(|other| domain(other) == domain(id)).count();
    pg.targets.iter().map(near).max().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn new_targets_are_filled_and_no_more_is_moved_than_has_to_be(
        nodes in prop::collection::vec(1usize..4, 3..8),
        added in prop::collection::vec(1usize..4, 1..4),
        seed: u64, sizes in prop::collection::vec(1u64..40, 60),
    ) {
        let profile = Profile::ec(2, 1).unwrap();
        let mut map = cluster(&nodes, profile, seed);
        // Much lies in few seats: little is tolerated beside what lies in one.
        map.targets.iter_mut().for_each(|t| t.capacity_bytes = 1 << 32);
        let of_group = |(i, pg): (usize, &v1::PgInfo)| {
            let bytes = if i % 8 == 0 { sizes[i / 8 % sizes.len()] * MIB } else { 0 };
            (pg.id, vec![bytes; pg.targets.len()])
        };
        let bytes: Bytes = map.groups().enumerate().map(of_group).collect();
        for (n, size) in added.iter().enumerate() {
            for _ in 0..*size {
                let id = map.targets.len() as u32 + 1;
                let domain = format!("new{n}");
                map.targets.push(v1::TargetInfo { id, domain, ..map.targets[0].clone() });
            }
        }
        place(&mut map, profile, seed + 1);
        let (used, held) = counted(&map, &bytes);
        let before = fills(&map, &used);
        let exceeding: u64 = before.values().map(|f| f.exceeds() + f.tolerated(2)).sum();
        let shifts = plan(&map, &used, &held);
        prop_assert!(shifts.iter().map(|s| s.lot.bytes).sum::<u64>() <= exceeding);
        let mut after = map.clone();
        for shift in &shifts {
            let pg = after.pools[0].pgs.iter_mut().find(|pg| pg.id == shift.pg).unwrap();
            prop_assert!(pg.retired && !pg.targets.contains(&shift.to));
            prop_assert_eq!(bytes[&shift.pg][shift.seat as usize], shift.lot.bytes);
            pg.targets[shift.seat as usize] = shift.to;
        }
        for (new, old) in after.groups().zip(map.groups()) {
            prop_assert!(nearest(&after, new) <= nearest(&map, old), "{new:?}, not {old:?}");
        }
        let (used, _) = counted(&after, &bytes);
        for (id, fill) in fills(&after, &used) {
            let (was, slack) = (&before[&id], fill.tolerated(END_PERCENT));
            prop_assert!(fill.used <= was.used.max(fill.share + slack), "{id} is too full");
            prop_assert!(fill.used + slack >= was.used.min(fill.share), "{id} is too empty");
        }
    }
}

/// Where there are many, each of the others lacks very little.
#[test]
fn who_is_to_hold_less_is_relieved_in_a_large_cluster_too() {
    let profile = Profile::ec(4, 2).unwrap();
    let mut map = cluster(&[1; 60], profile, 1);
    let bytes: Bytes = map.groups().map(|pg| (pg.id, vec![64 * MIB; 6])).collect();
    map.targets[2].weight = 500;
    place(&mut map, profile, 2);
    // The groups in which it had a seat that it has no more are retired; more of them, by hand.
    map.pools[0].pgs.iter_mut().filter(|pg| pg.targets.contains(&3)).for_each(|pg| {
        pg.retired = bytes.contains_key(&pg.id);
    });
    let mut again = map.clone();
    place(&mut again, profile, 3);
    let (used, held) = counted(&again, &bytes);
    assert!(imbalance(&again, &used) > 0);
    let shifts = plan(&again, &used, &held);
    let moved: u64 = shifts.iter().map(|s| s.lot.bytes).sum();
    let excess = fills(&again, &used)[&3].exceeds();
    assert!(moved.abs_diff(excess) <= excess / 10, "{moved}, and not {excess}");
}

/// A drive is added to twenty: it gets its part, from all, and that is all that moves.
#[test]
fn a_new_target_gets_its_share_of_what_there_is() {
    let profile = Profile::ec(4, 2).unwrap();
    let mut map = cluster(&[1; 20], profile, 1);
    let bytes: Bytes = map.groups().map(|pg| (pg.id, vec![64 * MIB; 6])).collect();
    assert_eq!(imbalance(&map, &counted(&map, &bytes).0), 0);
    map.targets.push(v1::TargetInfo { id: 21, domain: "x".into(), ..map.targets[0].clone() });
    place(&mut map, profile, 2);
    let (used, held) = counted(&map, &bytes);
    let share = used.values().sum::<u64>() / 21;
    let off = imbalance(&map, &used);
    assert!(off.abs_diff(share) < 128 * MIB, "{off}, and not {share}");
    let shifts = plan(&map, &used, &held);
    let moved: u64 = shifts.iter().map(|s| s.lot.bytes).sum();
    assert!(moved <= share * 105 / 100 && moved >= share * 95 / 100, "{moved}, and not {share}");
    assert!(shifts.iter().all(|s| s.to == 21));
}

#[test]
fn who_is_full_or_drained_or_away_is_given_nothing() {
    let profile = Profile::ec(4, 2).unwrap();
    let mut map = cluster(&[1; 10], profile, 1);
    let bytes: Bytes = map.groups().map(|pg| (pg.id, vec![64 * MIB; 6])).collect();
    for id in 11..=14 {
        let domain = format!("x{id}");
        map.targets.push(v1::TargetInfo { id, domain, ..map.targets[0].clone() });
    }
    place(&mut map, profile, 2);
    map.targets[10].full = true;
    map.targets[11].draining = true;
    map.targets[12].state = v1::TargetState::Down.into();
    let (used, held) = counted(&map, &bytes);
    let to: BTreeSet<u32> = plan(&map, &used, &held).iter().map(|s| s.to).collect();
    assert_eq!(to, [14].into());
}
