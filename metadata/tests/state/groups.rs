//! Placement groups come and go: random changes of the targets, with commits, copies and removals
//! of what lies in the groups. Every segment's group is in the map as long as the segment is known;
//! a retired one that nothing needs goes at the next change that asks for it; ids are used once;
//! what was written to a group that has gone does not become visible; and the counts agree with a
//! count of everything.

use crate::rig::{Answer, ROOT, Rig, TARGETS};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use v1::extent::Source;
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use v1::set_target_state_entry::Change;
use weft_metadata::state::StateMachine;
use weft_proto::{ErrorKind, v1};

const FILES: usize = 3;
const LEN: u64 = 100;

#[derive(Clone, Debug)]
enum Step {
    /// So many new groups; all others are retired.
    Place(u32),
    /// So many new groups; of the others, every so many is retired.
    Change(u32, u32),
    Register,
    Flip(u32),
    /// A segment on the nth group that there ever was, at the nth hundred bytes of a file.
    Commit {
        file: usize,
        at: u64,
        group: usize,
    },
    /// The same with a file that is made by that.
    Make {
        group: usize,
    },
    Truncate {
        file: usize,
        at: u64,
    },
    Copy {
        from: usize,
        to: usize,
    },
    Free,
}

fn step() -> impl Strategy<Value = Step> {
    let file = || 0..FILES;
    let (at, group) = (|| 0u64..4, || 0usize..12);
    prop_oneof![
        2 => (0u32..3).prop_map(Step::Place),
        2 => (0u32..3, 1u32..4).prop_map(|(new, every)| Step::Change(new, every)),
        1 => Just(Step::Register),
        1 => (1..=TARGETS).prop_map(Step::Flip),
        6 => (file(), at(), group()).prop_map(|(file, at, group)| Step::Commit { file, at, group }),
        2 => group().prop_map(|group| Step::Make { group }),
        4 => (file(), at()).prop_map(|(file, at)| Step::Truncate { file, at }),
        2 => (file(), file()).prop_map(|(from, to)| Step::Copy { from, to }),
        3 => Just(Step::Free),
    ]
}

struct World {
    rig: Rig,
    files: Vec<u64>,
    /// Groups that must be there: whether they are retired.
    groups: BTreeMap<u32, bool>,
    /// All ids that were given out.
    made: BTreeSet<u32>,
    seq: u64,
    numbers: std::ops::Range<u64>,
}

impl World {
    fn new() -> Self {
        let mut rig = Rig::in_memory();
        let mut run = |op| {
            let request = rig.next_request(op);
            rig.request(request).unwrap()
        };
        let create =
            |i| v1::CreateOp { parent: ROOT, name: format!("f{i}").into(), ..Default::default() };
        let files = (0..FILES).map(|i| match run(Op::Create(create(i))) {
            Reply::Open(reply) => reply.attr.unwrap().ino,
            other => panic!("create answered {other:?}"),
        });
        let files = files.collect();
        let count = 100;
        let numbers =
            match run(Op::ReserveInodes(v1::ReserveInodesOp { count, ..Default::default() })) {
                Reply::ReserveInodes(reply) => reply.first..reply.first + u64::from(count),
                other => panic!("reserve answered {other:?}"),
            };
        let (groups, made) = (BTreeMap::from([(1, false)]), BTreeSet::from([1]));
        Self { rig, files, groups, made, seq: 0, numbers }
    }

    fn run(&mut self, op: Op) -> Answer {
        let request = self.rig.next_request(op);
        self.rig.request(request)
    }

    /// A commit with a new segment on the nth group of all.
    fn commit_op(&mut self, ino: u64, at: u64, nth: usize) -> (u32, v1::CommitExtentsOp) {
        let pg = *self.made.iter().nth(nth % self.made.len()).unwrap();
        self.seq += 1;
        let segment = v1::SegmentInfo { pg, ..self.rig.segment(self.seq, LEN) };
        let source = Some(Source::Segment(v1::SegmentPart { id: segment.id, off: 0 }));
        let extents = vec![v1::Extent { file_off: at * LEN, len: LEN, source }];
        (pg, v1::CommitExtentsOp { ino, extents, segments: vec![segment], ..Default::default() })
    }

    /// What is answered to a commit with a segment on this group.
    fn expected(&self, pg: u32) -> Result<(), ErrorKind> {
        self.groups.get(&pg).map(|_| ()).ok_or(ErrorKind::Misplaced)
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Place(count) => self.place(count, Some(self.seq as u32 % 4), None),
            Step::Change(count, every) => {
                self.place(count, Some(self.seq as u32 % 4), Some(every));
            }
            Step::Register => {
                let uuid = vec![100 + (self.rig.time % 100) as u8; 16].into();
                let target = Some(v1::TargetInfo { uuid, ..Default::default() });
                self.rig.entry(Body::RegisterTarget(v1::RegisterTargetEntry { target })).unwrap();
            }
            Step::Flip(target) => {
                let full = self.rig.time % 2 == 0;
                let changes = vec![Change {
                    target,
                    state: v1::TargetState::Up.into(),
                    full,
                    ..Default::default()
                }];
                self.rig.entry(Body::SetTargetState(v1::SetTargetStateEntry { changes })).unwrap();
            }
            Step::Commit { file, at, group } => {
                let (pg, op) = self.commit_op(self.files[file], at, group);
                let before = self.rig.attr(op.ino).unwrap();
                let answer = self.run(Op::CommitExtents(op)).map(drop);
                assert_eq!(answer, self.expected(pg));
                if answer.is_err() {
                    assert_eq!(self.rig.attr(before.ino).unwrap(), before);
                }
            }
            Step::Make { group } => {
                let Some(ino) = self.numbers.next() else { return };
                let (pg, op) = self.commit_op(ino, 0, group);
                let name = format!("made{ino}").into();
                let content = Some(op);
                let file = v1::make_files_op::File {
                    ino,
                    parent: ROOT,
                    name,
                    content,
                    ..Default::default()
                };
                let Ok(Reply::MakeFiles(reply)) =
                    self.run(Op::MakeFiles(v1::MakeFilesOp { files: vec![file] }))
                else {
                    panic!("make");
                };
                let expected = self.expected(pg).err().map_or(0, ErrorKind::code);
                assert_eq!(reply.files[0].error, expected);
                assert_eq!(self.rig.attr(ino).is_ok(), expected == 0);
            }
            Step::Truncate { file, at } => {
                let size = Some(at * LEN + LEN / 2);
                let op = v1::SetAttrOp { ino: self.files[file], size, ..Default::default() };
                self.run(Op::SetAttr(op)).unwrap();
            }
            Step::Copy { from, to } if from != to => {
                let (from, to) = (self.files[from], self.files[to]);
                let op = v1::CopyRangeOp { from, to, len: 4 * LEN, ..Default::default() };
                self.run(Op::CopyRange(op)).unwrap();
            }
            Step::Copy { .. } => {}
            Step::Free => {
                let garbage = self.rig.machine.garbage(None, usize::MAX).unwrap();
                let mut segments: Vec<_> = garbage.iter().filter_map(|g| g.id).collect();
                // The leader may ask twice, and for what is no garbage.
                segments.extend(segments.clone());
                let listed = self.rig.segments(9);
                segments.extend(listed.iter().filter_map(|item| item.segment.as_ref()?.id));
                self.rig.entry(Body::SegmentsFreed(v1::SegmentsFreedEntry { segments })).unwrap();
            }
        }
        self.compare();
    }

    /// Group ids of all segments that are known, those that wait for deletion too.
    fn named(&self) -> BTreeSet<u32> {
        self.rig.segments(7).into_iter().map(|item| item.segment.unwrap().pg).collect()
    }

    /// The leader asks for those that it has known to be retired for long, in use or not, and for
    /// others by mistake; not for every fourth, from `kept` on.
    fn place(&mut self, count: u32, kept: Option<u32>, every: Option<u32>) {
        let map = self.rig.machine.cluster_map().unwrap();
        let named = self.named();
        let targets: Vec<u32> = (1..=TARGETS).collect();
        let fresh = (map.next_pg..map.next_pg + count).map(|id| v1::PgInfo {
            id,
            targets: targets.clone(),
            retired: false,
            ..Default::default()
        });
        let pgs: Vec<_> = fresh.collect();
        // No id is used again.
        if let Some(&used) = self.made.iter().find(|id| !self.groups.contains_key(id)) {
            let again = v1::PgInfo { id: used, targets, retired: false, ..Default::default() };
            let entry = v1::SetPgsEntry {
                pool: 1,
                pgs: vec![again],
                based_on_epoch: map.epoch,
                ..Default::default()
            };
            assert_eq!(self.rig.entry(Body::SetPgs(entry)), Err(ErrorKind::Invalid));
        }
        let dropped: Vec<u32> = (0..=map.next_pg).filter(|id| Some(id % 4) != kept).collect();
        self.groups.retain(|id, retired| !*retired || named.contains(id) || !dropped.contains(id));
        // Of a change all that are not named stay; without `every`, none does.
        let others_stay = every.is_some();
        let is_retired = |id: &u32| every.is_none_or(|every| id.is_multiple_of(every));
        let retired = self.groups.keys().copied().filter(|id| others_stay && is_retired(id));
        let retired: Vec<u32> = retired.collect();
        self.groups.iter_mut().for_each(|(id, retired)| *retired |= is_retired(id));
        for pg in &pgs {
            self.groups.insert(pg.id, false);
            assert!(self.made.insert(pg.id), "group {} comes again", pg.id);
        }
        let entry = v1::SetPgsEntry {
            pool: 1,
            pgs,
            based_on_epoch: map.epoch,
            dropped,
            others_stay,
            retired,
        };
        self.rig.entry(Body::SetPgs(entry)).unwrap();
    }

    fn compare(&self) {
        let map = self.rig.machine.cluster_map().unwrap();
        let groups: BTreeMap<u32, bool> =
            map.pools[0].pgs.iter().map(|pg| (pg.id, pg.retired)).collect();
        assert_eq!(groups, self.groups);
        assert!(self.named().iter().all(|pg| groups.contains_key(pg)));
        assert!(self.made.iter().all(|&id| id < map.next_pg));
        self.rig.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn groups_live_as_long_as_they_are_needed(steps in prop::collection::vec(step(), 1..40)) {
        let mut world = World::new();
        steps.iter().for_each(|step| world.step(step));
        // When all is gone, so is every group but the last ones.
        for v1::DirEntry { name, .. } in world.rig.read_dir(ROOT, 50).0 {
            world.run(Op::Unlink(v1::UnlinkOp { parent: ROOT, name })).unwrap();
        }
        let orphans = world.rig.machine.orphans(weft_proto::InodeId(0), usize::MAX).unwrap();
        let inos = orphans.into_iter().map(|ino| ino.0).collect();
        world.rig.entry(Body::PurgeInodes(v1::PurgeInodesEntry { inos })).unwrap();
        world.step(&Step::Free);
        for count in [2, 1, 1] {
            world.place(count, None, None);
            world.compare();
        }
        prop_assert_eq!(world.groups.len(), 2);
        // The same log in one batch gives the same state.
        let again = StateMachine::open_in_memory();
        again.apply(&world.rig.log).unwrap();
        prop_assert!(again.dump().unwrap() == world.rig.machine.dump().unwrap());
    }
}
