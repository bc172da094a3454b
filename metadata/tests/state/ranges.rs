//! Holes and shared ranges: what is refused, what stays alive for how long, where a copy ends.

use crate::rig::{Answer, ROOT, Rig, ino, run};
use v1::extent::Source;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_proto::ErrorKind::{self, *};
use weft_proto::{InodeId, v1};

pub fn create(rig: &mut Rig, name: &str) -> u64 {
    let op = v1::CreateOp { parent: ROOT, name: name.to_string().into(), ..Default::default() };
    match run(rig, Op::Create(op)) {
        Ok(Reply::Open(reply)) => reply.attr.unwrap().ino,
        other => panic!("create answered {other:?}"),
    }
}

pub fn segment(info: &v1::SegmentInfo, file_off: u64, len: u64, off: u64) -> v1::Extent {
    let source = Some(Source::Segment(v1::SegmentPart { id: info.id, off }));
    v1::Extent { file_off, len, source }
}

fn inline(file_off: u64, len: usize) -> v1::Extent {
    let source = Some(Source::Inline(vec![1; len].into()));
    v1::Extent { file_off, len: len as u64, source }
}

fn commit(rig: &mut Rig, ino: u64, extents: Vec<v1::Extent>, segments: Vec<v1::SegmentInfo>) {
    let op = v1::CommitExtentsOp { ino, extents, segments, ..Default::default() };
    run(rig, Op::CommitExtents(op)).unwrap();
}

pub fn copy(from: u64, from_off: u64, to: u64, to_off: u64, len: u64) -> Op {
    Op::CopyRange(v1::CopyRangeOp { from, from_off, to, to_off, len })
}

pub fn copied(answer: Answer) -> Result<u64, ErrorKind> {
    match answer? {
        Reply::CopyRange(reply) => Ok(reply.copied),
        other => panic!("a copy answered {other:?}"),
    }
}

fn punch(ino: u64, off: u64, len: u64) -> Op {
    Op::Fallocate(v1::FallocateOp { ino, off, len, keep_size: true, hole: true })
}

/// Live bytes of the one segment, and whether it is garbage.
fn only(rig: &Rig) -> (u64, bool) {
    let items = rig.segments(0);
    assert_eq!(items.len(), 1);
    (items[0].live_bytes, items[0].garbage)
}

#[test]
fn a_shared_segment_is_freed_with_the_last_byte_that_anyone_shows() {
    let mut rig = Rig::in_memory();
    let (a, b) = (create(&mut rig, "a"), create(&mut rig, "b"));
    let s = rig.segment(1, 100);
    commit(&mut rig, a, vec![segment(&s, 0, 100, 0)], vec![s]);
    assert_eq!(copied(run(&mut rig, copy(a, 10, b, 1000, 500))), Ok(90));
    assert_eq!((rig.attr(b).unwrap().size, only(&rig)), (1090, (190, false)));
    // Within one file too, beside itself.
    assert_eq!(copied(run(&mut rig, copy(a, 0, a, 100, 100))), Ok(100));
    assert_eq!(only(&rig), (290, false));
    rig.check();
    run(&mut rig, Op::Unlink(v1::UnlinkOp { parent: ROOT, name: "a".into() })).unwrap();
    let purge = v1::PurgeInodesEntry { inos: vec![a] };
    rig.entry(v1::log_entry::Body::PurgeInodes(purge)).unwrap();
    assert_eq!(only(&rig), (90, false));
    run(&mut rig, punch(b, 0, 1089)).unwrap();
    assert_eq!(only(&rig), (1, false));
    // A copy of the last byte over itself by way of another file keeps it.
    let c = create(&mut rig, "c");
    assert_eq!(copied(run(&mut rig, copy(b, 1089, c, 0, 1))), Ok(1));
    assert_eq!(copied(run(&mut rig, copy(c, 0, b, 1089, 1))), Ok(1));
    assert_eq!(only(&rig), (2, false));
    run(&mut rig, punch(c, 0, 1)).unwrap();
    assert_eq!(only(&rig), (1, false));
    run(&mut rig, punch(b, 1089, u64::MAX >> 24)).unwrap();
    assert_eq!(only(&rig), (0, true));
    assert_eq!((rig.attr(b).unwrap().size, rig.attr(b).unwrap().blocks), (1090, 0));
    rig.check();
}

#[test]
fn a_copy_repeated_with_its_number_takes_effect_once() {
    let mut rig = Rig::in_memory();
    let (a, b) = (create(&mut rig, "a"), create(&mut rig, "b"));
    commit(&mut rig, a, vec![inline(0, 10)], vec![]);
    let request = rig.next_request(copy(a, 0, b, 0, 10));
    let first = rig.request(request.clone());
    run(&mut rig, punch(b, 0, 10)).unwrap();
    let attr = rig.attr(b).unwrap();
    assert_eq!(rig.request(request), first);
    assert_eq!(rig.attr(b).unwrap(), attr, "the hole is still there");
}

#[test]
fn what_cannot_be_shared_ends_a_copy() {
    let mut rig = Rig::in_memory();
    let (a, b) = (create(&mut rig, "a"), create(&mut rig, "b"));
    let s = rig.segment(1, 1000);
    let extents = vec![inline(100, 600), segment(&s, 700, 1000, 0), inline(1700, 600)];
    commit(&mut rig, a, extents, vec![s]);
    let layout = |k, m, inline_limit| {
        let profile = Some(v1::ProfileInfo { k, m });
        let layout = v1::LayoutInfo { profile, unit: 4096, segment_len: 8192, inline_limit };
        Op::SetLayout(v1::SetLayoutOp { ino: b, layout: Some(layout) })
    };
    // More inline bytes than the file may have: up to there.
    run(&mut rig, layout(2, 1, 1000)).unwrap();
    assert_eq!(copied(run(&mut rig, copy(a, 0, b, 0, u64::MAX))), Ok(1700));
    assert_eq!(copied(run(&mut rig, copy(a, 1700, b, 1700, 600))), Err(InlineFull));
    assert_eq!(copied(run(&mut rig, copy(a, 1700, b, 1700, 400))), Ok(400));
    // What it replaces makes room.
    assert_eq!(copied(run(&mut rig, copy(a, 1700, b, 100, 600))), Ok(600));
    rig.check();
    // More parity than the segment has: the hole and the inline bytes before it, and not more.
    let size = Op::SetAttr(v1::SetAttrOp { ino: b, size: Some(0), ..Default::default() });
    run(&mut rig, size).unwrap();
    run(&mut rig, layout(2, 2, 1000)).unwrap();
    assert_eq!(copied(run(&mut rig, copy(a, 0, b, 0, u64::MAX))), Ok(700));
    assert_eq!(copied(run(&mut rig, copy(a, 700, b, 700, 600))), Err(CrossDevice));
    rig.check();
}

#[test]
fn a_copy_of_very_many_extents_is_cut_short() {
    let mut rig = Rig::in_memory();
    let (a, b) = (create(&mut rig, "a"), create(&mut rig, "b"));
    let s = rig.segment(1, 10_000);
    let extents = (0..5000).map(|i| segment(&s, i * 3, 1, i * 2)).collect();
    commit(&mut rig, a, extents, vec![s.clone()]);
    assert_eq!(copied(run(&mut rig, copy(a, 0, b, 0, 20_000))), Ok(4096 * 3));
    let rest = copied(run(&mut rig, copy(a, 4096 * 3, b, 4096 * 3, 20_000)));
    assert_eq!(rest, Ok(4999 * 3 + 1 - 4096 * 3));
    assert_eq!(rig.extents(a, 0, u64::MAX).extents, rig.extents(b, 0, u64::MAX).extents);
    rig.check();
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let mut rig = Rig::in_memory();
    let (a, b) = (create(&mut rig, "a"), create(&mut rig, "b"));
    let s = rig.segment(1, 100);
    commit(&mut rig, a, vec![segment(&s, 0, 100, 0)], vec![s]);
    let allocate =
        |ino, off, len| Op::Fallocate(v1::FallocateOp { ino, off, len, ..Default::default() });
    let most = 16u64 << 40;
    for (what, op, kind) in [
        ("onto itself", copy(a, 0, a, 99, 100), Invalid),
        ("before itself", copy(a, 50, a, 1, 50), Invalid),
        ("from a directory", copy(ROOT, 0, b, 0, 1), IsDirectory),
        ("to a directory", copy(a, 0, ROOT, 0, 1), IsDirectory),
        ("from nowhere", copy(ino(777), 0, b, 0, 1), Stale),
        ("to nowhere", copy(a, 0, ino(777), 0, 1), Stale),
        ("too far", copy(a, 0, b, most - 99, 100), TooLarge),
        ("overflow", copy(a, 0, b, u64::MAX, 1), TooLarge),
        ("nothing", allocate(a, 0, 0), Invalid),
        ("a directory", allocate(ROOT, 0, 1), IsDirectory),
        ("no inode", allocate(ino(777), 0, 1), Stale),
        ("too long", allocate(a, most, 1), TooLarge),
        ("off the end", allocate(a, u64::MAX, 2), TooLarge),
    ] {
        let before = (rig.attr(a), rig.attr(b), rig.segments(0));
        assert_eq!(run(&mut rig, op), Err(kind), "{what}");
        assert_eq!((rig.attr(a), rig.attr(b), rig.segments(0)), before, "{what}");
    }
    // At and behind the end of the source there is nothing to copy, and that is no change.
    let before = rig.attr(b);
    assert_eq!(copied(run(&mut rig, copy(a, 100, b, 0, 9))), Ok(0));
    assert_eq!(copied(run(&mut rig, copy(a, u64::MAX, b, 0, 9))), Ok(0));
    assert_eq!(rig.attr(b), before);
    assert_eq!(copied(run(&mut rig, copy(a, 90, b, most - 10, 100))), Ok(10));
    rig.check();
}

/// A file of `n` extents of one byte each, a byte apart.
fn scattered(rig: &mut Rig, name: &str, seq: u64, n: u64) -> u64 {
    let ino = create(rig, name);
    let s = rig.segment(seq, 2 * n);
    let extents = (0..n).map(|i| segment(&s, 2 * i, 1, 2 * i)).collect();
    commit(rig, ino, extents, vec![s]);
    ino
}

/// Where the extents of a file begin.
fn begins(rig: &Rig, ino: u64) -> Vec<u64> {
    let (mut all, mut from) = (Vec::new(), 0);
    loop {
        let reply = rig.extents(ino, from, u64::MAX - from);
        from = reply.extents.last().map_or(from, |e| e.file_off + e.len);
        all.extend(reply.extents.iter().map(|e| e.file_off));
        if !reply.truncated {
            return all;
        }
    }
}

/// Extents in the state, shown or not.
fn stored(rig: &Rig) -> usize {
    rig.machine.dump().unwrap().iter().filter(|(key, _)| key[2] == 0x13).count()
}

/// Every replica is held up for as long as an entry takes.
#[test]
fn one_entry_deletes_a_bounded_number_of_extents() {
    const STEP: usize = 2048 + 2;
    const N: u64 = 10_000;
    let truncate = |ino| Op::SetAttr(v1::SetAttrOp { ino, size: Some(5000), ..Default::default() });
    let hole = |ino| punch(ino, 3000, 2 * N - 7000);
    type Case<'a> = (&'a str, &'a dyn Fn(u64) -> Op, std::ops::Range<u64>, u64);
    let cases: [Case<'_>; 2] =
        [("truncate", &truncate, 5000..u64::MAX, 5000), ("punch", &hole, 3000..16000, 2 * N - 1)];
    for (what, op, gone, size) in cases {
        let mut rig = Rig::in_memory();
        let ino = scattered(&mut rig, "f", 1, N);
        let before = stored(&rig);
        run(&mut rig, op(ino)).unwrap();
        assert!(stored(&rig) + STEP >= before, "{what}: it deleted too many");
        // It is all gone for who looks, and stays so if the file grows.
        let kept: Vec<_> = (0..N).map(|i| 2 * i).filter(|off| !gone.contains(off)).collect();
        assert_eq!((begins(&rig, ino), rig.attr(ino).unwrap().size), (kept.clone(), size));
        rig.check();
        let grow = v1::SetAttrOp { ino, size: Some(3 * N), ..Default::default() };
        run(&mut rig, Op::SetAttr(grow)).unwrap();
        assert_eq!(begins(&rig, ino), kept, "{what}");
        // What is written there is shown, among what is not deleted yet.
        let s = rig.segment(2, 7);
        commit(&mut rig, ino, vec![segment(&s, 6001, 7, 0)], vec![s]);
        let mut kept = kept;
        kept.push(6001);
        kept.sort_unstable();
        assert_eq!(begins(&rig, ino), kept, "{what}");
        rig.check();
        let mut left = stored(&rig);
        while !rig.machine.to_trim(InodeId(0), 1).unwrap().is_empty() {
            let trim = v1::TrimFilesEntry { inos: vec![ino, 999] };
            rig.entry(v1::log_entry::Body::TrimFiles(trim)).unwrap();
            let now = stored(&rig);
            assert!(now < left && left - now <= STEP, "{what}: {left} to {now}");
            left = now;
            assert_eq!(begins(&rig, ino), kept, "{what}");
            rig.check();
        }
        assert_eq!(left, kept.len(), "{what}");
        let attr = rig.attr(ino).unwrap();
        assert_eq!(attr.blocks, (kept.len() as u64 + 6).div_ceil(512), "{what}");
    }
}

#[test]
fn a_copy_onto_very_many_extents_is_cut_short() {
    let mut rig = Rig::in_memory();
    let from = create(&mut rig, "from");
    let s = rig.segment(1, 100);
    commit(&mut rig, from, vec![segment(&s, 20_000, 100, 0)], vec![s]);
    let to = scattered(&mut rig, "to", 2, 10_000);
    let mut at = 0;
    while at < 20_100 {
        let before = stored(&rig);
        let done = copied(run(&mut rig, copy(from, at, to, at, 20_100 - at))).unwrap();
        assert!(done > 0 && stored(&rig) + 2048 >= before, "{done} at {at}");
        at += done;
        rig.check();
    }
    assert_eq!(begins(&rig, to), [20_000]);
}

/// Also what was cut out before goes with the last name, and with a truncation to nothing.
#[test]
fn what_is_cut_out_goes_with_its_file() {
    let mut rig = Rig::in_memory();
    for (name, empties) in [("a", true), ("b", false)] {
        let ino = scattered(&mut rig, name, 1 + u64::from(empties), 10_000);
        run(&mut rig, punch(ino, 1000, 12_000)).unwrap();
        assert_eq!(rig.machine.to_trim(InodeId(0), 9).unwrap(), [InodeId(ino)]);
        if empties {
            let empty = v1::SetAttrOp { ino, size: Some(0), ..Default::default() };
            run(&mut rig, Op::SetAttr(empty)).unwrap();
            assert_eq!((begins(&rig, ino), rig.attr(ino).unwrap().blocks), (vec![], 0));
        }
        run(&mut rig, Op::Unlink(v1::UnlinkOp { parent: ROOT, name: name.into() })).unwrap();
        rig.check();
    }
    while let orphans = rig.machine.orphans(weft_proto::InodeId(0), 9).unwrap()
        && !orphans.is_empty()
    {
        let inos = orphans.iter().map(|ino| ino.0).collect();
        let purge = v1::PurgeInodesEntry { inos };
        rig.entry(v1::log_entry::Body::PurgeInodes(purge)).unwrap();
        rig.check();
    }
    assert_eq!((stored(&rig), rig.machine.to_trim(InodeId(0), 9).unwrap()), (0, vec![]));
}
