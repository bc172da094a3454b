//! Each invariant is broken by hand.

use super::*;
use crate::schema::{Dentry, Inode, Segment};
use crate::store::{Memory, Txn};
use crate::tables::locks;
use v1::FileKind;
use v1::extent::Source;
use v1::lock::Kind;
use v1::log_entry::Body;
use v1::meta_request::Op;
use weft_proto::locks::{LAST, Range, Ranges};
use weft_proto::{InodeId, SegmentId};

/// A filesystem with at least one record of every sort.
fn rich() -> Memory {
    with(Vec::new())
}

/// [`rich`], and what is done beside it.
pub(super) fn with(more: Vec<Op>) -> Memory {
    let profile = Some(v1::ProfileInfo { k: 1, m: 1 });
    let id = Some(v1::SegmentKey { session: 1, seq: 1 });
    let segment =
        v1::SegmentInfo { id, profile, unit: 4096, length: 100, pg: 1, seats: vec![0, 1].into() };
    let target = |n: u8| {
        let uuid = vec![n; 16].into();
        let target = Some(v1::TargetInfo { uuid, ..Default::default() });
        Body::RegisterTarget(v1::RegisterTargetEntry { target })
    };
    let cluster = vec![1; 16].into();
    let pgs = vec![v1::PgInfo { id: 1, targets: vec![1, 2], retired: false, ..Default::default() }];
    let nonce = vec![1; 16].into();
    let part = |ino, file_off, source| {
        Op::CommitExtents(v1::CommitExtentsOp {
            ino,
            extents: vec![v1::Extent { file_off, len: 10, source: Some(source) }],
            segments: if file_off == 0 { vec![segment.clone()] } else { vec![] },
            ..Default::default()
        })
    };
    let mkdir = |parent, name: &'static str| {
        Op::MkDir(v1::MkDirOp { parent, name: name.into(), ..Default::default() })
    };
    let create = |parent, name: &'static str| {
        Op::Create(v1::CreateOp { parent, name: name.into(), ..Default::default() })
    };
    let name = bytes::Bytes::from_static(b"user.x");
    let kind = Kind::Write.into();
    let lock = Some(v1::Lock { ino: 4, owner: 9, kind, end: 5, ..Default::default() });
    let ops = [
        mkdir(1, "a"),
        mkdir(2, "b"),
        create(3, "file"),
        create(1, "gone"),
        Op::Unlink(v1::UnlinkOp { parent: 1, name: "gone".into() }),
        part(4, 0, Source::Segment(v1::SegmentPart { id, off: 5 })),
        part(4, 10, Source::Inline(vec![7; 10].into())),
        Op::SetXattr(v1::SetXattrOp { ino: 4, name, ..Default::default() }),
        Op::Link(v1::LinkOp { ino: 4, parent: 1, name: "link".into() }),
        Op::SetLock(v1::SetLockOp { lock, ..Default::default() }),
    ];
    let open =
        Op::OpenSession(v1::OpenSessionOp { client: String::new(), nonce, ..Default::default() });
    let mut bodies = vec![
        Body::InitCluster(v1::InitClusterEntry { cluster, profile, members: vec![], shard: 0 }),
        target(1),
        target(2),
        Body::SetPgs(v1::SetPgsEntry { pool: 1, pgs, based_on_epoch: 3, ..Default::default() }),
    ];
    bodies.extend(std::iter::once(open).chain(ops).chain(more).enumerate().map(|(i, op)| {
        let (number, op) = (i as u64, Some(op));
        Body::Client(v1::MetaRequest { session: 1, number, acked_below: 0, op })
    }));
    let memory = Memory::default();
    let base = memory.snapshot();
    let mut tx = Txn::new(&*base);
    for body in bodies {
        let entry = v1::LogEntry { time_ns: 1, body: Some(body), ..Default::default() };
        let reply = crate::state::apply_entry(&mut tx, &entry).unwrap();
        assert_eq!(reply.error, 0, "{}", reply.message);
    }
    let changes = tx.into_changes();
    drop(base);
    memory.write(changes);
    memory
}

pub(super) fn problems(state: &dyn Read) -> Vec<String> {
    match Query::answer(&v1::CheckOp {}, state) {
        Ok(Reply::Check(report)) => report.problems,
        other => panic!("{other:?}"),
    }
}

/// All records with these tags.
pub(super) fn keys(state: &dyn Read, tags: &[Tag]) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    for tag in tags {
        let (from, to) = schema::all(*tag);
        let scanned = state.scan(&from, &to, &mut |key, _| {
            keys.push(key.to_vec());
            Ok(true)
        });
        scanned.unwrap();
    }
    keys
}

#[test]
fn a_missing_record_is_noticed() {
    let memory = rich();
    let state = memory.snapshot();
    assert_eq!(problems(&*state), Vec::<String>::new());
    let watched = [
        Tag::Inode,
        Tag::Dentry,
        Tag::Index,
        Tag::Extent,
        Tag::Xattr,
        Tag::Orphan,
        Tag::Segment,
        Tag::Group,
        Tag::Lock,
        Tag::LockOf,
        Tag::Session,
    ];
    for tag in watched {
        let keys = keys(&*state, &[tag]);
        assert!(!keys.is_empty(), "no {tag:?}");
        for key in keys {
            let mut tx = Txn::new(&*state);
            tx.delete(key.clone());
            assert!(!problems(&tx).is_empty(), "{tag:?} {key:02x?}");
        }
    }
}

#[test]
fn a_wrong_inode_is_noticed() {
    let memory = rich();
    let state = memory.snapshot();
    type Change = fn(&mut Inode);
    let of_any: [Change; 7] = [
        |i| i.attr.nlink += 1,
        |i| i.attr.ino += 1,
        |i| i.allocated += 1,
        |i| i.attr.blocks += 1,
        |i| i.attr.inline_bytes += 1,
        |i| i.xattr_bytes += 1,
        |i| i.xattr_list += 1,
    ];
    let of_dir: [Change; 4] =
        [|i| i.entries += 1, |i| i.parent = 4, |i| i.layout = None, |i| i.next_cookie = 0];
    let of_file: [Change; 3] =
        [|i| i.attr.size = 19, |i| i.content = 99, |i| i.attr.no_xattrs = true];
    let cases = [(2, &of_any[..]), (4, &of_any), (3, &of_dir), (4, &of_file)];
    for (ino, changes) in cases {
        for (i, change) in changes.iter().enumerate() {
            let mut inode = (&*state as &dyn Read).inode(InodeId(ino)).unwrap().unwrap();
            change(&mut inode);
            let mut tx = Txn::new(&*state);
            tx.put(schema::inode(InodeId(ino)), &inode);
            assert!(!problems(&tx).is_empty(), "change {i} of inode {ino}");
        }
    }
}

#[test]
fn locks_that_stand_against_each_other_are_noticed() {
    let memory = rich();
    let state = memory.snapshot();
    for (owner, flock, start, write, good) in [
        (8, false, 5, false, false),
        (8, false, 6, true, true),
        (8, true, 0, true, true),
        (9, false, 0, true, true),
    ] {
        let mut tx = Txn::new(&*state);
        let id = weft_proto::SessionId(1);
        let ranges = vec![Range { start, end: LAST, write }];
        let key = schema::lock(InodeId(4), flock, id, owner);
        locks::put(&mut tx, key, id, &Ranges { pid: 1, ranges });
        assert_eq!(problems(&tx).is_empty(), good, "{owner} {flock} {start} {write}");
    }
}

#[test]
fn records_of_no_inode_are_noticed() {
    let memory = rich();
    let state = memory.snapshot();
    let (none, id) = (InodeId(0x63), weft_proto::SessionId(1));
    let ranges = vec![Range { start: 0, end: 5, write: true }];
    let mut tx = Txn::new(&*state);
    locks::put(&mut tx, schema::lock(none, false, id, 9), id, &Ranges { pid: 1, ranges });
    assert_eq!(problems(&tx), ["Lock record of inode 63, which does not exist"]);
}

#[test]
fn a_loop_and_wrong_accounts_are_noticed() {
    let memory = rich();
    let state = memory.snapshot();
    // Directory 2 moves below its own child 3.
    let mut tx = Txn::new(&*state);
    let dentry = Dentry { ino: 2, kind: FileKind::Directory.into(), cookie: 9 };
    tx.delete(schema::dentry(InodeId::ROOT, b"a"));
    tx.put(schema::dentry(InodeId(3), b"a"), &dentry);
    assert!(problems(&tx).iter().any(|p| p.contains("does not lead to the root")));

    let mut tx = Txn::new(&*state);
    let id = SegmentId { session: weft_proto::SessionId(1), seq: 1 };
    let mut segment: Segment = tx.state().load(&schema::segment(id)).unwrap().unwrap();
    segment.live_bytes += 1;
    tx.put(schema::segment(id), &segment);
    assert!(!problems(&tx).is_empty());

    let mut tx = Txn::new(&*state);
    tx.edit_counters(|c| c.inodes += 1).unwrap();
    assert!(!problems(&tx).is_empty());

    let mut tx = Txn::new(&*state);
    tx.leave_group(1, id).unwrap();
    assert_eq!(
        problems(&tx),
        [
            "segment 1.1: its placement group does not list it",
            "placement group 1: 1 segments, counts 0",
        ]
    );

    let mut tx = Txn::new(&*state);
    tx.edit_counters(|c| c.next_pg -= 1).unwrap();
    assert_eq!(problems(&tx), ["placement group 1: the next would be 1"]);
}
