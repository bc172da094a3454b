//! Seats of placement groups that are given to other targets.

use crate::rig::{GROUP, ROOT, Rig, run};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use v1::extent::Source;
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use v1::move_seats_entry::{Change, Step};
use weft_proto::{ChunkId, ErrorKind, PgId, SegmentId, SessionId, TargetId, v1};

fn step(rig: &mut Rig, step: Step, seat: u32, to: u32) -> Result<(), ErrorKind> {
    let r#move = Some(v1::SeatMove { seat, to, ..Default::default() });
    let changes = vec![Change { pg: GROUP, r#move, step: step.into() }];
    rig.entry(Body::MoveSeats(v1::MoveSeatsEntry { changes })).map(drop)
}

/// A target that has no seat yet.
fn join(rig: &mut Rig, n: u8) -> u32 {
    let uuid = vec![200 + n; 16].into();
    let target = Some(v1::TargetInfo { uuid, ..Default::default() });
    match rig.entry(Body::RegisterTarget(v1::RegisterTargetEntry { target })) {
        Ok(Reply::Target(target)) => target.id,
        other => panic!("register answered {other:?}"),
    }
}

/// Another group takes the new segments.
fn retire(rig: &mut Rig) {
    let based_on_epoch = rig.machine.cluster_map().unwrap().epoch;
    let pgs = vec![v1::PgInfo { id: GROUP + 1, targets: vec![1, 2, 3], ..Default::default() }];
    let entry = v1::SetPgsEntry { pool: 1, pgs, based_on_epoch, ..Default::default() };
    rig.entry(Body::SetPgs(entry)).unwrap();
}

fn file(rig: &mut Rig, name: &str) -> u64 {
    let op = v1::CreateOp { parent: ROOT, name: name.to_owned().into(), ..Default::default() };
    match run(rig, Op::Create(op)) {
        Ok(Reply::Open(v1::OpenReply { attr: Some(attr), .. })) => attr.ino,
        other => panic!("create answered {other:?}"),
    }
}

fn commit(rig: &mut Rig, ino: u64, seq: u64) -> Result<(), ErrorKind> {
    let segment = rig.segment(seq, 10_000);
    let source = Some(Source::Segment(v1::SegmentPart { id: segment.id, off: 0 }));
    let extents = vec![v1::Extent { file_off: 0, len: 10_000, source }];
    let segments = vec![segment];
    run(
        rig,
        Op::CommitExtents(v1::CommitExtentsOp { ino, extents, segments, ..Default::default() }),
    )
    .map(drop)
}

fn group(rig: &Rig) -> v1::PgInfo {
    let map = rig.machine.cluster_map().unwrap();
    map.pools[0].pgs.iter().find(|pg| pg.id == GROUP).unwrap().clone()
}

#[test]
fn a_seat_is_given_away_in_steps_and_the_group_takes_nothing_new() {
    let mut rig = Rig::in_memory();
    let ino = file(&mut rig, "f");
    commit(&mut rig, ino, 1).unwrap();
    let new = join(&mut rig, 1);
    assert_eq!(step(&mut rig, Step::Begin, 0, new), Err(ErrorKind::Invalid), "it is in use");
    retire(&mut rig);
    commit(&mut rig, ino, 2).expect("what was under way to a group that is merely retired");
    for (seat, to) in [(0, 2), (9, new), (0, 99)] {
        assert_eq!(step(&mut rig, Step::Begin, seat, to), Err(ErrorKind::Invalid));
    }
    assert_eq!(step(&mut rig, Step::Finish, 0, new), Err(ErrorKind::Invalid));
    let epoch = rig.machine.cluster_map().unwrap().epoch;
    step(&mut rig, Step::Begin, 0, new).unwrap();
    assert_eq!(rig.machine.cluster_map().unwrap().epoch, epoch + 1, "everybody is told");
    assert_eq!((group(&rig).targets[0], group(&rig).moves.len()), (1, 1));
    let other = join(&mut rig, 2);
    for (seat, to) in [(0, other), (1, new)] {
        assert_eq!(step(&mut rig, Step::Begin, seat, to), Err(ErrorKind::Invalid));
    }
    assert_eq!(commit(&mut rig, ino, 3), Err(ErrorKind::Misplaced));
    assert_eq!(step(&mut rig, Step::Finish, 0, other), Err(ErrorKind::Invalid));
    step(&mut rig, Step::Finish, 0, new).unwrap();
    assert_eq!((group(&rig).targets[0], group(&rig).moves.len()), (new, 0));
    assert_eq!(commit(&mut rig, ino, 4), Err(ErrorKind::Misplaced), "written by an older map");
    step(&mut rig, Step::Begin, 1, other).unwrap();
    step(&mut rig, Step::Cancel, 1, other).unwrap();
    assert_eq!((group(&rig).targets[1], group(&rig).moves.len()), (2, 0));
    let out = Body::SetTargetState(v1::SetTargetStateEntry {
        changes: vec![v1::set_target_state_entry::Change {
            target: other,
            state: v1::TargetState::Out.into(),
            held_out: Some(true),
            ..Default::default()
        }],
    });
    rig.entry(out).unwrap();
    assert_eq!(step(&mut rig, Step::Begin, 1, other), Err(ErrorKind::Invalid), "given up");
    rig.check();
}

#[test]
fn chunks_have_business_where_their_seat_is_or_goes() {
    let mut rig = Rig::in_memory();
    let ino = file(&mut rig, "f");
    commit(&mut rig, ino, 1).unwrap();
    let new = join(&mut rig, 1);
    retire(&mut rig);
    let session = SessionId(rig.session);
    let chunk = |session, seq, shard| ChunkId { segment: SegmentId { session, seq }, shard };
    let ours = chunk(session, 1, 0);
    let judge = |rig: &Rig, target, chunk| {
        let unwanted = rig.machine.unwanted(TargetId(target), vec![chunk]).unwrap();
        (unwanted.dead.len(), unwanted.misplaced.len())
    };
    assert_eq!(
        [judge(&rig, 1, ours), judge(&rig, 2, ours), judge(&rig, new, ours)],
        [(0, 0), (0, 1), (0, 1)]
    );
    step(&mut rig, Step::Begin, 0, new).unwrap();
    assert_eq!([judge(&rig, 1, ours), judge(&rig, new, ours)], [(0, 0), (0, 0)]);
    step(&mut rig, Step::Finish, 0, new).unwrap();
    assert_eq!([judge(&rig, 1, ours), judge(&rig, new, ours)], [(0, 1), (0, 0)]);
    assert_eq!(judge(&rig, new, chunk(session, 1, 9)), (0, 1), "there is no such shard");
    assert_eq!(judge(&rig, 1, chunk(session, 7, 0)), (0, 0), "it may be committed yet");
    assert_eq!(judge(&rig, 1, chunk(SessionId(99), 7, 0)), (1, 0));
    // Garbage is deleted where its seats are.
    let unlink = Op::Unlink(v1::UnlinkOp { parent: ROOT, name: "f".into() });
    run(&mut rig, unlink).unwrap();
    assert_eq!([judge(&rig, 1, ours), judge(&rig, new, ours)], [(0, 1), (0, 0)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// The list of a group is what names it: committed, or garbage and not told.
    #[test]
    fn a_group_lists_the_segments_that_name_it(
        steps in prop::collection::vec((0u8..3, 0u64..4), 1..40), page in 1usize..5,
    ) {
        let mut rig = Rig::in_memory();
        let files: Vec<u64> = (0..4).map(|n| file(&mut rig, &format!("f{n}"))).collect();
        // By file, the segment that it shows.
        let (mut shown, mut garbage) = (BTreeMap::new(), BTreeSet::new());
        for (seq, (what, at)) in (1u64..).zip(steps) {
            match what {
                0 | 1 => {
                    commit(&mut rig, files[at as usize], seq).unwrap();
                    garbage.extend(shown.insert(at, seq));
                }
                _ => {
                    let Some(seq) = garbage.pop_first() else { continue };
                    let segments = vec![v1::SegmentKey { session: rig.session, seq }];
                    rig.entry(Body::SegmentsFreed(v1::SegmentsFreedEntry { segments })).unwrap();
                }
            }
        }
        let (mut listed, mut after) = (BTreeSet::new(), None);
        loop {
            let found = rig.machine.group_segments(PgId(GROUP), false, after, page).unwrap();
            prop_assert_eq!(found.damaged, []);
            listed.extend(found.segments.iter().map(|info| info.id.unwrap().seq));
            if found.next.is_none() {
                break;
            }
            after = found.next;
        }
        prop_assert_eq!(listed, shown.into_values().collect());
        rig.check();
    }
}
