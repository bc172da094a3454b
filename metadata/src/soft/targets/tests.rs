//! Tests of `targets`.

use super::*;
use missing::{MAX_MISSING, MAX_REMEMBERED};
use v1::TargetState::{Down, Out, Unknown, Up};
use weft_proto::{SegmentId, SessionId};

const LIMITS: Limits = Limits {
    down_after: Duration::from_millis(2500),
    out_after: Duration::from_secs(600),
    full_percent: 95,
};

fn map(states: &[v1::TargetState]) -> v1::ClusterMap {
    let targets = states
        .iter()
        .enumerate()
        .map(|(i, &state)| v1::TargetInfo {
            id: i as u32 + 1,
            state: state.into(),
            ..Default::default()
        })
        .collect();
    v1::ClusterMap { targets, ..Default::default() }
}

fn beat(id: u32, used: u64) -> v1::HeartbeatRequest {
    let stat =
        v1::TargetStat { target: id, capacity_bytes: 100, used_bytes: used, ..Default::default() };
    v1::HeartbeatRequest { targets: vec![stat], ..Default::default() }
}

fn states(changes: &[Change]) -> Vec<(u32, v1::TargetState, bool)> {
    changes.iter().map(|c| (c.target, c.state(), c.full)).collect()
}

fn chunk(seq: u64) -> ChunkId {
    ChunkId { segment: SegmentId { session: SessionId(1), seq }, shard: 0 }
}

/// Silence of those who had no time to say anything says nothing.
#[test]
fn a_new_leader_does_not_know_yet_what_is_served() {
    let (targets, target, patience) = (Targets::default(), TargetId(1), LIMITS.down_after);
    let begun = Instant::now();
    let serves = |ms, term| {
        targets.serves(begun + Duration::from_millis(ms), term, target, LIMITS.down_after)
    };
    assert_eq!(serves(10_000, 1), None, "it does not lead");
    targets.begin(begun, 1);
    assert_eq!((serves(10, 1), serves(10_000, 1)), (None, Some(false)));
    targets.stalled(begun + patience, patience);
    assert_eq!((serves(3000, 1), serves(10_000, 1)), (None, Some(false)));
    targets.hear(begun + patience, beat(1, 0));
    assert_eq!((serves(2600, 1), serves(10_000, 1)), (Some(true), Some(false)));
    // What another term has heard is no news of this one.
    targets.begin(begun + 2 * patience, 2);
    assert_eq!((serves(5010, 2), serves(10_000, 2)), (None, Some(false)));
    assert_eq!(serves(10_000, 1), None);
    targets.hear(begun + 2 * patience, v1::HeartbeatRequest { failed: vec![1], ..beat(2, 0) });
    assert_eq!(serves(5010, 2), Some(false), "its daemon says so");
}

#[test]
fn missing_chunks_that_cannot_be_made_keep_no_others_out() {
    let (targets, target) = (Targets::default(), TargetId(1));
    targets.hear(Instant::now(), beat(1, 0));
    let last = MAX_MISSING as u64;
    assert!((0..=last).all(|seq| targets.note_missing(target, chunk(seq))));
    let told = || targets.damaged().remove(&target).unwrap_or_default();
    assert_eq!(told(), (0..last).map(chunk).collect::<Vec<_>>());
    // To count them takes nobody's turn.
    assert_eq!(targets.count_damaged(), MAX_MISSING + 1);
    let turns = [last].into_iter().chain(0..last - 1);
    assert_eq!(told(), turns.map(chunk).collect::<Vec<_>>());
    targets.forget_missing(target, chunk(last));
    let turns = [last - 1].into_iter().chain(0..last - 1);
    assert_eq!(told(), turns.map(chunk).collect::<Vec<_>>());
    (0..last).for_each(|seq| targets.forget_missing(target, chunk(seq)));
    assert!(targets.damaged().is_empty());
}

#[test]
fn what_is_missing_and_does_not_fit_is_not_taken() {
    let (targets, one, other) = (Targets::default(), TargetId(1), TargetId(2));
    let all = MAX_REMEMBERED as u64;
    assert!((0..all).all(|seq| targets.note_missing(one, chunk(seq))));
    assert!(!targets.note_missing(one, chunk(all)));
    assert!(targets.note_missing(one, chunk(0)), "it is remembered already");
    assert!(targets.note_missing(other, chunk(all)));
    assert!(!targets.has_room(one) && targets.has_room(other));
    targets.forget_missing(one, chunk(0));
    assert!(targets.note_missing(one, chunk(all)));
    (1..=all / 2).for_each(|seq| targets.forget_missing(one, chunk(seq)));
    assert!(targets.has_room(one));
}

#[test]
fn what_cannot_be_made_leaves_room_for_what_can() {
    let (targets, target) = (Targets::default(), TargetId(1));
    targets.hear(Instant::now(), beat(1, 0));
    let all = MAX_REMEMBERED as u64;
    for round in 0..3 {
        let more = round * all..(round + 1) * all;
        assert!(more.clone().all(|seq| targets.note_missing(target, chunk(seq))));
        assert!(!targets.has_room(target));
        more.for_each(|seq| targets.note_in_vain(target, chunk(seq)));
        assert!(targets.has_room(target));
    }
    assert!(targets.note_missing(target, chunk(0)), "it is remembered already");
    assert_eq!(targets.count_damaged(), 3 * MAX_REMEMBERED);
    // What was not tried yet comes first, and the others take turns.
    assert!(targets.note_missing(target, chunk(3 * all)));
    let told = || targets.damaged().remove(&target).unwrap_or_default();
    let some = |from: u64, n: u64| (from..from + n).map(chunk);
    assert_eq!(told(), some(3 * all, 1).chain(some(0, 63)).collect::<Vec<_>>());
    targets.forget_missing(target, chunk(3 * all));
    assert_eq!(told(), some(63, 64).collect::<Vec<_>>());
    let between = targets.missing(target, Some(chunk(7)), Some(chunk(9)));
    assert_eq!(between, [chunk(8), chunk(9)]);
    (0..3 * all).for_each(|seq| targets.forget_missing(target, chunk(seq)));
    assert!(told().is_empty() && targets.count_damaged() == 0);
}

#[test]
fn silence_is_down_and_a_new_leader_waits_first() {
    let targets = Targets::default();
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let map = map(&[Up, Up, Down, Out]);
    targets.hear(at(100), beat(1, 10));
    let changes = |ms| states(&targets.changes(at(ms), start, 0, LIMITS, &map));
    assert!(changes(2400).is_empty(), "the second may have beaten to the old leader");
    assert_eq!(changes(2550), [(2, Down, false)]);
    targets.hear(at(2560), beat(3, 0));
    assert_eq!(changes(2700), [(1, Down, false), (2, Down, false), (3, Up, false)]);
    let heard_before = targets.changes(at(5000), at(4000), 0, LIMITS, &map);
    assert!(heard_before.is_empty(), "what the last term heard does not count");
}

/// Each of which would wait for all of the time.
#[test]
fn the_time_that_a_target_is_down_goes_on_under_the_next_leader() {
    const S: i64 = 1_000_000_000;
    let targets = Targets::default();
    let start = Instant::now();
    let mut map = map(&[Up, Up, Up, Up, Up, Down]);
    let profile = Some(v1::ProfileInfo { k: 2, m: 1 });
    map.pools = vec![v1::PoolInfo { profile, ..Default::default() }];
    let changes = |after: u64, wall_s: i64, map: &v1::ClusterMap| {
        let now = start + Duration::from_secs(after);
        (1..6).for_each(|id| targets.hear(now, beat(id, 0)));
        states(&targets.changes(now, start, wall_s * S, LIMITS, map))
    };
    let gone = [(6, Out, false)];
    // As an older leader has left it.
    assert!(changes(599, 5000, &map).is_empty());
    assert_eq!(changes(601, 5000, &map), gone);
    map.targets[5].down_ns = 1000 * S;
    assert!(changes(299, 1599, &map).is_empty());
    assert!(changes(301, 1599, &map).is_empty(), "it is not down for long");
    assert_eq!(changes(301, 1601, &map), gone);
    // The clock of one of the two is wrong.
    assert!(changes(301, 10, &map).is_empty());
    assert_eq!(changes(601, 10, &map), gone);
}

/// Nobody led meanwhile, and nobody could come back.
#[test]
fn who_starts_a_little_later_than_the_first_leader_after_an_outage_is_not_given_up() {
    const S: i64 = 1_000_000_000;
    let targets = Targets::default();
    let start = Instant::now();
    let mut map = map(&[Up, Up, Up, Up, Up, Down]);
    map.pools =
        vec![v1::PoolInfo { profile: Some(v1::ProfileInfo { k: 2, m: 1 }), ..Default::default() }];
    map.targets[5].down_ns = S;
    for after in 0..=LIMITS.out_after.as_secs() / 2 {
        let now = start + Duration::from_secs(after);
        (1..6).for_each(|id| targets.hear(now, beat(id, 0)));
        let changes = targets.changes(now, start, 3600 * S, LIMITS, &map);
        assert!(changes.is_empty(), "after {after} s: {changes:?}");
    }
}

#[test]
fn nobody_is_silent_while_this_server_stands_still() {
    let targets = Targets::default();
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let map = map(&[Up, Up]);
    targets.hear(at(0), beat(1, 10));
    targets.hear(at(900_500), beat(2, 10));
    targets.stalled(at(900_600), Duration::from_secs(900));
    let changes = |ms| states(&targets.changes(at(ms), start, 0, LIMITS, &map));
    assert!(changes(900_700).is_empty());
    assert_eq!(changes(902_600), [(1, Down, false)]);
    assert_eq!(changes(903_100 + 1), [(1, Down, false), (2, Down, false)], "no later for it");
}

#[test]
fn a_daemon_may_say_so_itself() {
    let targets = Targets::default();
    let now = Instant::now();
    let map = map(&[Up, Unknown]);
    targets.hear(now, v1::HeartbeatRequest { failed: vec![1], ..beat(2, 0) });
    assert_eq!(
        states(&targets.changes(now, now, 0, LIMITS, &map)),
        [(1, Down, false), (2, Up, false)]
    );
    targets.hear(now, v1::HeartbeatRequest { stopping: true, ..beat(2, 0) });
    assert_eq!(
        states(&targets.changes(now, now, 0, LIMITS, &map)),
        [(1, Down, false), (2, Down, false)]
    );
}

#[test]
fn the_last_of_a_target_is_free_and_cannot_be_written() {
    let targets = Targets::default();
    let now = Instant::now();
    let mut map = map(&[Up, Up, Down, Out]);
    let profile = Some(v1::ProfileInfo { k: 1, m: 1 });
    map.pools = vec![v1::PoolInfo { profile, ..Default::default() }];
    let space = |used: [u64; 4], map: &v1::ClusterMap| {
        (1..5).zip(used).for_each(|(id, used)| targets.hear(now, beat(id, used)));
        let Space { capacity, free, available } = targets.user_space(map, 95);
        (capacity, free, available)
    };
    assert_eq!(space([0; 4], &map), (150, 100, 95));
    assert_eq!(space([10, 30, 0, 0], &map), (150, 80, 75));
    assert_eq!(space([95, 97, 0, 0], &map), (150, 4, 0));
    map.targets[1].full = true;
    assert_eq!(space([15, 94, 0, 0], &map), (150, 42, 40), "none that it took would be written");
}

#[test]
fn fullness_has_hysteresis() {
    let targets = Targets::default();
    let now = Instant::now();
    let mut map = map(&[Up]);
    let full = |used, map: &v1::ClusterMap| {
        targets.hear(now, beat(1, used));
        states(&targets.changes(now, now, 0, LIMITS, map))
    };
    assert!(full(95, &map).is_empty());
    assert_eq!(full(96, &map), [(1, Up, true)]);
    map.targets[0].full = true;
    assert!(full(91, &map).is_empty());
    assert_eq!(full(90, &map), [(1, Up, false)]);
    let mut without_index_room = beat(1, 10);
    without_index_room.targets[0].index_full = true;
    targets.hear(now, without_index_room);
    assert!(targets.changes(now, now, 0, LIMITS, &map).is_empty(), "it takes nothing still");
    map.targets[0].full = false;
    assert_eq!(states(&targets.changes(now, now, 0, LIMITS, &map)), [(1, Up, true)]);
}
