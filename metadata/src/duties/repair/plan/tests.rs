//! Tests of `plan`.

use super::*;
use crate::soft::repair::Lot;
use std::collections::BTreeSet;

fn target(id: u32, domain: &str, state: TargetState) -> v1::TargetInfo {
    let (domain, capacity_bytes) = (domain.to_owned(), 1000);
    v1::TargetInfo { id, domain, state: state.into(), capacity_bytes, ..Default::default() }
}

fn map(targets: Vec<v1::TargetInfo>, groups: &[&[u32]]) -> v1::ClusterMap {
    let group = |(id, targets): (u32, &&[u32])| v1::PgInfo {
        id,
        targets: targets.to_vec(),
        retired: true,
        ..Default::default()
    };
    let pgs = (1..).zip(groups).map(group).collect();
    v1::ClusterMap {
        targets,
        pools: vec![v1::PoolInfo { id: 1, pgs, ..Default::default() }],
        ..Default::default()
    }
}

/// What begins: group, seat, target.
fn begun(map: &v1::ClusterMap, limit: usize) -> (Vec<(u32, u32, u32)>, usize) {
    let planned = plan(map, &leaving(map), &[], &BTreeMap::new(), &Avoid::default(), limit);
    let of = |c: &Change| {
        assert_eq!(c.step(), Step::Begin);
        let v1::SeatMove { seat, to, .. } = c.r#move.unwrap();
        (c.pg, seat, to)
    };
    (planned.changes.iter().map(of).collect(), planned.stuck.len())
}

use TargetState::{Down, Out, Up};

#[test]
fn who_has_lost_most_goes_first_and_who_merely_moves_last() {
    let mut targets: Vec<_> = (1..=8).map(|id| target(id, &format!("n{id}"), Up)).collect();
    targets[0].state = Out.into();
    targets[1].state = Down.into();
    targets[2].draining = true;
    let map = map(targets, &[&[1, 4, 5], &[1, 2, 5], &[3, 4, 5], &[2, 4, 5]]);
    let order: Vec<_> = leaving(&map).iter().map(|l| (l.pg, l.seat, l.missing)).collect();
    // What is down is waited for.
    assert_eq!(order, [(2, 0, true), (1, 0, true), (3, 0, false)]);
    assert_eq!(begun(&map, 100).0.iter().map(|b| b.0).collect::<Vec<_>>(), [2, 1, 3]);
    assert_eq!(begun(&map, 1).0.len(), 1);
}

/// The state does not take what is to be changed of it, again and again.
#[test]
fn a_seat_that_is_passed_over_is_left_as_it_is_and_keeps_no_other() {
    let mut targets: Vec<_> = (1..=6).map(|id| target(id, &format!("n{id}"), Up)).collect();
    targets[0].state = Out.into();
    let mut map = map(targets, &[&[1, 2, 3], &[1, 3, 4], &[2, 3, 4]]);
    // This one is of no use.
    map.pools[0].pgs[2].moves = vec![v1::SeatMove { seat: 0, to: 5, ..Default::default() }];
    let seats = |passed: &[(u32, u32)]| {
        let avoid = Avoid { passed: passed.iter().copied().collect(), ..Avoid::default() };
        // One at a time: who is passed over takes no place.
        let planned = plan(&map, &leaving(&map), &[], &BTreeMap::new(), &avoid, 1);
        let of = |c: &Change| (c.step(), seat_of(c).unwrap());
        planned.changes.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(seats(&[]), [(Step::Cancel, (3, 0)), (Step::Begin, (1, 0))]);
    assert_eq!(seats(&[(1, 0)]), [(Step::Cancel, (3, 0)), (Step::Begin, (2, 0))]);
    assert_eq!(seats(&[(3, 0), (1, 0)]), [(Step::Begin, (2, 0))]);
    assert!(seats(&[(3, 0), (1, 0), (2, 0)]).is_empty());
}

/// A seat whose target the map does not know, and those behind it.
#[test]
fn a_seat_of_a_target_that_does_not_exist_is_given_away_and_moves_no_other() {
    let mut targets: Vec<_> = (1..=6).map(|id| target(id, &format!("n{id}"), Up)).collect();
    targets[3].state = Out.into();
    let map = map(targets, &[&[1, 99, 4], &[1, 2, 3]]);
    let seats: Vec<_> = leaving(&map).iter().map(|l| (l.pg, l.seat, l.lost, l.missing)).collect();
    assert_eq!(seats, [(1, 1, 2, true), (1, 2, 2, true)]);
    let (moves, stuck) = begun(&map, 9);
    assert_eq!(moves.iter().map(|m| (m.0, m.1)).collect::<Vec<_>>(), [(1, 1), (1, 2)]);
    assert!(moves.iter().all(|m| ![1, 4, 99].contains(&m.2)) && stuck == 0);
}

#[test]
fn no_target_has_two_seats_and_domains_stay_apart_where_they_can() {
    let domains = ["a", "a", "b", "b", "c", "c", "d"];
    let mut targets: Vec<_> = (1..).zip(domains).map(|(id, d)| target(id, d, Up)).collect();
    targets[0].state = Out.into();
    // Of the domains of the others, a is free, and so is d.
    let (moves, stuck) = begun(&map(targets.clone(), &[&[1, 3, 5]]), 9);
    assert!(stuck == 0 && matches!(moves[..], [(1, 0, 2 | 7)]), "{moves:?}");
    targets[1].full = true;
    targets[6].draining = true;
    // There is no other domain: another drive is better than none.
    let (moves, stuck) = begun(&map(targets.clone(), &[&[1, 3, 5]]), 9);
    assert!(stuck == 0 && matches!(moves[..], [(1, 0, 4 | 6)]), "{moves:?}");
    let (moves, stuck) = begun(&map(targets, &[&[1, 3, 4, 5, 6]]), 9);
    assert!(stuck == 1 && moves.is_empty(), "{moves:?}");
}

#[test]
fn a_move_that_leads_nowhere_or_is_not_needed_any_more_is_cancelled() {
    let all = |states: [TargetState; 4]| {
        (1..).zip(states).map(|(id, s)| target(id, &format!("n{id}"), s)).collect::<Vec<_>>()
    };
    let with = |states, moves: &[(u32, u32)]| {
        let mut map = map(all(states), &[&[1, 2]]);
        let moves = moves.iter().map(|&(seat, to)| v1::SeatMove { seat, to, ..Default::default() });
        map.pools[0].pgs[0].moves = moves.collect();
        map
    };
    let round = |map: &v1::ClusterMap, avoid: &Avoid| {
        let planned = plan(map, &leaving(map), &[], &BTreeMap::new(), avoid, 9);
        let of = |c: &Change| (c.step(), c.r#move.unwrap().seat, c.r#move.unwrap().to);
        planned.changes.iter().map(of).collect::<Vec<_>>()
    };
    let steps = |map: &v1::ClusterMap| round(map, &Avoid::default());
    assert_eq!(steps(&with([Out, Up, Up, Up], &[(0, 3)])), [], "it goes on");
    assert_eq!(steps(&with([Out, Up, Down, Up], &[(0, 3)])), [], "it may just start anew");
    let away = Avoid { away: [3].into(), ..Avoid::default() };
    assert_eq!(round(&with([Out, Up, Down, Up], &[(0, 3)]), &away)[0], (Step::Cancel, 0, 3));
    assert_eq!(round(&with([Out, Up, Down, Down], &[(0, 3)]), &away), [], "there is no other");
    let mut full = with([Out, Up, Up, Up], &[(0, 3)]);
    full.targets[2].full = true;
    assert_eq!(steps(&full), [], "what is made there stays");
    let refused = Avoid { refused: [(1, 0, 3)].into(), ..Avoid::default() };
    let stopped = [(Step::Cancel, 0, 3)];
    assert_eq!(round(&with([Out, Up, Up, Up], &[(0, 3)]), &refused), stopped);
    assert_eq!(round(&with([Out, Up, Up, Up], &[]), &refused), [(Step::Begin, 0, 4)]);
    assert_eq!(steps(&with([Up, Up, Up, Up], &[(0, 3)])), [(Step::Cancel, 0, 3)]);
    assert_eq!(steps(&with([Out, Up, Out, Up], &[(0, 3)])), [(Step::Cancel, 0, 3)]);
    // Two of one group never go to the same.
    let both = steps(&with([Out, Out, Up, Up], &[]));
    assert_eq!(both.iter().map(|s| s.2).collect::<BTreeSet<_>>(), [3, 4].into());
}

/// One node of twenty is lost.
#[test]
fn what_a_lost_node_held_goes_to_all_others_alike() {
    use crate::placement::{Candidate, change};
    use weft_proto::Profile;
    let mut targets: Vec<_> =
        (0..200).map(|id| target(id + 1, &format!("n{}", id / 10), Up)).collect();
    let of = |t: &v1::TargetInfo| Candidate { target: t.id, domain: t.domain.clone(), weight: 1 };
    let candidates: Vec<_> = targets.iter().map(of).collect();
    let groups = change(&[], &candidates, Profile::ec(8, 2).unwrap(), 7).unwrap().made;
    targets[..10].iter_mut().for_each(|t| t.state = Out.into());
    let groups: Vec<&[u32]> = groups.iter().map(Vec::as_slice).collect();
    let (moves, stuck) = begun(&map(targets, &groups), usize::MAX);
    assert_eq!(stuck, 0);
    let mut given: BTreeMap<u32, usize> = BTreeMap::new();
    moves.iter().for_each(|(.., to)| *given.entry(*to).or_default() += 1);
    assert_eq!(moves.len(), groups.iter().flat_map(|g| g.iter()).filter(|t| **t <= 10).count());
    let (least, most) = (given.values().min().unwrap(), given.values().max().unwrap());
    assert!(given.len() == 190 && most - least <= 1, "{least} to {most} for {}", given.len());
}

#[test]
fn what_does_not_go_on_keeps_nobody_waiting() {
    let mut targets: Vec<_> = (1..=8).map(|id| target(id, &format!("n{id}"), Up)).collect();
    targets[0].state = Out.into();
    let mut map = map(targets, &[&[1, 2], &[1, 3]]);
    map.pools[0].pgs[0].moves = vec![v1::SeatMove { seat: 0, to: 8, ..Default::default() }];
    let begins = |resting: &[(u32, u32)]| {
        let avoid = Avoid { resting: resting.iter().copied().collect(), ..Avoid::default() };
        plan(&map, &leaving(&map), &[], &BTreeMap::new(), &avoid, 1).changes.len()
    };
    assert_eq!((begins(&[]), begins(&[(1, 0)])), (0, 1));
}

#[test]
fn what_moves_for_balance_keeps_nothing_else_waiting() {
    let mut targets: Vec<_> = (1..=9).map(|id| target(id, &format!("n{id}"), Up)).collect();
    let shift = |pg, seat, to| Shift { pg, seat, to, lot: Lot { chunks: 1, bytes: 1 } };
    let shifts = [shift(1, 0, 9), shift(1, 1, 8), shift(2, 0, 9), shift(3, 0, 9), shift(7, 0, 8)];
    let planned = |map: &v1::ClusterMap, shifts: &[Shift], limit| {
        let none = (BTreeMap::new(), Avoid::default());
        let planned = plan(map, &leaving(map), shifts, &none.0, &none.1, limit);
        let of = |c: &Change| {
            let v1::SeatMove { seat, to, rebalances } = c.r#move.unwrap();
            (c.step(), c.pg, seat, to, rebalances)
        };
        (planned.changes.iter().map(of).collect::<Vec<_>>(), planned.shifted)
    };
    let groups: &[&[u32]] = &[&[1, 2], &[2, 3], &[3, 4], &[5, 6]];
    // One seat of a group at a time, two to a target; what is of no group is forgotten.
    let (begun, gone) = planned(&map(targets.clone(), groups), &shifts, 9);
    let first = [(Step::Begin, 1, 0, 9, true), (Step::Begin, 2, 0, 9, true)];
    assert_eq!(begun, first);
    assert_eq!(gone, [(1, 0), (2, 0), (7, 0)].into());
    // What is lost comes first, whatever is under way for balance.
    targets[4].state = Out.into();
    let mut moving = map(targets.clone(), groups);
    moving.pools[0].pgs[0].moves = vec![v1::SeatMove { seat: 0, to: 9, rebalances: true }];
    let (begun, _) = planned(&moving, &[], 1);
    assert!(matches!(begun[..], [(Step::Begin, 4, 0, _, false)]), "{begun:?}");
    let order = leaving(&moving);
    assert!(order[0].pg == 4 && order[1].rebalances, "{order:?}");
    // Its target holds the seat as well as ever: nobody waits for one that is away.
    moving.targets[8].state = Down.into();
    let avoid = Avoid { away: [9].into(), ..Avoid::default() };
    let cancelled = plan(&moving, &leaving(&moving), &[], &BTreeMap::new(), &avoid, 0).changes;
    assert_eq!((cancelled.len(), cancelled[0].step()), (1, Step::Cancel));
}

/// A rack that holds as many of a group as parity makes good takes no more of it.
#[test]
fn what_is_lost_goes_to_another_rack_where_there_is_one() {
    let domains = ["r1/a", "r1/b", "r2/a", "r2/b", "r3/a", "r3/b", "r3/c", "r1/c"];
    let mut targets: Vec<_> = (1..).zip(domains).map(|(id, d)| target(id, d, Up)).collect();
    targets[4].state = Out.into();
    // In the third rack, two nodes have no seat; in the others there is one more node.
    let mut map = map(targets, &[&[1, 2, 3, 5]]);
    map.pools[0].profile = Some(v1::ProfileInfo { k: 2, m: 2 });
    let (moves, _) = begun(&map, 9);
    assert!(matches!(moves[..], [(1, 3, 6 | 7)]), "{moves:?}");
    // With only the first rack left, a node of it is better than none.
    map.targets[5].full = true;
    map.targets[6].full = true;
    map.targets[3].full = true;
    assert_eq!(begun(&map, 9).0, [(1, 3, 8)]);
}

#[test]
fn what_moves_for_balance_gets_no_nearer_and_gives_way() {
    let domains = ["n1", "n1", "n2", "n3", "n4"];
    let targets: Vec<_> = (1..).zip(domains).map(|(id, d)| target(id, d, Up)).collect();
    let shift = |seat, to| Shift { pg: 1, seat, to, lot: Lot::default() };
    let avoid = Avoid::default();
    let planned = |map: &v1::ClusterMap, shifts: &[Shift]| {
        plan(map, &leaving(map), shifts, &BTreeMap::new(), &avoid, 9)
    };
    let all = map(targets.clone(), &[&[1, 3, 4]]);
    // Was planned when the first seat was to be elsewhere by now.
    let dropped = planned(&all, &[shift(1, 2)]);
    assert!(dropped.changes.is_empty() && dropped.shifted.contains(&(1, 1)));
    assert_eq!(planned(&all, &[shift(0, 2)]).changes.len(), 1);
    // The only target for a seat that is lost is being given another one.
    let mut hurt = map(targets, &[&[1, 3, 4]]);
    hurt.targets[1].full = true;
    hurt.targets[2].state = Out.into();
    hurt.pools[0].pgs[0].moves = vec![v1::SeatMove { seat: 0, to: 5, rebalances: true }];
    let steps = |map: &v1::ClusterMap| {
        let of = |c: &Change| (c.step(), c.r#move.unwrap().seat, c.r#move.unwrap().to);
        planned(map, &[]).changes.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(steps(&hurt), [(Step::Cancel, 0, 5)]);
    // Not if its target is away: what was made may be all that there is.
    hurt.targets[0].state = Down.into();
    assert_eq!(steps(&hurt), []);
    hurt.targets[0].state = Up.into();
    hurt.pools[0].pgs[0].moves.clear();
    assert_eq!(steps(&hurt), [(Step::Begin, 1, 5)]);
}
