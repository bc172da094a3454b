//! What a commit refuses, how content of very many extents is deleted in steps, and that inline
//! appends do not pile up.

use crate::rig::{ROOT, Rig, ino, run};
use v1::extent::Source;
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_proto::ErrorKind::{self, *};
use weft_proto::{InodeId, v1};

fn create(rig: &mut Rig, name: &str) -> u64 {
    let op = v1::CreateOp { parent: ROOT, name: name.to_string().into(), ..Default::default() };
    let request = rig.next_request(Op::Create(op));
    match rig.request(request) {
        Ok(Reply::Open(reply)) => reply.attr.unwrap().ino,
        other => panic!("create answered {other:?}"),
    }
}

fn of(info: &v1::SegmentInfo, file_off: u64, len: u64, off: u64) -> v1::Extent {
    let source = Some(Source::Segment(v1::SegmentPart { id: info.id, off }));
    v1::Extent { file_off, len, source }
}

fn inline(file_off: u64, len: u64, bytes: usize) -> v1::Extent {
    v1::Extent { file_off, len, source: Some(Source::Inline(vec![1; bytes].into())) }
}

#[test]
fn malformed_commits_are_refused_and_leave_nothing() {
    let mut rig = Rig::in_memory();
    let file = create(&mut rig, "f");
    let s = rig.segment(1, 100);
    let known = rig.segment(50, 100);
    let op = |extents: Vec<v1::Extent>, segments: Vec<v1::SegmentInfo>| v1::CommitExtentsOp {
        ino: file,
        extents,
        segments,
        ..Default::default()
    };
    run(&mut rig, Op::CommitExtents(op(vec![of(&known, 0, 100, 0)], vec![known.clone()]))).unwrap();
    let with = |change: &dyn Fn(&mut v1::SegmentInfo)| {
        let mut s = s.clone();
        change(&mut s);
        s
    };
    let one = |s: &v1::SegmentInfo| vec![of(s, 0, 10, 0)];
    let foreign = with(&|s| s.id = Some(v1::SegmentKey { session: 99, seq: 1 }));
    let cases: Vec<(&str, ErrorKind, v1::CommitExtentsOp)> = vec![
        ("foreign session", Invalid, op(one(&foreign), vec![foreign.clone()])),
        ("committed before", Invalid, op(one(&known), vec![known.clone()])),
        ("unknown", Stale, op(one(&s), vec![])),
        ("unused", Invalid, op(vec![inline(0, 1, 1)], vec![s.clone()])),
        ("twice", Invalid, op(one(&s), vec![s.clone(), s.clone()])),
        ("past its end", Invalid, op(vec![of(&s, 0, 10, 91)], vec![s.clone()])),
        ("overflow", Invalid, op(vec![of(&s, 0, 10, u64::MAX)], vec![s.clone()])),
        ("empty", Invalid, op(vec![of(&s, 0, 0, 0)], vec![s.clone()])),
        ("overlap", Invalid, op(vec![of(&s, 0, 10, 0), of(&s, 9, 10, 0)], vec![s.clone()])),
        ("order", Invalid, op(vec![of(&s, 20, 10, 0), of(&s, 0, 10, 0)], vec![s.clone()])),
        ("inline length", Invalid, op(vec![inline(0, 2, 3)], vec![])),
        ("no source", Protocol, op(vec![v1::Extent { source: None, ..inline(0, 1, 1) }], vec![])),
        ("too far", TooLarge, op(vec![of(&s, (16 << 40) - 9, 10, 0)], vec![s.clone()])),
        ("offset overflow", TooLarge, op(vec![of(&s, u64::MAX, 10, 0)], vec![s.clone()])),
        (
            "too long",
            TooLarge,
            v1::CommitExtentsOp { min_size: (16 << 40) + 1, ..op(vec![], vec![]) },
        ),
        (
            "append",
            Invalid,
            v1::CommitExtentsOp { min_size: 1, append: true, ..op(vec![], vec![]) },
        ),
        ("group", Invalid, {
            let s = with(&|s| s.pg = 9);
            op(one(&s), vec![s])
        }),
        ("seat", Invalid, {
            let s = with(&|s| s.seats = vec![0, 1, 4].into());
            op(one(&s), vec![s])
        }),
        ("same seat", Protocol, {
            let s = with(&|s| s.seats = vec![0, 1, 1].into());
            op(one(&s), vec![s])
        }),
        ("unit", Protocol, {
            let s = with(&|s| s.unit = 100);
            op(one(&s), vec![s])
        }),
        ("length", Protocol, {
            let s = with(&|s| s.length = 65 << 20);
            op(one(&s), vec![s])
        }),
        ("no id", Protocol, {
            let s = with(&|s| s.id = None);
            op(vec![], vec![s])
        }),
        ("weaker than the layout", Invalid, {
            let s = with(&|s| {
                s.profile = Some(v1::ProfileInfo { k: 2, m: 0 });
                s.seats = vec![0, 1].into();
            });
            op(one(&s), vec![s])
        }),
        ("inline limit", InlineFull, op(vec![inline(0, 16385, 16385)], vec![])),
        ("directory", IsDirectory, v1::CommitExtentsOp { ino: ROOT, ..op(vec![], vec![]) }),
        ("no inode", Stale, v1::CommitExtentsOp { ino: ino(777), ..op(vec![], vec![]) }),
        (
            "another version",
            Stale,
            v1::CommitExtentsOp { expect_version: Some(99), ..op(vec![], vec![]) },
        ),
    ];
    for (what, kind, op) in cases {
        let before = (rig.attr(file).unwrap(), rig.extents(file, 0, u64::MAX), rig.segments(0));
        assert_eq!(run(&mut rig, Op::CommitExtents(op)), Err(kind), "{what}");
        let after = (rig.attr(file).unwrap(), rig.extents(file, 0, u64::MAX), rig.segments(0));
        assert_eq!(before, after, "{what}");
        rig.check();
    }
}

/// What a session that is over had set beside its data undoes nothing that others have set since;
/// its data is taken all the same.
#[test]
fn attributes_that_were_overtaken_are_not_set() {
    let mut rig = Rig::in_memory();
    let file = create(&mut rig, "f");
    let mode = |mode: u32| v1::SetAttrOp { ino: file, mode: Some(mode), ..Default::default() };
    let late = |was: u32, extents: Vec<v1::Extent>| v1::CommitExtentsOp {
        ino: file,
        extents,
        mtime_ns: 1,
        attr: Some(mode(0o640)),
        attr_was: Some(mode(was)),
        ..Default::default()
    };
    let commit = |rig: &mut Rig, op| match run(rig, Op::CommitExtents(op)) {
        Ok(Reply::CommitExtents(reply)) => (reply.overtaken, rig.attr(file).unwrap()),
        other => panic!("a commit answered {other:?}"),
    };
    let known = rig.attr(file).unwrap().mode;
    // Also if it is told twice.
    for _ in 0..2 {
        let (overtaken, attr) = commit(&mut rig, late(known, vec![]));
        assert_eq!((overtaken, attr.mode, attr.mtime_ns), (false, 0o640, 1));
    }
    run(&mut rig, Op::SetAttr(mode(0o400))).unwrap();
    let before = rig.attr(file).unwrap();
    assert_eq!(commit(&mut rig, late(known, vec![])), (true, before), "nothing changes");
    let touched = v1::SetAttrOp { ino: file, mtime_ns: Some(9), ..Default::default() };
    run(&mut rig, Op::SetAttr(touched)).unwrap();
    let (overtaken, attr) = commit(&mut rig, late(known, vec![inline(0, 3, 3)]));
    assert_eq!((overtaken, attr.mode & 0o777, attr.size), (true, 0o400, 3));
    assert_eq!(attr.mtime_ns, 9, "and no time goes back");
    rig.check();
}

/// A file of `n` extents, each of a segment of its own, with holes between them.
fn scattered(rig: &mut Rig, name: &str, n: u64, seq: u64) -> u64 {
    let ino = create(rig, name);
    for batch in (0..n).collect::<Vec<_>>().chunks(1000) {
        let segments: Vec<_> = batch.iter().map(|i| rig.segment(seq + i, 10)).collect();
        let extents = batch.iter().zip(&segments).map(|(i, s)| of(s, i * 20, 10, 0)).collect();
        let op = v1::CommitExtentsOp { ino, extents, segments, ..Default::default() };
        run(rig, Op::CommitExtents(op)).unwrap();
    }
    ino
}

/// Purges until nothing is left; answers how many entries that took.
fn purge_all(rig: &mut Rig) -> usize {
    for entries in 0.. {
        let orphans = rig.machine.orphans(InodeId(0), 100).unwrap();
        if orphans.is_empty() {
            return entries;
        }
        let before = rig.check().extents;
        let inos = orphans.iter().map(|ino| ino.0).collect();
        rig.entry(Body::PurgeInodes(v1::PurgeInodesEntry { inos })).unwrap();
        assert!(before - rig.check().extents <= 2048, "an entry deletes a bounded number");
    }
    unreachable!()
}

#[test]
fn a_huge_orphan_is_purged_in_steps() {
    let mut rig = Rig::in_memory();
    let ino = scattered(&mut rig, "f", 5000, 1);
    assert_eq!(rig.extents(ino, 0, u64::MAX).extents.len(), 5000);
    run(&mut rig, Op::Unlink(v1::UnlinkOp { parent: ROOT, name: "f".into() })).unwrap();
    // Purging what has a name does nothing.
    rig.entry(Body::PurgeInodes(v1::PurgeInodesEntry { inos: vec![ROOT, ROOT + 998] })).unwrap();
    assert_eq!(purge_all(&mut rig), 3);
    let report = rig.check();
    assert_eq!((report.inodes, report.extents, report.segments), (1, 0, 0));
    assert_eq!(rig.machine.garbage(None, usize::MAX).unwrap().len(), 5000);
    assert_eq!(rig.attr(ino), Err(Stale));
}

#[test]
fn whoever_cleans_up_is_told_that_there_is_more() {
    let mut rig = Rig::in_memory();
    let told = |rig: &Rig| (rig.machine.orphaned(), rig.machine.discarded());
    scattered(&mut rig, "f", 1, 1);
    assert_eq!(told(&rig), (0, 0));
    run(&mut rig, Op::Unlink(v1::UnlinkOp { parent: ROOT, name: "f".into() })).unwrap();
    assert_eq!(told(&rig), (1, 0));
    purge_all(&mut rig);
    assert_eq!(told(&rig), (1, 1));
}

#[test]
fn truncation_of_very_many_extents_hands_them_to_an_orphan() {
    let mut rig = Rig::in_memory();
    let ino = scattered(&mut rig, "f", 3000, 1);
    let truncate =
        |size| Op::SetAttr(v1::SetAttrOp { ino, size: Some(size), ..Default::default() });
    for round in 1..4 {
        let Ok(Reply::Attr(attr)) = run(&mut rig, truncate(0)) else { panic!() };
        assert_eq!((attr.size, attr.blocks), (0, 0));
        assert_eq!(Ok(attr), rig.attr(ino));
        assert_eq!(rig.machine.orphans(InodeId(0), 9).unwrap().len(), 1);
        // Bytes of the past do not shine through.
        run(&mut rig, truncate(100_000)).unwrap();
        assert_eq!(rig.extents(ino, 0, u64::MAX).extents, vec![]);
        rig.check();
        assert_eq!(purge_all(&mut rig), 2);
        assert_eq!(rig.check().inodes, 2);
        // And again, with what the file holds under its new content number.
        let segments: Vec<_> = (0..2500).map(|i| rig.segment(round * 10_000 + i, 10)).collect();
        let extents = segments.iter().enumerate().map(|(i, s)| of(s, i as u64 * 20, 10, 0));
        let op =
            v1::CommitExtentsOp { ino, extents: extents.collect(), segments, ..Default::default() };
        run(&mut rig, Op::CommitExtents(op)).unwrap();
        rig.check();
    }
    assert_eq!(rig.segments(0).iter().filter(|item| !item.garbage).count(), 2500);
}

#[test]
fn small_appends_are_joined() {
    let mut rig = Rig::in_memory();
    let ino = create(&mut rig, "log");
    for i in 0..1500 {
        let op = v1::CommitExtentsOp {
            ino,
            extents: vec![inline(0, 10, 10)],
            append: true,
            ..Default::default()
        };
        let Ok(Reply::CommitExtents(reply)) = run(&mut rig, Op::CommitExtents(op)) else {
            panic!()
        };
        assert_eq!(reply.base, i * 10);
    }
    let extents = rig.extents(ino, 0, u64::MAX).extents;
    assert!(extents.len() <= 4, "{} extents", extents.len());
    assert_eq!(rig.attr(ino).unwrap().inline_bytes, 15_000);
    rig.check();
}

#[test]
fn an_orphan_can_be_written_until_it_is_purged() {
    let mut rig = Rig::in_memory();
    let ino = create(&mut rig, "f");
    run(&mut rig, Op::Unlink(v1::UnlinkOp { parent: ROOT, name: "f".into() })).unwrap();
    let commit = Op::CommitExtents(v1::CommitExtentsOp {
        ino,
        extents: vec![inline(0, 10, 10)],
        ..Default::default()
    });
    run(&mut rig, commit.clone()).unwrap();
    rig.check();
    rig.entry(Body::PurgeInodes(v1::PurgeInodesEntry { inos: vec![ino, ino] })).unwrap();
    assert_eq!(run(&mut rig, commit), Err(Stale));
    assert_eq!(rig.check().inodes, 1);
}

#[test]
fn extents_come_in_bounded_answers() {
    let mut rig = Rig::in_memory();
    let ino = scattered(&mut rig, "f", 9000, 1);
    let first = rig.extents(ino, 0, u64::MAX);
    assert!(first.truncated);
    let last = first.extents.last().unwrap();
    let rest = rig.extents(ino, last.file_off + last.len, u64::MAX);
    assert!(!rest.truncated);
    assert_eq!(first.extents.len() + rest.extents.len(), 9000);
    let open = rig.machine.open_reply(InodeId(ino)).unwrap().extents.unwrap();
    assert!(open.truncated && open.extents.len() == open.segments.len());
}

#[test]
fn the_change_time_is_that_of_the_write_unless_its_clock_is_wrong() {
    let mut rig = Rig::in_memory();
    rig.time = 1 << 50;
    let ino = create(&mut rig, "f");
    let mut written = |at: i64| {
        let extents = vec![inline(0, 5, 5)];
        let op = v1::CommitExtentsOp { ino, extents, changed_ns: at, ..Default::default() };
        run(&mut rig, Op::CommitExtents(op)).unwrap();
        let attr = rig.attr(ino).unwrap();
        (attr.ctime_ns, rig.time)
    };
    let (minute, now) = (60_000_000_000, 1 << 50);
    assert_eq!(written(now + minute / 2).0, now + minute / 2);
    assert_eq!(written(now - minute / 2).0, now + minute / 2, "it goes forward");
    for wrong in [now - 2 * minute, now + 2 * minute, i64::MIN] {
        let (changed, now) = written(wrong);
        assert_eq!(changed, now);
    }
}
