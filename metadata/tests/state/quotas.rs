//! Quotas: what is used is what there is, whatever was done, and no limit is passed by what asks.

use crate::model::ROOT;
use crate::rig::{Answer, Rig, ino, run};
use v1::extent::Source;
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use v1::quota_key::Kind;
use weft_proto::{ErrorKind, v1};

fn key(kind: Kind, id: u64) -> v1::QuotaKey {
    v1::QuotaKey { kind: kind.into(), id }
}

pub(crate) fn limit(kind: Kind, id: u64, bytes: u64, inodes: u64) -> v1::SetQuotaOp {
    v1::SetQuotaOp {
        key: Some(key(kind, id)),
        bytes: Some(bytes),
        inodes: Some(inodes),
        ..Default::default()
    }
}

pub(crate) fn set(rig: &mut Rig, op: v1::SetQuotaOp) -> Answer {
    run(rig, Op::SetQuota(op))
}

pub(crate) fn clear(rig: &mut Rig, dir: u64) -> Answer {
    let key = Some(key(Kind::Tree, dir));
    set(rig, v1::SetQuotaOp { key, clear: true, ..Default::default() })
}

pub(crate) fn quota(rig: &Rig, kind: Kind, id: u64) -> v1::QuotaInfo {
    let op = v1::GetQuotaOp { key: Some(key(kind, id)), ..Default::default() };
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
pub(crate) fn count(rig: &mut Rig) -> bool {
    let Some((body, _)) = rig.machine.next_count().unwrap() else { return false };
    rig.entry(body).unwrap();
    true
}

pub(crate) fn count_all(rig: &mut Rig) {
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

/// Removes all that has lost its last name, as the leader does once nobody has it open.
pub(crate) fn purge(rig: &mut Rig) {
    let orphans = rig.machine.orphans(weft_proto::InodeId(0), usize::MAX).unwrap();
    let inos = orphans.iter().map(|ino| ino.0).collect();
    rig.entry(Body::PurgeInodes(v1::PurgeInodesEntry { inos })).unwrap();
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
    // What has no name any more, and is open still, counts until it is purged.
    unlink(&mut rig, dir, "a");
    assert_eq!(used(&rig, Kind::Tree, dir), (1000, 3));
    assert_eq!(create(&mut rig, sub, "c"), Err(ErrorKind::Quota));
    assert_eq!(write(&mut rig, a, 600, 1).map(drop), Err(ErrorKind::Quota));
    rig.check();
    purge(&mut rig);
    assert_eq!(used(&rig, Kind::Tree, dir), (400, 2));
    create(&mut rig, sub, "c").unwrap();
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
    let Ok(Reply::Batch(reply)) =
        run(&mut rig, Op::Batch(v1::BatchOp { steps, ..Default::default() }))
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
    let Ok(Reply::GetQuota(found)) =
        rig.read(Op::GetQuota(v1::GetQuotaOp { ino: low, ..Default::default() }))
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
fn what_is_yet_to_be_counted_moves_within_its_quota() {
    let mut rig = Rig::in_memory();
    let top = mkdir(&mut rig, ROOT, "top");
    let (a, b) = (mkdir(&mut rig, top, "a"), mkdir(&mut rig, top, "b"));
    let low = mkdir(&mut rig, a, "low");
    for (dir, name) in [(a, "f"), (low, "g"), (b, "h")] {
        let file = create(&mut rig, dir, name).unwrap();
        write(&mut rig, file, 0, 10).unwrap();
    }
    let link =
        |ino, name: &str| Op::Link(v1::LinkOp { ino, parent: a, name: name.to_owned().into() });
    let f = rig.machine.child(weft_proto::InodeId(a), b"f").unwrap().unwrap().0;
    set(&mut rig, limit(Kind::Tree, top, 1000, 100)).unwrap();
    // The directory itself, then the names in it: nothing in `a` and `b` is marked then.
    count(&mut rig);
    count(&mut rig);
    assert_eq!(used(&rig, Kind::Tree, top), (0, 2));
    run(&mut rig, link(f, "f2")).unwrap();
    rename(&mut rig, (a, "f"), (a, "f3")).unwrap();
    rename(&mut rig, (a, "low"), (a, "low2")).unwrap();
    rename(&mut rig, (a, "low2"), (b, "low")).unwrap();
    assert_eq!(rename(&mut rig, (b, "low"), (ROOT, "low")), Err(ErrorKind::CrossDevice));
    rig.check();
    count_all(&mut rig);
    assert_eq!(used(&rig, Kind::Tree, top), (30, 6));
    assert_eq!(
        run(&mut rig, Op::Link(v1::LinkOp { ino: f, parent: ROOT, name: "x".into() })).map(drop),
        Err(ErrorKind::CrossDevice)
    );
    rig.check();
}

#[test]
fn a_quota_that_comes_back_counts_what_is_open_without_a_name() {
    let mut rig = Rig::in_memory();
    let dir = mkdir(&mut rig, ROOT, "dir");
    set(&mut rig, limit(Kind::Tree, dir, 1000, 10)).unwrap();
    let file = create(&mut rig, dir, "f").unwrap();
    unlink(&mut rig, dir, "f");
    clear(&mut rig, dir).unwrap();
    count_all(&mut rig);
    write(&mut rig, file, 0, 100).unwrap();
    rig.check();
    set(&mut rig, limit(Kind::Tree, dir, 500, 10)).unwrap();
    count_all(&mut rig);
    assert_eq!(used(&rig, Kind::Tree, dir), (100, 1));
    assert_eq!(write(&mut rig, file, 100, 401).map(drop), Err(ErrorKind::Quota));
    purge(&mut rig);
    assert_eq!(used(&rig, Kind::Tree, dir), (0, 0));
    rig.check();
}

#[test]
fn one_walk_is_begun_only_by_the_entry_that_was_made_for_it() {
    let mut rig = Rig::in_memory();
    let (one, two) = (mkdir(&mut rig, ROOT, "one"), mkdir(&mut rig, ROOT, "two"));
    for dir in [one, two] {
        create(&mut rig, dir, "f").unwrap();
    }
    set(&mut rig, limit(Kind::Tree, two, 0, 9)).unwrap();
    let Some((body, inos)) = rig.machine.next_count().unwrap() else { panic!("nothing to count") };
    assert_eq!(inos, [weft_proto::InodeId(two)]);
    // Another one comes before it meanwhile, whose leases nobody has taken back.
    set(&mut rig, limit(Kind::Tree, one, 0, 9)).unwrap();
    rig.entry(body).unwrap();
    let (_, inos) = rig.machine.next_count().unwrap().unwrap();
    assert_eq!(inos, [weft_proto::InodeId(one)]);
    count_all(&mut rig);
    assert_eq!((used(&rig, Kind::Tree, one).1, used(&rig, Kind::Tree, two).1), (1, 1));
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
    purge(&mut rig);
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
    purge(&mut rig);
    let back = v1::SetQuotaOp { soft_inodes: Some(1), ..limit(Kind::Tree, dir, 0, 5) };
    set(&mut rig, back).unwrap();
    rig.time += 11_000_000_000;
    assert_eq!(create(&mut rig, dir, "d"), Err(ErrorKind::Quota));
    for name in ["b", "c"] {
        unlink(&mut rig, dir, name);
    }
    purge(&mut rig);
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
