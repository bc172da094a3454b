//! Random histories of operations on the state machine and on a simple model of POSIX: every answer
//! and, after every step, the whole visible tree must agree; the full check must stay clean; the
//! log replayed in other batches must give the same bytes in the store.

use crate::model::{Cell, Expected, Model, ROOT};
use crate::requests::{self, NAMES, Step};
use crate::rig::{Answer, Rig};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use v1::FileKind;
use v1::extent::Source;
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_metadata::state::StateMachine;
use weft_proto::{ErrorKind, v1};

/// The machine, the model, and what was seen of both.
struct World {
    rig: Rig,
    model: Model,
    /// Cookie of every name, for as long as it stands in its directory.
    cookies: BTreeMap<(u64, Vec<u8>), u64>,
    freed: BTreeSet<u64>,
    next_seq: u64,
    last: Option<(v1::MetaRequest, Answer)>,
}

impl World {
    fn new(rig: Rig) -> Self {
        // The entry that made the root was the first.
        let layout = match rig.read(Op::GetLayout(v1::GetLayoutOp { ino: ROOT })) {
            Ok(Reply::Layout(layout)) => layout,
            other => panic!("layout of the root answered {other:?}"),
        };
        let model = Model::new(1001, layout);
        let (cookies, freed) = (BTreeMap::new(), BTreeSet::new());
        Self { rig, model, cookies, freed, next_seq: 1, last: None }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Purge => self.purge(),
            Step::Free => self.free(),
            Step::Retry => self.retry(),
            step => {
                let op = requests::resolve(step, &self.model, &self.rig, &mut self.next_seq);
                self.operation(op);
            }
        }
        self.compare();
    }

    fn operation(&mut self, op: Op) {
        let request = self.rig.next_request(op.clone());
        let got = self.rig.request(request.clone());
        let want = match (&op, &got) {
            (Op::CopyRange(o), Ok(Reply::CopyRange(reply))) => {
                self.model.copy(o, self.rig.time, Some(reply.copied))
            }
            (Op::CopyRange(o), _) => self.model.copy(o, self.rig.time, None),
            _ => self.model.run(&op, self.rig.time),
        };
        match (&want, &got) {
            (Err(want), Err(got)) => assert_eq!(want, got, "{op:?}"),
            (Ok(want), Ok(got)) => self.answers(&op, want, got),
            _ => panic!("{op:?}\n model: {want:?}\n machine: {got:?}"),
        }
        self.last = Some((request, got));
    }

    fn answers(&self, op: &Op, want: &Expected, got: &Reply) {
        let attr = |ino: u64| self.model.attr(ino).ok();
        match (want, got) {
            (Expected::Nothing, Reply::Empty(_)) => {}
            (&Expected::Attr(ino), &Reply::Attr(got)) => assert_eq!(attr(ino), Some(got), "{op:?}"),
            (&Expected::Open(ino), Reply::Open(got)) => {
                assert_eq!(attr(ino), got.attr, "{op:?}");
                let want = self.rig.machine.open_reply(weft_proto::InodeId(ino)).unwrap();
                assert_eq!(&want, got, "{op:?}");
            }
            (&Expected::Commit(ino, base), Reply::CommitExtents(got)) => {
                assert_eq!((attr(ino), base), (got.attr, got.base), "{op:?}");
            }
            (&Expected::Copy(ino, copied), Reply::CopyRange(got)) => {
                assert_eq!((attr(ino), copied), (got.attr, got.copied), "{op:?}");
            }
            _ => panic!("{op:?}\n model: {want:?}\n machine: {got:?}"),
        }
    }

    fn purge(&mut self) {
        let orphans = self.rig.machine.orphans(weft_proto::InodeId(0), usize::MAX).unwrap();
        let inos: Vec<u64> = orphans.iter().map(|ino| ino.0).collect();
        self.rig.entry(Body::PurgeInodes(v1::PurgeInodesEntry { inos: inos.clone() })).unwrap();
        assert_eq!(inos, self.model.purge(), "orphans");
    }

    fn free(&mut self) {
        let garbage = self.rig.machine.garbage(None, usize::MAX).unwrap();
        let segments: Vec<_> = garbage.iter().filter_map(|g| g.id).collect();
        self.freed.extend(segments.iter().map(|s| s.seq));
        self.rig.entry(Body::SegmentsFreed(v1::SegmentsFreedEntry { segments })).unwrap();
    }

    /// The same request again: the same answer, and no effect.
    fn retry(&mut self) {
        let Some((request, answer)) = self.last.clone() else { return };
        assert_eq!(self.rig.request(request), answer, "a retry answered something else");
    }

    fn compare(&mut self) {
        let known: Vec<u64> = self.model.nodes.keys().copied().collect();
        for &ino in &known {
            assert_eq!(self.rig.attr(ino), self.model.attr(ino), "attributes of {ino}");
            match self.model.nodes[&ino].kind {
                FileKind::Directory => self.compare_directory(ino),
                FileKind::Regular => self.compare_content(ino),
                FileKind::Symlink => {
                    let got = self.rig.read(Op::ReadLink(v1::ReadLinkOp { ino }));
                    let want = self.model.nodes[&ino].target.clone().into();
                    assert_eq!(got, Ok(Reply::Data(want)), "target of {ino}");
                }
                _ => {}
            }
            self.compare_xattrs(ino);
        }
        let gone = known.last().unwrap() + 1;
        assert_eq!(self.rig.attr(gone), Err(ErrorKind::Stale), "inode {gone} does not exist");
    }

    fn compare_directory(&mut self, ino: u64) {
        if self.model.links(ino) == 0 {
            let op = Op::ReadDir(v1::ReadDirOp { ino, ..Default::default() });
            assert_eq!(self.rig.read(op), Err(ErrorKind::NotFound), "{ino} was removed");
            return;
        }
        let children = self.model.nodes[&ino].children.clone();
        let (entries, parent) = self.rig.read_dir(ino, 3);
        assert_eq!(parent, self.model.nodes[&ino].parent, "parent of {ino}");
        assert!(entries.windows(2).all(|w| w[0].cookie < w[1].cookie), "order of cookies in {ino}");
        let listed: BTreeMap<Vec<u8>, u64> =
            entries.iter().map(|e| (e.name.to_vec(), e.ino)).collect();
        assert_eq!(listed, children, "names in {ino}");
        assert_eq!(entries.len(), children.len(), "a name of {ino} is listed twice");
        self.cookies.retain(|(dir, name), _| *dir != ino || children.contains_key(name));
        for e in entries {
            assert_eq!(e.attr, self.model.attr(e.ino).ok(), "attributes with {:?}", e.name);
            assert_eq!(e.kind(), self.model.nodes[&e.ino].kind);
            assert!(e.cookie >= 3);
            let cookie = *self.cookies.entry((ino, e.name.to_vec())).or_insert(e.cookie);
            assert_eq!(cookie, e.cookie, "cookie of {:?}", e.name);
        }
        for name in NAMES {
            let op = v1::LookupOp { parent: ino, name: name.as_bytes().into() };
            let got = self.rig.read(Op::Lookup(op));
            let want = children.get(name.as_bytes()).and_then(|&c| self.model.attr(c).ok());
            assert_eq!(got, want.map(Reply::Attr).ok_or(ErrorKind::NotFound), "lookup of {name}");
        }
    }

    fn compare_content(&self, ino: u64) {
        let reply = self.rig.extents(ino, 0, u64::MAX);
        assert!(!reply.truncated);
        assert_eq!(reply.attr, self.model.attr(ino).ok());
        let want = &self.model.nodes[&ino].cells;
        let mut got: Vec<Cell> = vec![Cell::Hole; want.len()];
        let mut at = 0;
        for e in &reply.extents {
            assert!(e.file_off >= at && e.len > 0, "extents of {ino} overlap");
            at = e.file_off + e.len;
            let cells = &mut got[e.file_off as usize..at as usize];
            for (i, cell) in cells.iter_mut().enumerate() {
                *cell = match e.source.as_ref().unwrap() {
                    Source::Inline(bytes) => Cell::Inline(bytes[i]),
                    Source::Segment(p) => {
                        let id = p.id.unwrap();
                        assert!(reply.segments.iter().any(|s| s.id == Some(id)));
                        Cell::Segment(id.seq, p.off + i as u64)
                    }
                };
            }
        }
        assert!(&got == want, "content of {ino}: {:?}", reply.extents);
        // Any part of it shows exactly the extents that touch that part.
        let (from, len) = (at / 3, at / 2);
        let touching = |e: &&v1::Extent| e.file_off < from + len && e.file_off + e.len > from;
        let want: Vec<_> = reply.extents.iter().filter(touching).cloned().collect();
        assert_eq!(self.rig.extents(ino, from, len).extents, want, "part of {ino}");
    }

    fn compare_xattrs(&self, ino: u64) {
        let want = &self.model.nodes[&ino].xattrs;
        let Ok(Reply::ListXattr(list)) = self.rig.read(Op::ListXattr(v1::ListXattrOp { ino }))
        else {
            panic!("listxattr of {ino}")
        };
        assert!(list.names.iter().eq(want.keys()), "attributes of {ino}: {:?}", list.names);
        for (name, value) in want {
            let op = v1::GetXattrOp { ino, name: name.clone().into() };
            assert_eq!(self.rig.read(Op::GetXattr(op)), Ok(Reply::Data(value.clone().into())));
        }
    }

    /// The full check, and every segment against the bytes that the model has of it.
    fn check(&self) {
        let report = self.rig.check();
        assert_eq!(report.inodes, self.model.nodes.len() as u64);
        let items = self.rig.segments(5);
        let listed: BTreeSet<u64> =
            items.iter().map(|i| i.segment.as_ref().unwrap().id.unwrap().seq).collect();
        let known = self.model.segments.keys().copied();
        let want: BTreeSet<u64> = known.filter(|seq| !self.freed.contains(seq)).collect();
        assert_eq!(listed, want, "segments");
        for item in items {
            let seq = item.segment.unwrap().id.unwrap().seq;
            let live = self.model.live(seq);
            assert_eq!((item.live_bytes, item.garbage), (live, live == 0), "segment {seq}");
        }
    }

    /// Applies the log again, cut in batches by `cuts`, and expects the same answers and bytes.
    fn replay(&self, machine: StateMachine, cuts: &[usize]) {
        let mut cuts = cuts.iter().cycle();
        let mut rest = self.rig.log.as_slice();
        while !rest.is_empty() {
            let (batch, tail) = rest.split_at((*cuts.next().unwrap()).clamp(1, rest.len()));
            machine.apply(batch).unwrap();
            rest = tail;
        }
        assert_eq!(machine.applied(), self.rig.machine.applied());
        assert!(machine.dump().unwrap() == self.rig.machine.dump().unwrap(), "replicas diverged");
    }
}

fn run(rig: Rig, steps: &[Step]) -> World {
    let mut world = World::new(rig);
    for (i, step) in steps.iter().enumerate() {
        world.step(step);
        if i % 16 == 0 {
            world.check();
        }
    }
    world.check();
    world
}

fn history() -> impl Strategy<Value = (Vec<Step>, Vec<usize>)> {
    (prop::collection::vec(requests::step(), 1..180), prop::collection::vec(1usize..40, 1..8))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_posix_in_memory((steps, cuts) in history()) {
        let world = run(Rig::in_memory(), &steps);
        world.replay(StateMachine::open_in_memory(), &cuts);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_posix_on_disk((steps, cuts) in history()) {
        let dir = tempfile::tempdir().unwrap();
        let world = run(Rig::on_disk(&dir.path().join("a")), &steps);
        let other = StateMachine::open_with_cache(&dir.path().join("b"), 1 << 20).unwrap();
        world.replay(other, &cuts);
        world.replay(StateMachine::open_in_memory(), &cuts);
    }
}
