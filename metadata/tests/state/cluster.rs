//! The cluster map: first initialisation wins, targets are known by identity, placement groups are
//! retired and dropped, and the epoch grows exactly when the map changes.

use crate::rig::{Answer, ROOT, Rig, run};
use v1::extent::Source;
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use v1::set_target_state_entry::Change;
use weft_proto::{ErrorKind, v1};

/// Runs the entry; answers its outcome and by how much the epoch grew.
fn grew(rig: &mut Rig, body: Body) -> (Result<(), ErrorKind>, u64) {
    let before = rig.epoch();
    let outcome: Answer = rig.entry(body);
    (outcome.map(drop), rig.epoch() - before)
}

#[test]
fn the_first_initialisation_wins() {
    let mut rig = Rig::in_memory();
    let map = rig.machine.cluster_map().unwrap();
    assert_eq!(map.cluster, vec![7; 16]);
    assert_eq!((map.pools.len(), map.pools[0].id, &*map.pools[0].name), (1, 1, "default"));
    let again = v1::InitClusterEntry {
        cluster: vec![8; 16].into(),
        profile: Some(v1::ProfileInfo { k: 1, m: 2 }),
        members: vec![],
        shard: crate::SHARD.into(),
    };
    assert_eq!(grew(&mut rig, Body::InitCluster(again)), (Ok(()), 0));
    assert_eq!(rig.machine.cluster_map().unwrap(), map);
    let root = rig.attr(ROOT).unwrap();
    assert_eq!((root.mode, root.nlink), (0o755, 2));
}

#[test]
fn nothing_works_before_it() {
    let machine = weft_metadata::state::StateMachine::open_in_memory();
    assert_eq!(machine.cluster_map().unwrap_err().kind, ErrorKind::Unavailable);
    let target = Some(v1::TargetInfo { uuid: vec![1; 16].into(), ..Default::default() });
    let entries = [
        Body::RegisterTarget(v1::RegisterTargetEntry { target }),
        Body::InitCluster(v1::InitClusterEntry::default()),
        Body::InitCluster(v1::InitClusterEntry {
            cluster: vec![1; 16].into(),
            profile: Some(v1::ProfileInfo { k: 99, m: 1 }),
            members: vec![],
            shard: crate::SHARD.into(),
        }),
    ];
    for (i, body) in entries.into_iter().enumerate() {
        let entry = v1::LogEntry { time_ns: 1, body: Some(body), ..Default::default() };
        let replies = machine.apply(&[(i as u64 + 1, entry)]).unwrap();
        assert_ne!(replies[0].error, 0);
    }
}

#[test]
fn a_target_is_known_by_its_identity() {
    let mut rig = Rig::in_memory();
    let mut target =
        v1::TargetInfo { uuid: vec![77; 16].into(), daemon: "a".into(), ..Default::default() };
    let register = |t: &v1::TargetInfo| {
        Body::RegisterTarget(v1::RegisterTargetEntry { target: Some(t.clone()) })
    };
    let Ok(Reply::Target(first)) = rig.entry(register(&target)) else { panic!() };
    assert_eq!((first.id, first.state()), (5, v1::TargetState::Up));
    assert_eq!(grew(&mut rig, register(&target)), (Ok(()), 0));

    let down =
        Change { target: 5, state: v1::TargetState::Down.into(), full: true, ..Default::default() };
    let set = |change| Body::SetTargetState(v1::SetTargetStateEntry { changes: vec![change] });
    assert_eq!(grew(&mut rig, set(down)), (Ok(()), 1));
    assert_eq!(grew(&mut rig, set(down)), (Ok(()), 0));
    let unknown = Change { target: 99, ..down };
    assert_eq!(grew(&mut rig, set(unknown)), (Err(ErrorKind::NotFound), 0));
    let nothing = Change { state: 0, ..down };
    assert_eq!(grew(&mut rig, set(nothing)), (Err(ErrorKind::Invalid), 0));

    // It moved: same id, and its state is not for it to say.
    target.daemon = "b".into();
    target.state = v1::TargetState::Up.into();
    let before = rig.epoch();
    let Ok(Reply::Target(moved)) = rig.entry(register(&target)) else { panic!() };
    assert_eq!((moved.id, moved.state(), moved.full), (5, v1::TargetState::Down, true));
    assert_eq!(&*moved.daemon, "b");
    assert_eq!(rig.epoch(), before + 1);
    target.uuid = vec![1; 3].into();
    assert_eq!(grew(&mut rig, register(&target)), (Err(ErrorKind::Invalid), 0));
}

/// For a leader that has not missed it itself.
#[test]
fn since_when_a_target_is_down_is_kept_for_as_long_as_it_is() {
    use v1::TargetState::{Down, Out, Up};
    let mut rig = Rig::in_memory();
    let level = |rig: &Rig| rig.machine.known_level().unwrap();
    let down_ns = |rig: &Rig| rig.machine.cluster_map().unwrap().targets[0].down_ns;
    let mut set = |state: v1::TargetState, full, ns| {
        let change =
            Change { target: 1, state: state.into(), full, down_ns: ns, ..Default::default() };
        let changes = vec![change];
        rig.entry(Body::SetTargetState(v1::SetTargetStateEntry { changes })).unwrap();
        (down_ns(&rig), level(&rig))
    };
    // As an older leader, or one of a group in which not all know of it, has it.
    assert_eq!(set(Down, false, 0), (0, 0));
    assert_eq!(set(Up, false, 0), (0, 0));
    let downtimes = 13;
    assert_eq!(set(Down, false, 50), (50, downtimes), "no older server may come back");
    assert_eq!(set(Down, true, 0), (50, downtimes), "it is full as well");
    assert_eq!(set(Up, true, 0), (0, downtimes));
    assert_eq!(set(Down, true, 60), (60, downtimes));
    assert_eq!(set(Out, true, 0), (0, downtimes));
    assert_eq!(set(Out, false, 70), (0, downtimes), "it is not down");
    assert_eq!(set(Down, false, 80), (80, downtimes));
    // It tells where it is, which says nothing of that.
    let uuid = vec![1; 16].into();
    let target = Some(v1::TargetInfo { uuid, daemon: "b".into(), ..Default::default() });
    let register = Body::RegisterTarget(v1::RegisterTargetEntry { target });
    let Ok(Reply::Target(moved)) = rig.entry(register) else { panic!() };
    assert_eq!((moved.id, &*moved.daemon, moved.down_ns), (1, "b", 80));
    assert_eq!(down_ns(&rig), 80);
}

/// A group that began anew from a backup does not know targets that were added since.
#[test]
fn a_target_that_has_a_number_keeps_it() {
    let mut rig = Rig::in_memory();
    let register = |uuid: u8, id: u32| {
        let uuid = vec![uuid; 16].into();
        let target = Some(v1::TargetInfo { uuid, id, ..Default::default() });
        Body::RegisterTarget(v1::RegisterTargetEntry { target })
    };
    let mut id = |uuid, id| match rig.entry(register(uuid, id)) {
        Ok(Reply::Target(target)) => target.id,
        other => panic!("{other:?}"),
    };
    // One that is not given out yet, or another's, is not taken for its own.
    assert_eq!((id(50, 9), id(51, 5), id(52, u32::MAX)), (5, 6, 7));
    assert_eq!(id(51, 0), 6);
}

#[test]
fn groups_are_retired_and_then_dropped() {
    let mut rig = Rig::in_memory();
    let set = |rig: &Rig, pool, pgs: &[(u32, &[u32])]| {
        let pgs = pgs
            .iter()
            .map(|&(id, t)| v1::PgInfo {
                id,
                targets: t.to_vec(),
                retired: false,
                ..Default::default()
            })
            .collect();
        let (based_on_epoch, dropped) = (rig.epoch(), vec![1, 2, 9]);
        Body::SetPgs(v1::SetPgsEntry { pool, pgs, based_on_epoch, dropped, ..Default::default() })
    };
    let body = set(&rig, 1, &[(2, &[4, 3, 2]), (3, &[1, 2, 3])]);
    assert_eq!(grew(&mut rig, body.clone()), (Ok(()), 1));
    let pgs = rig.machine.cluster_map().unwrap().pools[0].pgs.clone();
    let seen: Vec<_> = pgs.iter().map(|pg| (pg.id, pg.targets.len(), pg.retired)).collect();
    assert_eq!(seen, [(1, 4, true), (2, 3, false), (3, 3, false)]);
    // Planned for an older map.
    assert_eq!(grew(&mut rig, body), (Err(ErrorKind::StaleMap), 0));
    let again = set(&rig, 1, &[(2, &[4, 3, 2]), (3, &[1, 2, 3])]);
    assert_eq!(grew(&mut rig, again), (Ok(()), 1));
    let map = rig.machine.cluster_map().unwrap();
    let left: Vec<_> = map.pools[0].pgs.iter().map(|pg| pg.id).collect();
    assert_eq!((left, map.next_pg), (vec![2, 3], 4), "nothing was ever written to 1");
    let again = set(&rig, 1, &[(2, &[4, 3, 2]), (3, &[1, 2, 3])]);
    assert_eq!(grew(&mut rig, again), (Ok(()), 0));
    let seat_moves = set(&rig, 1, &[(2, &[4, 1, 2]), (3, &[1, 2, 3, 4])]);
    assert_eq!(grew(&mut rig, seat_moves), (Ok(()), 1));
    for (pool, pgs, kind) in [
        (9, vec![], ErrorKind::NotFound),
        (1, vec![(2, &[4, 3][..])], ErrorKind::Invalid),
        (1, vec![(4, &[1, 1][..])], ErrorKind::Invalid),
        (1, vec![(4, &[1, 9][..])], ErrorKind::Invalid),
        (1, vec![(4, &[][..])], ErrorKind::Invalid),
        (1, vec![(4, &[1][..]), (4, &[2][..])], ErrorKind::Invalid),
        (1, vec![(1, &[1, 2, 3, 4][..])], ErrorKind::Invalid),
        (1, vec![(u32::MAX, &[1][..])], ErrorKind::Invalid),
    ] {
        let body = set(&rig, pool, &pgs);
        assert_eq!(grew(&mut rig, body), (Err(kind), 0), "{pgs:?}");
    }
}

/// One that is gone for good, as far as nothing needs it any more.
#[test]
fn a_target_that_is_forgotten_is_never_taken_in_again() {
    use v1::TargetState::{Down, Out};
    use v1::move_seats_entry::{Change as Move, Step};
    let mut rig = Rig::in_memory();
    let create = v1::CreateOp { parent: ROOT, name: "f".into(), ..Default::default() };
    let Ok(Reply::Open(file)) = run(&mut rig, Op::Create(create)) else { panic!() };
    let ino = file.attr.unwrap().ino;
    let commit = |rig: &mut Rig, seq, pg| {
        let segment = v1::SegmentInfo { pg, ..rig.segment(seq, 100) };
        let source = Some(Source::Segment(v1::SegmentPart { id: segment.id, off: 0 }));
        let extents = vec![v1::Extent { file_off: 100 * seq, len: 100, source }];
        let segments = vec![segment];
        let op = v1::CommitExtentsOp { ino, extents, segments, ..Default::default() };
        run(rig, Op::CommitExtents(op)).map(drop)
    };
    commit(&mut rig, 1, 1).unwrap();
    let register = |uuid: u8| {
        let uuid = vec![uuid; 16].into();
        let target = Some(v1::TargetInfo { uuid, id: 4, ..Default::default() });
        Body::RegisterTarget(v1::RegisterTargetEntry { target })
    };
    rig.entry(register(50)).unwrap();
    let is = |state: v1::TargetState| {
        let change = Change { target: 4, state: state.into(), ..Default::default() };
        Body::SetTargetState(v1::SetTargetStateEntry { changes: vec![change] })
    };
    let place = |rig: &mut Rig, id, targets: &[u32]| {
        let pg = v1::PgInfo { id, targets: targets.to_vec(), ..Default::default() };
        let (pgs, based_on_epoch) = (vec![pg], rig.epoch());
        let entry = v1::SetPgsEntry { pool: 1, pgs, based_on_epoch, ..Default::default() };
        rig.entry(Body::SetPgs(entry)).unwrap();
    };
    let step = |rig: &mut Rig, step: Step| {
        let r#move = Some(v1::SeatMove { seat: 3, to: 5, ..Default::default() });
        let change = Move { pg: 1, r#move, step: step.into() };
        rig.entry(Body::MoveSeats(v1::MoveSeatsEntry { changes: vec![change] })).unwrap();
    };
    let forget = Body::ForgetTarget(v1::ForgetTargetEntry { target: 4 });
    let refused = |rig: &mut Rig, kind| assert_eq!(grew(rig, forget.clone()), (Err(kind), 0));
    refused(&mut rig, ErrorKind::Invalid);
    rig.entry(is(Down)).unwrap();
    refused(&mut rig, ErrorKind::Invalid);
    rig.entry(is(Out)).unwrap();
    // The first takes new data yet, then it holds some, and then the second one takes it.
    refused(&mut rig, ErrorKind::Busy);
    place(&mut rig, 2, &[4, 1, 2]);
    step(&mut rig, Step::Begin);
    refused(&mut rig, ErrorKind::Busy);
    step(&mut rig, Step::Finish);
    refused(&mut rig, ErrorKind::Busy);
    place(&mut rig, 3, &[1, 2, 3]);
    assert_eq!(rig.machine.known_level().unwrap(), 0);
    assert_eq!(grew(&mut rig, forget.clone()), (Ok(()), 1));

    assert_eq!(rig.machine.known_level().unwrap(), 14, "no older server may come back");
    let map = rig.machine.cluster_map().unwrap();
    let targets: Vec<u32> = map.targets.iter().map(|t| t.id).collect();
    let groups: Vec<u32> = map.groups().map(|pg| pg.id).collect();
    assert_eq!((targets, groups), (vec![1, 2, 3, 5], vec![1, 3]), "the second held nothing");
    assert_eq!(commit(&mut rig, 2, 2), Err(ErrorKind::Misplaced), "it was under way to that");
    refused(&mut rig, ErrorKind::NotFound);
    assert_eq!(grew(&mut rig, is(Out)), (Err(ErrorKind::NotFound), 0));
    assert_eq!(grew(&mut rig, register(4)), (Err(ErrorKind::NotPermitted), 0));
    let Ok(Reply::Target(new)) = rig.entry(register(51)) else { panic!() };
    assert_eq!(new.id, 6, "its number is nobody's");
    rig.check();
}
