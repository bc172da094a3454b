//! What is broken is mended, without losing what is there.

use super::tests::{keys, problems, with};
use super::*;
use crate::schema::{Dentry, Group, Inode, Segment};
use crate::store::{Memory, Txn};
use crate::tables::content;
use proptest::prelude::ProptestConfig as Config;
use v1::FileKind;
use v1::extent::Source;
use v1::log_entry::Body;
use v1::meta_request::Op;
use weft_proto::{InodeId, SegmentId};

/// Has mended what can be, as the leader does; answers what that was.
pub(super) fn mend(tx: &mut Txn<'_>) -> Vec<String> {
    let mut told = Vec::new();
    for _ in 0..64 {
        let (_, mends) = look(tx.state()).unwrap();
        let fixes = mends.iter().map(|mend| mend.fix.clone()).collect();
        let body = Some(Body::Mend(v1::MendEntry { fixes }));
        let entry = v1::LogEntry { time_ns: 7, body, complete: true, ..Default::default() };
        let reply = crate::state::apply_entry(tx, &entry).unwrap();
        let Some(Reply::Mended(v1::MendedReply { done })) = reply.reply.and_then(|r| r.result)
        else {
            panic!("{}", reply.message);
        };
        let done: Vec<_> = mends.into_iter().zip(done).filter(|(_, done)| *done).collect();
        if done.is_empty() {
            return told;
        }
        told.extend(done.into_iter().map(|(mend, _)| mend.what));
    }
    panic!("it does not end: {told:#?}");
}

/// A filesystem in which most sorts of records are there more than once.
fn busy() -> Memory {
    let id = |seq| Some(v1::SegmentKey { session: 1, seq });
    let profile = Some(v1::ProfileInfo { k: 1, m: 1 });
    let segment = |seq| v1::SegmentInfo {
        id: id(seq),
        profile,
        unit: 4096,
        length: 1000,
        pg: 1,
        seats: vec![0, 1].into(),
    };
    let commit = |ino, seq: u64, file_off, is_new: bool| {
        let source = Source::Segment(v1::SegmentPart { id: id(seq), off: file_off });
        Op::CommitExtents(v1::CommitExtentsOp {
            ino,
            extents: vec![v1::Extent { file_off, len: 100, source: Some(source) }],
            segments: if is_new { vec![segment(seq)] } else { vec![] },
            ..Default::default()
        })
    };
    let make = |parent, name: String| {
        Op::Create(v1::CreateOp { parent, name: name.into(), ..Default::default() })
    };
    let dir = |parent, name: String| {
        Op::MkDir(v1::MkDirOp { parent, name: name.into(), ..Default::default() })
    };
    let mut ops = vec![dir(1, "c".into()), dir(6, "d".into()), dir(6, "e".into())];
    ops.extend((0..4).map(|i| make(6 + i % 3, format!("f{i}"))));
    let (target, link) = (bytes::Bytes::from_static(b"../a"), bytes::Bytes::from_static(b"soft"));
    ops.push(Op::SymLink(v1::SymLinkOp { parent: 7, name: link, target, ..Default::default() }));
    ops.push(commit(9, 2, 0, true));
    ops.push(commit(9, 2, 300, false));
    ops.push(commit(10, 3, 0, true));
    ops.push(commit(11, 4, 0, true));
    // The third segment is garbage.
    ops.push(commit(10, 5, 0, true));
    ops.push(Op::Link(v1::LinkOp { ino: 10, parent: 7, name: "hard".into() }));
    with(ops)
}

const DAMAGED: [Tag; 12] = [
    Tag::Inode,
    Tag::Dentry,
    Tag::Index,
    Tag::Extent,
    Tag::Xattr,
    Tag::Orphan,
    Tag::Lock,
    Tag::Segment,
    Tag::Garbage,
    Tag::Member,
    Tag::LockOf,
    Tag::Session,
];

/// Nothing of here can say what is right.
const LEFT: [&str; 11] = [
    "its record is that of",
    "there is no segment",
    "content is missing",
    "it is kept, since",
    "shares its content",
    "overlaps the one before",
    "belongs to no file",
    "not well formed",
    "locks of two owners",
    "and is no directory",
    "its key does not fit",
];

#[test]
fn nothing_is_mended_where_nothing_is_wrong() {
    let memory = busy();
    let state = memory.snapshot();
    for tag in DAMAGED {
        assert!(!keys(&*state, &[tag]).is_empty(), "no {tag:?}");
    }
    let (report, mends) = look(&*state).unwrap();
    assert_eq!((report.problems, mends.len()), (vec![], 0));
}

/// Of such a file some is not shown, and yet to be deleted.
#[test]
fn what_a_file_that_is_cut_says_of_that_is_mended() {
    let memory = busy();
    let state = memory.snapshot();
    let mut tx = Txn::new(&*state);
    let file = tx.state().inode(InodeId(9)).unwrap().unwrap();
    let mut edit = content::Edit::new(file);
    edit.clear(&mut tx, 300, 400, 0).unwrap();
    let right = edit.finish(&mut tx, &[]).unwrap();
    assert_eq!(right.cut.len(), 1);
    assert_eq!(problems(&tx), Vec::<String>::new());
    type Damage = fn(&mut Txn<'_>, Inode);
    let damages: [Damage; 3] = [
        |tx, inode| tx.delete(schema::trim(inode.ino())),
        |tx, inode| tx.put_inode(&Inode { cut: vec![], ..inode }).unwrap(),
        |tx, _| tx.put_bytes(schema::trim(InodeId(77)), Default::default()),
    ];
    let base = tx.into_changes();
    for (i, damage) in damages.iter().enumerate() {
        let mut tx = Txn::new(&*state);
        for (key, value) in base.clone() {
            tx.put_bytes(key, value.expect("nothing is deleted"));
        }
        damage(&mut tx, right.clone());
        let told = mend(&mut tx);
        assert_eq!(problems(&tx), Vec::<String>::new(), "damage {i}: {told:#?}");
        let is_listed = tx.state().get(&schema::trim(InodeId(9))).unwrap().is_some();
        let inode = tx.state().inode(InodeId(9)).unwrap().unwrap();
        assert_eq!(is_listed, !inode.cut.is_empty(), "damage {i}");
        assert!(i == 1 || inode == right, "damage {i}: {told:#?}");
        assert!(!told.is_empty(), "damage {i} is not seen");
    }
}

#[test]
fn a_record_that_is_missing_is_mended() {
    let memory = busy();
    let state = memory.snapshot();
    for key in keys(&*state, &DAMAGED) {
        let mut tx = Txn::new(&*state);
        tx.delete(key.clone());
        let told = mend(&mut tx);
        let (report, _) = look(&tx).unwrap();
        if schema::has_tag(&key, Tag::Extent) {
            // Where it was cannot be told of a file with holes.
            let told_of = |p: &String| p.contains("content is missing") || p.contains("is kept");
            assert!(report.problems.iter().all(told_of), "{report:#?}");
            assert!(report.lost_extents > 0 || !report.problems.is_empty(), "{key:02x?}");
            assert_eq!(garbage(&tx), garbage(&*state), "it may be wanted");
        } else {
            let left = report.problems;
            assert_eq!(left, Vec::<String>::new(), "without {key:02x?}: {told:#?}");
        }
        keeps_content(&*state, &tx, &[key]);
    }
}

/// Segments that are to be deleted.
fn garbage(state: &dyn Read) -> Vec<Vec<u8>> {
    keys(state, &[Tag::Garbage])
}

/// What nobody has damaged is there as before.
fn keeps_content(before: &dyn Read, now: &Txn<'_>, damaged: &[Vec<u8>]) {
    for key in keys(before, &[Tag::Extent]).into_iter().filter(|key| !damaged.contains(key)) {
        let e: v1::Extent = before.load(&key).unwrap().unwrap();
        let of = content::segment_of(&e);
        let gone = of.is_some_and(|id| {
            let lost = |key: Vec<u8>| damaged.contains(&key);
            lost(schema::segment(id)) || lost(schema::garbage(id))
        });
        let is: Option<v1::Extent> = now.state().load(&key).unwrap();
        let right = match gone {
            true => is.is_some_and(|is| (is.file_off, is.len) == (e.file_off, e.len)),
            false => is == Some(e),
        };
        assert!(right, "extent {key:02x?} of {damaged:02x?}");
    }
    // What could be reached can be still.
    for key in keys(before, &[Tag::Inode]) {
        let inode: Inode = before.load(&key).unwrap().unwrap();
        let kept = matches!(inode.kind(), FileKind::Regular | FileKind::Directory);
        if inode.attr.nlink > 0 && !damaged.contains(&key) && kept {
            let is: Inode = now.state().load(&key).unwrap().expect("an inode");
            assert!(is.attr.nlink > 0, "inode {} of {damaged:02x?}", is.ino());
        }
    }
}

#[test]
fn accounts_that_are_wrong_are_mended() {
    let memory = busy();
    let state = memory.snapshot();
    type Change = fn(&mut Inode);
    let changes: [Change; 12] = [
        |i| i.attr.nlink += 1,
        |i| i.attr.nlink = 0,
        |i| i.attr.ino += 1,
        |i| i.allocated += 1,
        |i| i.attr.blocks += 1,
        |i| i.attr.inline_bytes += 1,
        |i| i.xattr_bytes += 1,
        |i| i.xattr_list += 1,
        |i| i.entries += 1,
        |i| i.parent = 4,
        |i| i.layout = None,
        |i| i.next_cookie = 0,
    ];
    for key in keys(&*state, &[Tag::Inode]) {
        let right: Inode = state_of(&*state).load(&key).unwrap().unwrap();
        // What says itself that it is deleted is.
        let dead = right.attr.nlink == 0;
        for (i, change) in changes.iter().enumerate() {
            let mut inode = right.clone();
            change(&mut inode);
            // The root names itself, and only it has a layout that is known.
            if right.ino().is_root() && (i == 9 || i == 10) || dead && i == 0 {
                continue;
            }
            // Of other kinds these say nothing.
            if !right.is_dir() && matches!(i, 8 | 9 | 11) || right.layout.is_none() && i == 10 {
                continue;
            }
            let mut tx = Txn::new(&*state);
            tx.put(key.clone(), &inode);
            let told = mend(&mut tx);
            let what = format!("change {i} of inode {}: {told:#?}", right.ino());
            assert_eq!(problems(&tx), Vec::<String>::new(), "{what}");
            // Its number was that of another: what it says is not believed.
            if i == 2 && told.iter().any(|what| what.contains("its record is that of")) {
                continue;
            }
            let is: Inode = tx.state().load(&key).unwrap().unwrap();
            let same = is.clone() == Inode { layout: is.layout, ..right.clone() }
                // A lost layout is the root's, and a new parent is one of two.
                || i == 9 && (is.entries, is.attr.nlink) == (right.entries, right.attr.nlink);
            assert!(same, "{what} {is:?}");
        }
    }
    let mut tx = Txn::new(&*state);
    tx.edit_counters(|c| (c.inodes, c.next_inode, c.next_pg) = (3, 2, 1)).unwrap();
    for key in keys(&*state, &[Tag::Segment]) {
        let segment: Segment = state_of(&*state).load(&key).unwrap().unwrap();
        let live_bytes = segment.live_bytes + 7;
        tx.put(key, &Segment { live_bytes, ..segment });
    }
    let mut group: Group = state_of(&*state).load(&schema::group(1)).unwrap().unwrap();
    group.segments += 3;
    tx.put(schema::group(1), &group);
    mend(&mut tx);
    assert_eq!(problems(&tx), Vec::<String>::new());
    for (key, value) in tx.into_changes() {
        let is = value.expect("nothing is deleted");
        assert_eq!(state_of(&*state).get(&key).unwrap(), Some(is), "{key:02x?}");
    }
}

fn state_of(state: &dyn Read) -> &dyn Read {
    state
}

#[test]
fn a_loop_of_directories_is_found_again() {
    let memory = busy();
    let state = memory.snapshot();
    // Directory 6 is only in its own child 7.
    let mut tx = Txn::new(&*state);
    let dentry: Dentry = state_of(&*state).dentry(InodeId::ROOT, b"c").unwrap().unwrap();
    tx.delete(schema::dentry(InodeId::ROOT, b"c"));
    tx.delete(schema::index(InodeId::ROOT, dentry.cookie));
    let (name, cookie) = (bytes::Bytes::from_static(b"c"), 50);
    let entry = schema::IndexEntry { name, ino: 6, kind: dentry.kind };
    tx.put(schema::dentry(InodeId(7), b"c"), &Dentry { cookie, ..dentry });
    tx.put(schema::index(InodeId(7), cookie), &entry);
    tx.edit_inode(InodeId(6), |inode| inode.parent = 7).unwrap();
    let told = mend(&mut tx);
    assert_eq!(problems(&tx), Vec::<String>::new(), "{told:#?}");
    let found = tx.state().dentry(InodeId::ROOT, b"lost+found").unwrap().unwrap();
    let (from, to) = schema::all_of(Tag::Dentry, InodeId(found.ino));
    let mut names = 0;
    let listed = tx.scan(&from, &to, &mut |_, _| {
        names += 1;
        Ok(true)
    });
    listed.unwrap();
    assert_eq!(names, 1, "{told:#?}");
}

#[test]
fn content_of_a_segment_that_is_gone_is_an_error_and_of_garbage_comes_back() {
    let memory = busy();
    let state = memory.snapshot();
    let id = SegmentId { session: weft_proto::SessionId(1), seq: 2 };
    let key = schema::segment(id);
    let segment: Segment = state_of(&*state).load(&key).unwrap().unwrap();
    let mut tx = Txn::new(&*state);
    tx.delete(key.clone());
    tx.put(schema::garbage(id), &segment.info);
    mend(&mut tx);
    assert_eq!(problems(&tx), Vec::<String>::new());
    assert_eq!(tx.state().load::<Segment>(&key).unwrap(), Some(segment));

    let mut tx = Txn::new(&*state);
    tx.delete(key);
    mend(&mut tx);
    let (report, _) = look(&tx).unwrap();
    assert_eq!((report.problems, report.lost_extents), (vec![], 2));
    let e: v1::Extent = tx.state().load(&schema::extent(InodeId(9), 100)).unwrap().unwrap();
    assert_eq!((e.file_off, e.len, e.source), (0, 100, None));
}

#[test]
fn content_whose_extent_is_gone_is_an_error_and_its_segment_is_kept() {
    let memory = busy();
    let state = memory.snapshot();
    // All of it.
    let mut tx = Txn::new(&*state);
    tx.delete(schema::extent(InodeId(11), 100));
    mend(&mut tx);
    let e: v1::Extent = tx.state().load(&schema::extent(InodeId(11), 100)).unwrap().unwrap();
    assert_eq!((e.file_off, e.len, e.source), (0, 100, None));
    let before = state_of(&*state).inode(InodeId(11)).unwrap().unwrap().attr;
    let after = tx.state().inode(InodeId(11)).unwrap().unwrap().attr;
    assert_eq!((after.size, after.blocks), (before.size, before.blocks));
    assert!(after.data_version > before.data_version, "clients go on with what they knew");
    let (report, _) = look(&tx).unwrap();
    assert_eq!(report.lost_extents, 1);
    let kept =
        "segment 1.4: 0 live bytes, counts 100; it is kept, since content is lost or missing";
    assert_eq!(report.problems, [kept]);
    assert_eq!(garbage(&tx), garbage(&*state));
    // One that is only wrong in its account is told apart.
    let mut tx = Txn::new(&*state);
    tx.edit_inode(InodeId(11), |inode| inode.set_allocated(150)).unwrap();
    mend(&mut tx);
    let (report, _) = look(&tx).unwrap();
    assert_eq!((report.problems, report.lost_extents), (vec![], 0));
}

#[test]
fn a_file_and_its_segment_that_count_too_much_are_not_short() {
    let memory = busy();
    let state = memory.snapshot();
    let mut tx = Txn::new(&*state);
    let key = schema::segment(SegmentId { session: weft_proto::SessionId(1), seq: 4 });
    let right: Segment = tx.state().load(&key).unwrap().unwrap();
    tx.put(key.clone(), &Segment { live_bytes: 200, ..right.clone() });
    tx.edit_inode(InodeId(11), |inode| inode.set_allocated(200)).unwrap();
    mend(&mut tx);
    let (report, _) = look(&tx).unwrap();
    assert_eq!((report.problems, report.lost_extents), (vec![], 0));
    assert_eq!(tx.state().load::<Segment>(&key).unwrap(), Some(right));
}

/// What of a sparse file is missing is not known: it is told of until the file is deleted.
#[test]
fn a_sparse_file_of_which_an_extent_is_gone_can_be_deleted() {
    let memory = busy();
    let state = memory.snapshot();
    let mut tx = Txn::new(&*state);
    tx.delete(schema::extent(InodeId(9), 100));
    mend(&mut tx);
    assert!(problems(&tx).iter().any(|p| p.contains("content is missing")), "{:?}", problems(&tx));
    let named = keys(&tx, &[Tag::Dentry]).into_iter().find_map(|key| {
        let dentry: Dentry = tx.state().load(&key).unwrap().unwrap();
        (dentry.ino == 9).then(|| (schema::ino_of(&key).unwrap(), key[schema::HEAD + 8..].to_vec()))
    });
    let (dir, name) = named.unwrap();
    let op = Some(Op::Unlink(v1::UnlinkOp { parent: dir.0, name: name.into() }));
    let purge = || Body::PurgeInodes(v1::PurgeInodesEntry { inos: vec![9] });
    let unlink = v1::MetaRequest { session: 1, number: 900, acked_below: 0, op };
    let apply = |tx: &mut Txn<'_>, body| {
        let entry = v1::LogEntry { time_ns: 9, body: Some(body), ..Default::default() };
        assert_eq!(crate::state::apply_entry(tx, &entry).unwrap().error, 0);
    };
    apply(&mut tx, Body::Client(unlink));
    apply(&mut tx, purge());
    mend(&mut tx);
    apply(&mut tx, purge());
    mend(&mut tx);
    assert_eq!(problems(&tx), Vec::<String>::new());
}

/// One extent is written over another's record.
#[test]
fn content_is_not_deleted_for_an_extent_that_another_was_written_over() {
    let memory = busy();
    let state = memory.snapshot();
    let at = |ino, end| schema::extent(InodeId(ino), end);
    for (from, to) in [(at(9, 400), at(11, 100)), (at(10, 100), at(11, 100))] {
        let mut tx = Txn::new(&*state);
        let other = state_of(&*state).get(&from).unwrap().unwrap();
        tx.put_bytes(to, other);
        mend(&mut tx);
        assert!(!problems(&tx).is_empty());
        assert_eq!(garbage(&tx), garbage(&*state));
    }
}

#[test]
fn of_the_record_of_another_segment_nothing_follows() {
    let memory = busy();
    let state = memory.snapshot();
    let id = |seq| SegmentId { session: weft_proto::SessionId(1), seq };
    let other: Segment = state_of(&*state).load(&schema::segment(id(2))).unwrap().unwrap();
    for at in [id(1), id(77)] {
        let mut tx = Txn::new(&*state);
        tx.put(schema::segment(at), &other);
        mend(&mut tx);
        let (report, _) = look(&tx).unwrap();
        assert!(report.problems.iter().any(|p| p.contains("not well formed")), "{report:#?}");
        assert_eq!((report.lost_extents, garbage(&tx)), (0, garbage(&*state)));
        assert_eq!(
            tx.state().load::<Segment>(&schema::segment(id(2))).unwrap(),
            Some(other.clone())
        );
    }
}

#[test]
fn garbage_does_not_come_back_over_the_only_record_of_another_segment() {
    let memory = busy();
    let state = memory.snapshot();
    let id = |seq| SegmentId { session: weft_proto::SessionId(1), seq };
    let [one, two]: [Segment; 2] =
        [1, 2].map(|seq| state_of(&*state).load(&schema::segment(id(seq))).unwrap().unwrap());
    let mut tx = Txn::new(&*state);
    tx.put(schema::garbage(id(2)), &two.info);
    tx.put(schema::segment(id(2)), &one);
    tx.delete(schema::segment(id(1)));
    mend(&mut tx);
    assert_eq!(tx.state().load::<Segment>(&schema::segment(id(2))).unwrap(), Some(one));
}

#[test]
fn what_is_made_anew_is_whole_at_once_and_only_roots() {
    let memory = busy();
    let state = memory.snapshot();
    for ino in [1, 4, 6, 9] {
        let right = state_of(&*state).inode(InodeId(ino)).unwrap().unwrap();
        let mut tx = Txn::new(&*state);
        tx.delete(schema::inode(InodeId(ino)));
        let (_, mends) = look(tx.state()).unwrap();
        let fixes = mends.into_iter().map(|mend| mend.fix).collect();
        let body = Some(Body::Mend(v1::MendEntry { fixes }));
        let entry = v1::LogEntry { time_ns: 7, body, ..Default::default() };
        crate::state::apply_entry(&mut tx, &entry).unwrap();
        let made = tx.state().inode(InodeId(ino)).unwrap().unwrap();
        let all = |i: &Inode| (i.attr.size, i.allocated, i.entries, i.attr.nlink, i.next_cookie);
        assert_eq!(all(&made), all(&right), "inode {ino}");
        assert_eq!((made.attr.mode & 0o077, made.attr.uid), (0, 0));
        assert!(made.is_dir() || made.attr.data_version > right.attr.data_version);
    }
}

#[test]
fn a_name_that_leads_to_the_root_goes() {
    let memory = busy();
    let state = memory.snapshot();
    let mut tx = Txn::new(&*state);
    let kind = FileKind::Directory.into();
    let name = bytes::Bytes::from_static(b"up");
    tx.put(schema::dentry(InodeId(6), b"up"), &Dentry { ino: 1, kind, cookie: 60 });
    tx.put(schema::index(InodeId(6), 60), &schema::IndexEntry { name, ino: 1, kind });
    mend(&mut tx);
    assert_eq!(problems(&tx), Vec::<String>::new());
    assert_eq!(tx.state().inode(InodeId(1)).unwrap().unwrap().parent, 1);
}

#[test]
fn what_is_found_is_not_put_where_others_may_look() {
    let make = |name: &'static str, uid, mode| {
        Op::MkDir(v1::MkDirOp { parent: 1, name: name.into(), uid, mode, ..Default::default() })
    };
    let make_file =
        Op::Create(v1::CreateOp { parent: 1, name: "lost+found.1".into(), ..Default::default() });
    let memory = with(vec![make("lost+found", 1000, 0o755), make_file]);
    let state = memory.snapshot();
    let mut tx = Txn::new(&*state);
    let dentry = tx.state().dentry(InodeId(1), b"a").unwrap().unwrap();
    tx.delete(schema::dentry(InodeId(1), b"a"));
    tx.delete(schema::index(InodeId(1), dentry.cookie));
    mend(&mut tx);
    assert_eq!(problems(&tx), Vec::<String>::new());
    let found = tx.state().dentry(InodeId(1), b"lost+found.2").unwrap().unwrap();
    let dir = tx.state().inode(InodeId(found.ino)).unwrap().unwrap();
    assert_eq!((dir.entries, dir.attr.mode, dir.attr.uid), (1, 0o700, 0));
}

#[test]
fn a_fix_is_not_carried_out_on_what_has_changed_since() {
    let memory = busy();
    let state = memory.snapshot();
    let mut tx = Txn::new(&*state);
    tx.edit_inode(InodeId(9), |inode| inode.attr.nlink = 5).unwrap();
    let (_, mends) = look(tx.state()).unwrap();
    let newer = tx.edit_inode(InodeId(9), |inode| inode.attr.mode = 0o640).unwrap();
    let fixes = mends.into_iter().map(|mend| mend.fix).collect();
    let body = Some(Body::Mend(v1::MendEntry { fixes }));
    let entry = v1::LogEntry { time_ns: 7, body, ..Default::default() };
    let reply = crate::state::apply_entry(&mut tx, &entry).unwrap();
    let result = reply.reply.and_then(|r| r.result);
    assert_eq!(result, Some(Reply::Mended(v1::MendedReply { done: vec![false] })));
    assert_eq!(tx.state().inode(InodeId(9)).unwrap(), Some(newer));
}

/// A record, what is done to it, and another record.
fn pick() -> impl proptest::strategy::Strategy<Value = (usize, u8, usize)> {
    (0usize..1000, 0u8..3, 0usize..1000)
}

proptest::proptest! {
    #![proptest_config(Config { cases: Config::default().cases.max(400), ..Config::default() })]

    /// Whatever is damaged at the same time: it comes to an end, only what cannot be decided is
    /// left, and what was not damaged is kept.
    #[test]
    fn damage_is_mended(picks in proptest::collection::vec(pick(), 1..8)) {
        let memory = busy();
        let state = memory.snapshot();
        let mut tx = Txn::new(&*state);
        let all = keys(&*state, &DAMAGED);
        let mut damaged = Vec::new();
        for (pick, how, other) in picks {
            let key = all[pick % all.len()].clone();
            let alike: Vec<_> =
                all.iter().filter(|other| other[..schema::HEAD] == key[..schema::HEAD]).collect();
            let other = alike[other % alike.len()].clone();
            match how {
                0 => tx.delete(key.clone()),
                // Another of the same sort is written there.
                1 => {
                    let value = state_of(&*state).get(&other).unwrap().unwrap();
                    tx.put_bytes(key.clone(), value);
                }
                // It lies under another key, too, perhaps in place of what was there.
                _ => {
                    let value = state_of(&*state).get(&key).unwrap().unwrap();
                    tx.put_bytes(other.clone(), value);
                    damaged.push(other);
                }
            }
            damaged.push(key);
        }
        let told = mend(&mut tx);
        let left = problems(&tx);
        let known = |p: &String| LEFT.iter().any(|known| p.contains(known));
        proptest::prop_assert!(left.iter().all(known), "{left:#?} after {told:#?}");
        let (_, mends) = look(tx.state()).unwrap();
        proptest::prop_assert!(mends.is_empty(), "planned again and again: {mends:#?}");
        if left.is_empty() {
            keeps_content(&*state, &tx, &damaged);
        }
        // Whatever is left: no content that could be reached is deleted.
        let shown: Vec<SegmentId> = keys(&*state, &[Tag::Extent])
            .iter()
            .filter(|key| !damaged.contains(key))
            .filter_map(|key| content::segment_of(&state_of(&*state).load(key).unwrap().unwrap()))
            .collect();
        for id in shown.into_iter().filter(|id| !damaged.contains(&schema::segment(*id))) {
            let is = tx.state().get(&schema::segment(id)).unwrap();
            proptest::prop_assert!(is.is_some(), "segment {id} of {damaged:02x?}: {told:#?}");
        }
    }
}
