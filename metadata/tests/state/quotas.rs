//! Quotas: what is used is what there is, whatever was done, and no limit is passed by what asks.

use crate::model::{Cell, Model, ROOT};
use crate::requests::{self, Step};
use crate::rig::{Answer, Rig, ino, run};
use proptest::prelude::*;
use std::collections::BTreeSet;
use v1::extent::Source;
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use v1::quota_key::Kind;
use weft_proto::{ErrorKind, v1};

fn key(kind: Kind, id: u64) -> v1::QuotaKey {
    v1::QuotaKey { kind: kind.into(), id }
}

fn limit(kind: Kind, id: u64, bytes: u64, inodes: u64) -> v1::SetQuotaOp {
    v1::SetQuotaOp {
        key: Some(key(kind, id)),
        bytes: Some(bytes),
        inodes: Some(inodes),
        ..Default::default()
    }
}

fn set(rig: &mut Rig, op: v1::SetQuotaOp) -> Answer {
    run(rig, Op::SetQuota(op))
}

fn clear(rig: &mut Rig, dir: u64) -> Answer {
    let key = Some(key(Kind::Tree, dir));
    set(rig, v1::SetQuotaOp { key, clear: true, ..Default::default() })
}

fn quota(rig: &Rig, kind: Kind, id: u64) -> v1::QuotaInfo {
    let op = v1::GetQuotaOp { key: Some(key(kind, id)), ino: 0 };
    match rig.read(Op::GetQuota(op)) {
        Ok(Reply::GetQuota(mut reply)) => reply.quotas.remove(0),
        other => panic!("a quota answered {other:?}"),
    }
}

fn used(rig: &Rig, kind: Kind, id: u64) -> (u64, u64) {
    let quota = quota(rig, kind, id);
    (quota.bytes, quota.inodes)
}

/// Carries out one entry of what is to be counted, as the leader does. Answers whether there was
/// any.
fn count(rig: &mut Rig) -> bool {
    let Some((body, _)) = rig.machine.next_count().unwrap() else { return false };
    rig.entry(body).unwrap();
    true
}

fn count_all(rig: &mut Rig) {
    while count(rig) {}
}

fn mkdir(rig: &mut Rig, parent: u64, name: &str) -> u64 {
    let name = name.to_owned().into();
    match run(rig, Op::MkDir(v1::MkDirOp { parent, name, mode: 0o755, ..Default::default() })) {
        Ok(Reply::Attr(attr)) => attr.ino,
        other => panic!("mkdir answered {other:?}"),
    }
}

fn create_as(rig: &mut Rig, parent: u64, name: &str, uid: u32) -> Result<u64, ErrorKind> {
    let name = name.to_owned().into();
    let op = v1::CreateOp { parent, name, uid, gid: uid, exclusive: true, ..Default::default() };
    match run(rig, Op::Create(op))? {
        Reply::Open(open) => Ok(open.attr.unwrap().ino),
        other => panic!("create answered {other:?}"),
    }
}

fn create(rig: &mut Rig, parent: u64, name: &str) -> Result<u64, ErrorKind> {
    create_as(rig, parent, name, 0)
}

fn content(ino: u64, off: u64, len: usize) -> v1::CommitExtentsOp {
    let source = Some(Source::Inline(vec![1; len].into()));
    let extents = vec![v1::Extent { file_off: off, len: len as u64, source }];
    v1::CommitExtentsOp { ino, extents, ..Default::default() }
}

fn write(rig: &mut Rig, ino: u64, off: u64, len: usize) -> Answer {
    run(rig, Op::CommitExtents(content(ino, off, len)))
}

fn unlink(rig: &mut Rig, parent: u64, name: &str) {
    run(rig, Op::Unlink(v1::UnlinkOp { parent, name: name.to_owned().into() })).unwrap();
}

fn rename(rig: &mut Rig, from: (u64, &str), to: (u64, &str)) -> Result<(), ErrorKind> {
    let op = v1::RenameOp {
        parent: from.0,
        name: from.1.to_owned().into(),
        new_parent: to.0,
        new_name: to.1.to_owned().into(),
        flags: 0,
    };
    run(rig, Op::Rename(op)).map(drop)
}

#[test]
fn limits_of_a_directory_hold() {
    let mut rig = Rig::in_memory();
    let dir = mkdir(&mut rig, ROOT, "dir");
    set(&mut rig, limit(Kind::Tree, dir, 1000, 3)).unwrap();
    // It is empty: there is nothing to count.
    assert!(!quota(&rig, Kind::Tree, dir).counting);
    let a = create(&mut rig, dir, "a").unwrap();
    let sub = mkdir(&mut rig, dir, "sub");
    let b = create(&mut rig, sub, "b").unwrap();
    assert_eq!(create(&mut rig, sub, "c"), Err(ErrorKind::Quota));
    assert_eq!(used(&rig, Kind::Tree, dir), (0, 3));
    write(&mut rig, a, 0, 600).unwrap();
    assert_eq!(write(&mut rig, b, 0, 401).map(drop), Err(ErrorKind::Quota));
    write(&mut rig, b, 0, 400).unwrap();
    // What replaces as much adds nothing.
    write(&mut rig, b, 100, 300).unwrap();
    assert_eq!(write(&mut rig, a, 600, 1).map(drop), Err(ErrorKind::Quota));
    assert_eq!(used(&rig, Kind::Tree, dir), (1000, 3));
    rig.check();
    // Room is there as soon as a name is gone, also while the file is open.
    unlink(&mut rig, dir, "a");
    assert_eq!(used(&rig, Kind::Tree, dir), (400, 2));
    create(&mut rig, sub, "c").unwrap();
    // What is written to it from then on counts.
    assert_eq!(write(&mut rig, a, 600, 601).map(drop), Err(ErrorKind::Quota));
    write(&mut rig, a, 600, 100).unwrap();
    assert_eq!(used(&rig, Kind::Tree, dir), (500, 3));
    rig.check();
    rig.entry(Body::PurgeInodes(v1::PurgeInodesEntry { inos: vec![a] })).unwrap();
    assert_eq!(used(&rig, Kind::Tree, dir), (400, 3));
    let size = Some(0);
    run(&mut rig, Op::SetAttr(v1::SetAttrOp { ino: b, size, ..Default::default() })).unwrap();
    assert_eq!(used(&rig, Kind::Tree, dir), (0, 3));
    rig.check();
}

#[test]
fn what_was_done_already_is_only_told() {
    let mut rig = Rig::in_memory();
    let dir = mkdir(&mut rig, ROOT, "dir");
    set(&mut rig, limit(Kind::Tree, dir, 100, 1)).unwrap();
    let first = rig.reserve(8).unwrap();
    let make = |i: u64| v1::MakeOp {
        ino: first + i,
        parent: dir,
        name: format!("f{i}").into(),
        kind: v1::FileKind::Regular.into(),
        ..Default::default()
    };
    let step = |op| v1::batch_op::Step { op: Some(op), ..Default::default() };
    let mut steps: Vec<_> = (0..3).map(|i| step(v1::batch_op::step::Op::Make(make(i)))).collect();
    steps.push(step(v1::batch_op::step::Op::Commit(content(first, 0, 500))));
    let Ok(Reply::Batch(reply)) = run(&mut rig, Op::Batch(v1::BatchOp { steps, session: 0 }))
    else {
        panic!("a batch is refused")
    };
    assert_eq!((reply.done.len(), reply.error), (4, 0));
    assert_eq!(used(&rig, Kind::Tree, dir), (500, 3));
    assert_eq!(create(&mut rig, dir, "one more"), Err(ErrorKind::Quota));
    rig.check();
}

#[test]
fn quotas_lie_within_each_other() {
    let mut rig = Rig::in_memory();
    let top = mkdir(&mut rig, ROOT, "top");
    set(&mut rig, limit(Kind::Tree, top, 0, 3)).unwrap();
    let low = mkdir(&mut rig, top, "low");
    set(&mut rig, limit(Kind::Tree, low, 0, 5)).unwrap();
    create(&mut rig, low, "a").unwrap();
    create(&mut rig, low, "b").unwrap();
    // The one above stands against it.
    assert_eq!(create(&mut rig, low, "c"), Err(ErrorKind::Quota));
    assert_eq!((used(&rig, Kind::Tree, top).1, used(&rig, Kind::Tree, low).1), (3, 2));
    let Ok(Reply::GetQuota(found)) = rig.read(Op::GetQuota(v1::GetQuotaOp { key: None, ino: low }))
    else {
        panic!("no quotas")
    };
    let ids: Vec<_> = found.quotas.iter().map(|quota| quota.key.unwrap().id).collect();
    assert_eq!(ids, [low, top]);
    clear(&mut rig, low).unwrap();
    count_all(&mut rig);
    assert_eq!(used(&rig, Kind::Tree, top), (0, 3));
    assert_eq!(quota(&rig, Kind::Tree, low).inodes, 0);
    rig.check();
}

#[test]
fn directories_do_not_move_between_quotas_and_files_do() {
    let mut rig = Rig::in_memory();
    let one = mkdir(&mut rig, ROOT, "one");
    let two = mkdir(&mut rig, ROOT, "two");
    set(&mut rig, limit(Kind::Tree, one, 0, 0)).unwrap();
    set(&mut rig, limit(Kind::Tree, two, 50, 2)).unwrap();
    let sub = mkdir(&mut rig, one, "sub");
    let a = create(&mut rig, sub, "a").unwrap();
    write(&mut rig, a, 0, 40).unwrap();
    let link =
        |parent, name: &str| Op::Link(v1::LinkOp { ino: a, parent, name: name.to_owned().into() });
    assert_eq!(rename(&mut rig, (one, "sub"), (two, "sub")), Err(ErrorKind::CrossDevice));
    assert_eq!(rename(&mut rig, (one, "sub"), (ROOT, "sub")), Err(ErrorKind::CrossDevice));
    assert_eq!(run(&mut rig, link(two, "b")).map(drop), Err(ErrorKind::CrossDevice));
    rename(&mut rig, (sub, "a"), (two, "a")).unwrap();
    assert_eq!(used(&rig, Kind::Tree, one), (0, 1));
    assert_eq!(used(&rig, Kind::Tree, two), (40, 1));
    // Within one it may have several names, which then do not part.
    run(&mut rig, link(two, "b")).unwrap();
    assert_eq!(rename(&mut rig, (two, "a"), (one, "a")), Err(ErrorKind::CrossDevice));
    rename(&mut rig, (two, "a"), (two, "c")).unwrap();
    let big = create(&mut rig, one, "big").unwrap();
    write(&mut rig, big, 0, 60).unwrap();
    assert_eq!(rename(&mut rig, (one, "big"), (two, "big")), Err(ErrorKind::Quota));
    assert_eq!(used(&rig, Kind::Tree, one), (60, 2));
    // A directory with a quota moves where its own does not change hands.
    rename(&mut rig, (ROOT, "two"), (ROOT, "three")).unwrap();
    rig.check();
}

#[test]
fn what_was_there_is_counted_step_by_step() {
    let mut rig = Rig::in_memory();
    let top = mkdir(&mut rig, ROOT, "top");
    let mut dir = top;
    for depth in 0..5 {
        for i in 0..40 {
            let file = create(&mut rig, dir, &format!("f{i}")).unwrap();
            write(&mut rig, file, 0, 10).unwrap();
        }
        dir = mkdir(&mut rig, dir, &format!("d{depth}"));
    }
    set(&mut rig, limit(Kind::Tree, top, 1000, 100)).unwrap();
    assert!(quota(&rig, Kind::Tree, top).counting);
    count(&mut rig);
    // Nothing is refused yet; what is new counts, where it is made in what was marked.
    create(&mut rig, top, "new").unwrap();
    let deep = create(&mut rig, dir, "deep").unwrap();
    write(&mut rig, deep, 0, 7).unwrap();
    count(&mut rig);
    rename(&mut rig, (dir, "deep"), (top, "deep")).unwrap();
    rig.check();
    count_all(&mut rig);
    assert!(!quota(&rig, Kind::Tree, top).counting);
    assert_eq!(used(&rig, Kind::Tree, top), (2007, 207));
    assert_eq!(create(&mut rig, dir, "more"), Err(ErrorKind::Quota));
    rig.check();
    // A quota within, and one around it: both are counted.
    let Ok(inner) = rig.machine.child(weft_proto::InodeId(top), b"d0") else { panic!("no d0") };
    let inner = inner.unwrap().0;
    set(&mut rig, limit(Kind::Tree, inner, 0, 0)).unwrap();
    set(&mut rig, limit(Kind::Tree, ROOT, 0, 0)).unwrap();
    count_all(&mut rig);
    assert_eq!(used(&rig, Kind::Tree, inner), (1600, 164));
    assert_eq!(used(&rig, Kind::Tree, ROOT), (2007, 208));
    assert_eq!(used(&rig, Kind::Tree, top), (2007, 207));
    rig.check();
    clear(&mut rig, top).unwrap();
    // It is wanted again before that is done.
    count(&mut rig);
    set(&mut rig, limit(Kind::Tree, top, 5, 0)).unwrap();
    count_all(&mut rig);
    assert_eq!(used(&rig, Kind::Tree, top), (2007, 207));
    rig.check();
}

#[test]
fn users_and_groups_are_counted_from_their_first_quota_on() {
    let mut rig = Rig::in_memory();
    for i in 0..5 {
        let file = create_as(&mut rig, ROOT, &format!("f{i}"), 7).unwrap();
        write(&mut rig, file, 0, 10).unwrap();
    }
    assert_eq!(used(&rig, Kind::User, 7), (0, 0));
    set(&mut rig, limit(Kind::User, 7, 100, 6)).unwrap();
    assert!(quota(&rig, Kind::User, 7).counting);
    count_all(&mut rig);
    assert_eq!((used(&rig, Kind::User, 7), used(&rig, Kind::Group, 7)), ((50, 5), (50, 5)));
    let six = create_as(&mut rig, ROOT, "six", 7).unwrap();
    assert_eq!(create_as(&mut rig, ROOT, "seven", 7), Err(ErrorKind::Quota));
    assert_eq!(write(&mut rig, six, 0, 51).map(drop), Err(ErrorKind::Quota));
    // Another's file becomes his, or not.
    let other = create_as(&mut rig, ROOT, "other", 8).unwrap();
    let chown =
        |uid| Op::SetAttr(v1::SetAttrOp { ino: other, uid: Some(uid), ..Default::default() });
    assert_eq!(run(&mut rig, chown(7)).map(drop), Err(ErrorKind::Quota));
    unlink(&mut rig, ROOT, "six");
    run(&mut rig, chown(7)).unwrap();
    assert_eq!((used(&rig, Kind::User, 7).1, used(&rig, Kind::User, 8).1), (6, 0));
    rig.check();
}

#[test]
fn a_soft_limit_holds_when_its_time_is_over() {
    let mut rig = Rig::in_memory();
    let dir = mkdir(&mut rig, ROOT, "dir");
    let op =
        v1::SetQuotaOp { soft_inodes: Some(1), grace_s: Some(10), ..limit(Kind::Tree, dir, 0, 5) };
    set(&mut rig, op).unwrap();
    create(&mut rig, dir, "a").unwrap();
    create(&mut rig, dir, "b").unwrap();
    assert!(quota(&rig, Kind::Tree, dir).soft_inodes_since_ns > 0);
    create(&mut rig, dir, "c").unwrap();
    rig.time += 11_000_000_000;
    assert_eq!(create(&mut rig, dir, "d"), Err(ErrorKind::Quota));
    // Another limit is another time.
    let raised = v1::SetQuotaOp { soft_inodes: Some(4), ..limit(Kind::Tree, dir, 0, 5) };
    set(&mut rig, raised).unwrap();
    create(&mut rig, dir, "d").unwrap();
    unlink(&mut rig, dir, "d");
    let back = v1::SetQuotaOp { soft_inodes: Some(1), ..limit(Kind::Tree, dir, 0, 5) };
    set(&mut rig, back).unwrap();
    rig.time += 11_000_000_000;
    assert_eq!(create(&mut rig, dir, "d"), Err(ErrorKind::Quota));
    for name in ["b", "c"] {
        unlink(&mut rig, dir, name);
    }
    assert_eq!(quota(&rig, Kind::Tree, dir).soft_inodes_since_ns, 0);
    create(&mut rig, dir, "e").unwrap();
    let beyond = v1::SetQuotaOp { soft_bytes: Some(9), ..limit(Kind::Tree, dir, 8, 0) };
    assert_eq!(set(&mut rig, beyond), Err(ErrorKind::Invalid));
    rig.check();
}

#[test]
fn a_project_is_the_sum_of_its_directories() {
    let mut rig = Rig::in_memory();
    let (one, two) = (mkdir(&mut rig, ROOT, "one"), mkdir(&mut rig, ROOT, "two"));
    create(&mut rig, one, "a").unwrap();
    for dir in [one, two] {
        let project = Some(7);
        set(&mut rig, v1::SetQuotaOp { project, ..limit(Kind::Tree, dir, 0, 0) }).unwrap();
    }
    count_all(&mut rig);
    set(&mut rig, limit(Kind::Project, 7, 0, 3)).unwrap();
    create(&mut rig, two, "b").unwrap();
    create(&mut rig, one, "c").unwrap();
    assert_eq!(create(&mut rig, two, "d"), Err(ErrorKind::Quota));
    assert_eq!(used(&rig, Kind::Project, 7), (0, 3));
    // What lies in both would count twice.
    let sub = v1::SetQuotaOp { project: Some(7), ..limit(Kind::Tree, ROOT, 0, 0) };
    assert_eq!(set(&mut rig, sub), Err(ErrorKind::Invalid));
    clear(&mut rig, one).unwrap();
    count_all(&mut rig);
    assert_eq!(used(&rig, Kind::Project, 7), (0, 1));
    rig.check();
}

#[test]
fn a_directory_that_goes_takes_its_quota_along() {
    let mut rig = Rig::in_memory();
    let dir = mkdir(&mut rig, ROOT, "dir");
    set(&mut rig, limit(Kind::Tree, dir, 10, 10)).unwrap();
    create(&mut rig, dir, "a").unwrap();
    unlink(&mut rig, dir, "a");
    run(&mut rig, Op::RmDir(v1::RmDirOp { parent: ROOT, name: "dir".into() })).unwrap();
    let inos: Vec<_> = (1..20).map(ino).collect();
    rig.entry(Body::PurgeInodes(v1::PurgeInodesEntry { inos })).unwrap();
    let Ok(Reply::ListQuotas(list)) = rig.read(Op::ListQuotas(Default::default())) else {
        panic!("no list")
    };
    assert_eq!(list.quotas, []);
    for op in [
        limit(Kind::Tree, dir, 1, 1),
        limit(Kind::Tree, ino(999), 1, 1),
        v1::SetQuotaOp::default(),
        v1::SetQuotaOp { key: Some(v1::QuotaKey { kind: 99, id: 1 }), ..Default::default() },
        v1::SetQuotaOp { path: vec![b'a'; 5000].into(), ..limit(Kind::Tree, ROOT, 1, 1) },
        v1::SetQuotaOp { clear: true, ..limit(Kind::Tree, ROOT, 0, 0) },
    ] {
        assert!(set(&mut rig, op.clone()).is_err(), "{op:?}");
    }
    rig.check();
}

/// Random histories, in which quotas come and go.
struct World {
    rig: Rig,
    model: Model,
    next_seq: u64,
    limited: BTreeSet<u64>,
    /// Some file had names on both sides of a directory with a quota: it counts on one.
    crossed: bool,
}

#[derive(Clone, Debug)]
enum Do {
    Step(Step),
    Set(prop::sample::Index, u64),
    Clear(prop::sample::Index),
    Count,
}

impl World {
    fn new() -> Self {
        let rig = Rig::in_memory();
        let Ok(Reply::Layout(layout)) = rig.read(Op::GetLayout(v1::GetLayoutOp { ino: ROOT }))
        else {
            panic!("no layout")
        };
        let model = Model::new(1001, layout);
        Self { rig, model, next_seq: 1, limited: BTreeSet::new(), crossed: false }
    }

    fn dir(&self, index: &prop::sample::Index) -> u64 {
        let is_dir = |ino: &u64| self.model.links(*ino) >= 2 && self.model.is_dir(*ino);
        let dirs: Vec<u64> = self.model.nodes.keys().copied().filter(is_dir).collect();
        *index.get(&dirs)
    }

    fn carry_out(&mut self, what: &Do) {
        match what {
            Do::Count => drop(count(&mut self.rig)),
            Do::Set(index, inodes) => {
                let dir = self.dir(index);
                // Most limits are far away.
                let inodes = if *inodes < 30 { *inodes } else { 0 };
                set(&mut self.rig, limit(Kind::Tree, dir, inodes * 500, inodes)).unwrap();
                self.limited.insert(dir);
            }
            Do::Clear(index) => {
                let dir = self.dir(index);
                self.limited.remove(&dir);
                let _ = clear(&mut self.rig, dir);
            }
            Do::Step(Step::Purge) => {
                let orphans = self.rig.machine.orphans(weft_proto::InodeId(0), usize::MAX);
                let inos = orphans.unwrap().iter().map(|ino| ino.0).collect();
                self.rig.entry(Body::PurgeInodes(v1::PurgeInodesEntry { inos })).unwrap();
                self.limited.retain(|dir| self.model.links(*dir) > 0);
                self.model.purge();
            }
            Do::Step(Step::Free | Step::Retry) => {}
            Do::Step(step) => {
                let op = requests::resolve(step, &self.model, &self.rig, &mut self.next_seq);
                if let Ok(reply) = run(&mut self.rig, op.clone()) {
                    match (&op, reply) {
                        (Op::CopyRange(op), Reply::CopyRange(reply)) => {
                            self.model.copy(op, self.rig.time, Some(reply.copied)).map(drop)
                        }
                        _ => self.model.run(&op, self.rig.time).map(drop),
                    }
                    .unwrap();
                }
            }
        }
    }

    /// What the model finds below a directory: bytes, inodes; and whether files have names outside,
    /// too.
    fn below(&self, dir: u64) -> (u64, u64, bool) {
        let (mut seen, mut names, mut todo) = (BTreeSet::new(), 0, vec![dir]);
        while let Some(at) = todo.pop() {
            for &child in self.model.nodes[&at].children.values() {
                let is_dir = self.model.is_dir(child);
                names += u32::from(!is_dir);
                if seen.insert(child) {
                    todo.extend(Some(child).filter(|_| is_dir));
                }
            }
        }
        let files = || seen.iter().filter(|ino| !self.model.is_dir(**ino));
        let cells = files().flat_map(|ino| &self.model.nodes[ino].cells);
        let bytes = cells.filter(|cell| **cell != Cell::Hole).count() as u64;
        let outside = files().map(|ino| self.model.links(*ino)).sum::<u32>() != names;
        (bytes, seen.len() as u64, outside)
    }

    fn limited(&self) -> impl Iterator<Item = u64> {
        self.limited.iter().copied().filter(|dir| self.model.links(*dir) > 0)
    }

    fn compare(&self) {
        self.rig.check();
        if self.crossed {
            return;
        }
        let orphans = self.model.nodes.keys().any(|ino| self.model.links(*ino) == 0);
        for dir in self.limited() {
            let (bytes, inodes, _) = self.below(dir);
            let quota = quota(&self.rig, Kind::Tree, dir);
            if quota.counting {
                continue;
            }
            assert_eq!(quota.inodes, inodes, "inodes below {dir}");
            // What is written to files without names counts, too.
            assert!(quota.bytes == bytes || orphans && quota.bytes > bytes, "bytes below {dir}");
        }
    }
}

fn what() -> impl Strategy<Value = Do> {
    prop_oneof![
        12 => requests::step().prop_map(Do::Step),
        1 => (any::<prop::sample::Index>(), 0u64..90).prop_map(|(dir, n)| Do::Set(dir, n)),
        1 => any::<prop::sample::Index>().prop_map(Do::Clear),
        2 => Just(Do::Count),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_is_used_is_what_there_is(steps in prop::collection::vec(what(), 1..150)) {
        let mut world = World::new();
        for (i, step) in steps.iter().enumerate() {
            world.carry_out(step);
            let crossed = world.limited().any(|dir| world.below(dir).2);
            world.crossed |= crossed;
            if i % 16 == 0 {
                world.compare();
            }
        }
        count_all(&mut world.rig);
        world.compare();
        let log = std::mem::take(&mut world.rig.log);
        let again = weft_metadata::state::StateMachine::open_in_memory();
        for entries in log.chunks(7) {
            again.apply(entries).unwrap();
        }
        prop_assert!(again.dump().unwrap() == world.rig.machine.dump().unwrap());
    }
}
