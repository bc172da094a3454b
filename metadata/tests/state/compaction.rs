//! Bytes of files that are written again elsewhere, while the files are changed: they show what
//! they would have shown, and nothing is left over.

use crate::rig::{ROOT, Rig, run};
use proptest::prelude::*;
use std::collections::BTreeMap;
use v1::extent::Source;
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use v1::move_extents_entry::Move;
use weft_proto::{ErrorKind, v1};

const SIZE: u64 = 40;

#[derive(Clone, Debug)]
enum Step {
    Write {
        file: usize,
        off: u64,
        len: u64,
    },
    Punch {
        file: usize,
        off: u64,
        len: u64,
    },
    Truncate {
        file: usize,
        size: u64,
    },
    Copy {
        from: usize,
        off: u64,
        to: u64,
        len: u64,
    },
    /// A range is copied into new segments, as it is now.
    Order {
        file: usize,
        off: u64,
        len: u64,
    },
    /// The oldest order comes back.
    Done,
}

fn step() -> impl Strategy<Value = Step> {
    let (file, off, len) = (0..2usize, 0..SIZE - 8, 1..8u64);
    let range = (file.clone(), off.clone(), len.clone());
    prop_oneof![
        4 => range.clone().prop_map(|(file, off, len)| Step::Write { file, off, len }),
        1 => range.clone().prop_map(|(file, off, len)| Step::Punch { file, off, len }),
        1 => (file, 0..SIZE).prop_map(|(file, size)| Step::Truncate { file, size }),
        1 => (0..2usize, off.clone(), off, len)
            .prop_map(|(from, off, to, len)| Step::Copy { from, off, to, len }),
        2 => (0..2usize, 0..SIZE - 20, 1..20u64)
            .prop_map(|(file, off, len)| Step::Order { file, off, len }),
        2 => Just(Step::Done),
    ]
}

/// A byte of a segment.
type Place = (u64, u64, u64);

struct World {
    rig: Rig,
    files: [u64; 2],
    /// What each file shows: bytes that are told apart, 0 for holes.
    content: [Vec<u64>; 2],
    bytes: BTreeMap<Place, u64>,
    orders: Vec<v1::MoveExtentsEntry>,
    writer: u64,
    fresh: u64,
}

impl World {
    fn new() -> Self {
        let mut rig = Rig::in_memory();
        let files = ["a", "b"].map(|name| create(&mut rig, name));
        let writer = open_writer(&mut rig);
        let (content, orders) = ([Vec::new(), Vec::new()], Vec::new());
        Self { rig, files, content, bytes: BTreeMap::new(), orders, writer, fresh: 0 }
    }

    fn fresh(&mut self) -> u64 {
        self.fresh += 1;
        self.fresh
    }

    fn write(&mut self, file: usize, off: u64, len: u64) {
        let seq = self.fresh();
        let info = self.rig.segment(seq, len);
        let session = self.rig.session;
        let content = &mut self.content[file];
        content.resize(content.len().max((off + len) as usize), 0);
        for i in 0..len {
            self.fresh += 1;
            self.bytes.insert((session, seq, i), self.fresh);
            content[(off + i) as usize] = self.fresh;
        }
        let source = Some(Source::Segment(v1::SegmentPart { id: info.id, off: 0 }));
        let extents = vec![v1::Extent { file_off: off, len, source }];
        let (ino, segments) = (self.files[file], vec![info]);
        let op = v1::CommitExtentsOp { ino, extents, segments, ..Default::default() };
        run(&mut self.rig, Op::CommitExtents(op)).unwrap();
    }

    /// All in one new segment, and what is in there in two if it is long.
    fn order(&mut self, file: usize, off: u64, len: u64) {
        let found = self.rig.extents(self.files[file], off, len).extents;
        let within = |e: &v1::Extent| {
            let (from, to) = (e.file_off.max(off), (e.file_off + e.len).min(off + len));
            let Some(Source::Segment(part)) = &e.source else { panic!("{e:?}") };
            let part = v1::SegmentPart { id: part.id, off: part.off + (from - e.file_off) };
            (from, to - from, part)
        };
        let parts: Vec<_> = found.iter().map(within).filter(|(_, len, _)| *len > 0).collect();
        let bytes: u64 = parts.iter().map(|(_, len, _)| len).sum();
        if bytes == 0 {
            return;
        }
        let seq = self.fresh();
        let info = v1::SegmentInfo {
            id: Some(v1::SegmentKey { session: self.writer, seq }),
            ..self.rig.segment(seq, bytes)
        };
        let (mut moves, mut at) = (Vec::new(), 0);
        for (file_off, len, from) in parts {
            let id = from.id.unwrap();
            for i in 0..len {
                let byte = self.bytes[&(id.session, id.seq, from.off + i)];
                self.bytes.insert((self.writer, seq, at + i), byte);
            }
            let to = Some(v1::SegmentPart { id: info.id, off: at });
            moves.push(Move { file_off, len, from: Some(from), to });
            at += len;
        }
        let (ino, session) = (self.files[file], self.writer);
        self.orders.push(v1::MoveExtentsEntry { ino, session, moves, segments: vec![info] });
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Write { file, off, len } => self.write(file, off, len),
            Step::Punch { file, off, len } => {
                let ino = self.files[file];
                let op = v1::FallocateOp { ino, off, len, keep_size: true, hole: true };
                run(&mut self.rig, Op::Fallocate(op)).unwrap();
                let end = self.content[file].len();
                let hole = (off as usize).min(end)..((off + len) as usize).min(end);
                self.content[file][hole].fill(0);
            }
            Step::Truncate { file, size } => {
                let ino = self.files[file];
                let op = v1::SetAttrOp { ino, size: Some(size), ..Default::default() };
                run(&mut self.rig, Op::SetAttr(op)).unwrap();
                self.content[file].resize(size as usize, 0);
            }
            Step::Copy { from, off, to, len } => {
                let len = len.min((self.content[from].len() as u64).saturating_sub(off));
                let to_file = 1 - from;
                if len == 0 {
                    return;
                }
                let (from_ino, to_ino) = (self.files[from], self.files[to_file]);
                let op =
                    v1::CopyRangeOp { from: from_ino, from_off: off, to: to_ino, to_off: to, len };
                run(&mut self.rig, Op::CopyRange(op)).unwrap();
                let copied: Vec<u64> =
                    self.content[from][off as usize..(off + len) as usize].to_vec();
                let into = &mut self.content[to_file];
                into.resize(into.len().max((to + len) as usize), 0);
                into[to as usize..(to + len) as usize].copy_from_slice(&copied);
            }
            Step::Order { file, off, len } => self.order(file, off, len),
            Step::Done if self.orders.is_empty() => {}
            Step::Done => {
                let entry = self.orders.remove(0);
                let before = self.rig.attr(entry.ino).unwrap();
                self.rig.entry(Body::MoveExtents(entry.clone())).unwrap();
                let after = self.rig.attr(entry.ino).unwrap();
                assert_eq!(after, before, "nothing that anybody looks at changes");
                let again = self.rig.entry(Body::MoveExtents(entry));
                assert_eq!(again.map(drop), Err(ErrorKind::Invalid), "once is enough");
            }
        }
    }

    fn assert_same(&self) {
        for (file, content) in self.files.iter().zip(&self.content) {
            let mut shown = vec![0; content.len()];
            for e in self.rig.extents(*file, 0, u64::MAX).extents {
                let Some(Source::Segment(part)) = &e.source else { panic!("{e:?}") };
                let id = part.id.unwrap();
                for i in 0..e.len {
                    shown[(e.file_off + i) as usize] =
                        self.bytes[&(id.session, id.seq, part.off + i)];
                }
            }
            assert_eq!(&shown, content);
        }
        self.rig.check();
    }
}

fn create(rig: &mut Rig, name: &str) -> u64 {
    let op = v1::CreateOp { parent: ROOT, name: name.to_owned().into(), ..Default::default() };
    match run(rig, Op::Create(op)) {
        Ok(Reply::Open(v1::OpenReply { attr: Some(attr), .. })) => attr.ino,
        other => panic!("create answered {other:?}"),
    }
}

fn open_writer(rig: &mut Rig) -> u64 {
    match rig.entry(Body::OpenWriter(v1::OpenWriterEntry {})) {
        Ok(Reply::OpenSession(opened)) => opened.session,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn files_show_what_they_would_have_shown(steps in prop::collection::vec(step(), 1..40)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            world.assert_same();
        }
    }
}

#[test]
fn what_a_writer_that_has_ended_wrote_is_not_shown() {
    let mut world = World::new();
    world.write(0, 0, 8);
    world.order(0, 0, 8);
    let session = world.writer;
    assert!(world.rig.machine.clients().unwrap().iter().all(|(id, _)| id.0 != session));
    assert_eq!(world.rig.machine.writers().unwrap().len(), 1);
    world.rig.entry(Body::ExpireSession(v1::ExpireSessionEntry { session })).unwrap();
    assert_eq!(world.rig.machine.writers().unwrap(), []);
    let entry = world.orders.remove(0);
    let late = world.rig.entry(Body::MoveExtents(entry));
    assert_eq!(late.map(drop), Err(ErrorKind::SessionExpired));
    world.assert_same();
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut world = World::new();
    world.write(0, 0, 8);
    world.order(0, 0, 8);
    let good = world.orders.remove(0);
    let (client, other) = (world.rig.session, create(&mut world.rig, "c"));
    let wrong: [&dyn Fn(&mut v1::MoveExtentsEntry); 7] = [
        &|e| e.session = client,
        &|e| e.moves[0].to = None,
        &|e| e.moves[0].from.as_mut().unwrap().id = None,
        &|e| e.moves[0].len = 9,
        &|e| e.moves[0].to.as_mut().unwrap().off = u64::MAX,
        &|e| e.moves.push(e.moves[0]),
        &|e| e.segments[0].profile = Some(v1::ProfileInfo { k: 2, m: 0 }),
    ];
    for (at, wrong) in wrong.iter().enumerate() {
        let mut entry = good.clone();
        wrong(&mut entry);
        assert!(world.rig.entry(Body::MoveExtents(entry)).is_err(), "{at}");
        world.assert_same();
    }
    // Of a file that shows something else, or is no more, nothing moves, and nothing is left over.
    for (at, ino) in [other, u64::MAX].into_iter().enumerate() {
        let mut entry = v1::MoveExtentsEntry { ino, ..good.clone() };
        let id = Some(v1::SegmentKey { session: world.writer, seq: 1000 + at as u64 });
        entry.segments[0].id = id;
        entry.moves[0].to.as_mut().unwrap().id = id;
        world.rig.entry(Body::MoveExtents(entry)).unwrap();
    }
    let garbage = world.rig.segments(0).iter().filter(|item| item.garbage).count();
    assert_eq!(garbage, 2);
    world.assert_same();
}
