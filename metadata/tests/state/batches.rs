//! Batches: what sessions have done on their own, step by step.

use crate::rig::{ROOT, Rig, run};
use v1::batch_op::{Step, step::Op as Do};
use v1::extent::Source;
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_proto::{ErrorKind, v1};

/// How many steps were taken, and why the next was not.
fn batch(rig: &mut Rig, steps: Vec<Step>) -> (usize, Option<ErrorKind>) {
    match run(rig, Op::Batch(v1::BatchOp { steps, ..Default::default() })) {
        Ok(Reply::Batch(reply)) => {
            let error = (reply.error != 0).then(|| ErrorKind::from_code(reply.error));
            (reply.done.len(), error)
        }
        other => panic!("a batch answered {other:?}"),
    }
}

fn step(op: Do) -> Step {
    Step { op: Some(op), ..Default::default() }
}

fn make(ino: u64, parent: u64, name: &str, kind: v1::FileKind) -> Step {
    let (name, kind) = (name.to_string().into(), kind.into());
    let target = "there".into();
    let op = v1::MakeOp {
        ino,
        parent,
        name,
        kind,
        mode: 0o777,
        umask: 0o22,
        uid: 5,
        gid: 6,
        ..Default::default()
    };
    step(Do::Make(v1::MakeOp { target, ..op }))
}

fn file(ino: u64, parent: u64, name: &str) -> Step {
    make(ino, parent, name, v1::FileKind::Regular)
}

fn dir(ino: u64, parent: u64, name: &str) -> Step {
    make(ino, parent, name, v1::FileKind::Directory)
}

fn commit(ino: u64, bytes: &'static [u8]) -> Step {
    let source = Some(Source::Inline(bytes.into()));
    let extents = vec![v1::Extent { file_off: 0, len: bytes.len() as u64, source }];
    step(Do::Commit(v1::CommitExtentsOp { ino, extents, mtime_ns: 77, ..Default::default() }))
}

fn unlink(parent: u64, name: &str, ino: u64) -> Step {
    let op = v1::UnlinkOp { parent, name: name.to_string().into() };
    Step { ino, ..step(Do::Unlink(op)) }
}

fn rm_dir(parent: u64, name: &str, ino: u64) -> Step {
    let op = v1::RmDirOp { parent, name: name.to_string().into() };
    Step { ino, ..step(Do::RmDir(op)) }
}

fn rename(from: (u64, &str), to: (u64, &str), ino: u64, replaced: u64) -> Step {
    let (name, new_name) = (from.1.to_string().into(), to.1.to_string().into());
    let op = v1::RenameOp { parent: from.0, name, new_parent: to.0, new_name, flags: 0 };
    Step { ino, replaced, ..step(Do::Rename(op)) }
}

#[test]
fn steps_build_on_each_other() {
    let mut rig = Rig::in_memory();
    let first = rig.reserve(10).unwrap();
    let [top, sub, old, new, link] = [0, 1, 2, 3, 4].map(|n| first + n);
    let at = rig.attr(ROOT).unwrap().ctime_ns + 1000;
    let timed = |step: Step, after| Step { at_ns: at + after, ..step };
    let set_attr = v1::SetAttrOp { ino: sub, mode: Some(0o700), ..Default::default() };
    let steps = vec![
        timed(dir(top, ROOT, "top"), 0),
        timed(dir(sub, top, "sub"), 1),
        timed(file(old, sub, "f"), 2),
        timed(commit(old, b"old"), 3),
        timed(file(new, sub, "f.tmp"), 4),
        timed(commit(new, b"newer"), 5),
        timed(rename((sub, "f.tmp"), (sub, "f"), new, old), 6),
        timed(make(link, top, "link", v1::FileKind::Symlink), 7),
        timed(step(Do::SetAttr(set_attr)), 8),
    ];
    assert_eq!(batch(&mut rig, steps.clone()), (9, None));
    assert_eq!(rig.names(top), [(sub, "sub".into()), (link, "link".into())]);
    assert_eq!(rig.names(sub), [(new, "f".into())]);
    let (f, of_sub) = (rig.attr(new).unwrap(), rig.attr(sub).unwrap());
    assert_eq!((f.size, f.mtime_ns, f.ctime_ns, f.nlink), (5, 77, at + 6, 1));
    assert_eq!((of_sub.mode, of_sub.mtime_ns, of_sub.ctime_ns), (0o700, at + 6, at + 8));
    let of_link = rig.attr(link).unwrap();
    assert_eq!((of_link.size, of_link.mode, of_link.kind()), (5, 0o777, v1::FileKind::Symlink));
    assert_eq!(rig.attr(top).unwrap().nlink, 3);
    rig.check();
    let steps = vec![
        unlink(sub, "f", new),
        rm_dir(top, "sub", sub),
        unlink(top, "link", link),
        rm_dir(ROOT, "top", top),
    ];
    assert_eq!(batch(&mut rig, steps), (4, None));
    assert_eq!(rig.names(ROOT), []);
    rig.check();
}

/// Content takes its place in the log before a name goes, and may be written until it is told.
#[test]
fn what_a_name_leads_to_was_written_after_it_went() {
    let mut rig = Rig::in_memory();
    let first = rig.reserve(10).unwrap();
    let [moved, gone] = [first, first + 1];
    let at = rig.attr(ROOT).unwrap().ctime_ns + 1000;
    let timed = |step: Step, after| Step { at_ns: at + after, ..step };
    let written = |ino, after| match commit(ino, b"later").op {
        Some(Do::Commit(op)) => {
            step(Do::Commit(v1::CommitExtentsOp { changed_ns: at + after, ..op }))
        }
        _ => unreachable!("a commit"),
    };
    let steps = vec![
        timed(file(moved, ROOT, "moved"), 0),
        timed(file(gone, ROOT, "gone"), 1),
        written(moved, 100),
        written(gone, 200),
        timed(rename((ROOT, "moved"), (ROOT, "here"), moved, 0), 2),
        timed(unlink(ROOT, "gone", gone), 3),
    ];
    let op = v1::BatchOp { steps, own_times: true, ..Default::default() };
    let Ok(Reply::Batch(told)) = run(&mut rig, Op::Batch(op)) else { panic!("no batch") };
    assert_eq!((told.done.len(), told.other_times), (6, false));
    let times = |ino| rig.attr(ino).unwrap().ctime_ns - at;
    assert_eq!([times(ROOT), times(moved), times(gone)], [3, 100, 200]);
    rig.check();
}

#[test]
fn what_comes_after_a_refusal_is_not_done() {
    let mut rig = Rig::in_memory();
    let first = rig.reserve(10).unwrap();
    let [top, f, g] = [0, 1, 2].map(|n| first + n);
    let long = v1::CommitExtentsOp { ino: f, min_size: u64::MAX, ..Default::default() };
    let sized = v1::SetAttrOp { ino: f, size: Some(1), ..Default::default() };
    let cases = [
        ("not set aside", ErrorKind::Invalid, file(first + 10, top, "x")),
        ("another shard's", ErrorKind::Invalid, file(g | 1 << 60, top, "x")),
        ("taken", ErrorKind::Exists, file(g, top, "f")),
        ("made under another name", ErrorKind::Exists, file(f, top, "x")),
        ("no directory", ErrorKind::NotDirectory, file(g, f, "x")),
        ("no name", ErrorKind::Invalid, file(g, top, "..")),
        ("a target that is none", ErrorKind::NotFound, {
            let op = v1::MakeOp {
                ino: g,
                parent: top,
                name: "x".into(),
                kind: v1::FileKind::Symlink.into(),
                ..Default::default()
            };
            step(Do::Make(op))
        }),
        ("another's name", ErrorKind::Stale, unlink(top, "f", g)),
        ("no such name", ErrorKind::Stale, unlink(top, "x", g)),
        ("a directory", ErrorKind::IsDirectory, unlink(ROOT, "top", top)),
        ("not empty", ErrorKind::NotEmpty, rm_dir(ROOT, "top", top)),
        ("another is moved", ErrorKind::Stale, rename((top, "f"), (top, "x"), g, 0)),
        ("another is there", ErrorKind::Stale, rename((top, "f"), (ROOT, "top"), f, 0)),
        ("a directory is moved", ErrorKind::Invalid, rename((ROOT, "top"), (ROOT, "x"), top, 0)),
        ("too long", ErrorKind::TooLarge, step(Do::Commit(long))),
        ("of nothing", ErrorKind::Stale, commit(g, b"abc")),
        ("a size", ErrorKind::Invalid, step(Do::SetAttr(sized))),
        ("unknown", ErrorKind::Protocol, Step::default()),
    ];
    assert_eq!(batch(&mut rig, vec![dir(top, ROOT, "top"), file(f, top, "f")]), (2, None));
    for (what, kind, bad) in cases {
        let good = |n, name| file(first + n, top, name);
        let (done, error) = batch(&mut rig, vec![good(5, "before"), bad, good(6, "after")]);
        assert_eq!((done, error), (1, Some(kind)), "{what}");
        assert_eq!(rig.names(top), [(f, "f".into()), (first + 5, "before".into())], "{what}");
        assert_eq!(batch(&mut rig, vec![unlink(top, "before", first + 5)]), (1, None), "{what}");
        let gone = v1::PurgeInodesEntry { inos: vec![first + 5] };
        rig.entry(v1::log_entry::Body::PurgeInodes(gone)).unwrap();
        rig.check();
    }
    let many = v1::BatchOp { steps: vec![file(g, top, "x"); 5000], ..Default::default() };
    assert_eq!(run(&mut rig, Op::Batch(many)).err(), Some(ErrorKind::Invalid));
}

#[test]
fn what_is_made_already_is_not_made_twice() {
    let mut rig = Rig::in_memory();
    let ino = rig.reserve(1).unwrap();
    assert_eq!(batch(&mut rig, vec![file(ino, ROOT, "f"), file(ino, ROOT, "f")]), (2, None));
    assert_eq!(rig.names(ROOT), [(ino, "f".into())]);
    rig.check();
}

#[test]
fn that_all_servers_know_batches_is_remembered() {
    let mut rig = Rig::in_memory();
    let mut knows = |batches, known| {
        let op = v1::ReserveInodesOp { count: 1, batches, known };
        match run(&mut rig, Op::ReserveInodes(op)) {
            Ok(Reply::ReserveInodes(reply)) => (reply.batches, reply.xattrs),
            other => panic!("reserve answered {other:?}"),
        }
    };
    assert_eq!(knows(false, 0), (false, false));
    assert_eq!([knows(true, 0), knows(false, 0)], [(true, false); 2]);
    assert_eq!([knows(true, 11), knows(true, 0), knows(false, 0)], [(true, true); 3]);
}

/// A mount tells late of what it did in a session that was declared dead meanwhile: what others
/// have set since stays.
#[test]
fn attributes_that_are_told_late_undo_nothing() {
    let mut rig = Rig::in_memory();
    let ino = rig.reserve(1).unwrap();
    assert_eq!(batch(&mut rig, vec![file(ino, ROOT, "f")]), (1, None));
    let dead = rig.session;
    let at = |at_ns: i64, op: v1::SetAttrOp| Step { at_ns, ..step(Do::SetAttr(op)) };
    let mode = |mode: u32| v1::SetAttrOp { ino, mode: Some(mode), ..Default::default() };
    let touch = |at: i64| v1::SetAttrOp { ino, mtime_ns: Some(at), ..Default::default() };
    let known = rig.attr(ino).unwrap().ctime_ns;
    // Done in the session that died.
    let done = [at(known + 1, mode(0o600)), at(known + 2, mode(0o644))];
    let next = rig.open_session(2);
    rig.entry(Body::ExpireSession(v1::ExpireSessionEntry { session: dead })).unwrap();
    (rig.session, rig.number) = (next, 0);
    let late = |rig: &mut Rig, steps: &[Step]| {
        let op = Op::Batch(v1::BatchOp {
            steps: steps.to_vec(),
            session: dead,
            guarded: true,
            ..Default::default()
        });
        match run(rig, op) {
            Ok(Reply::Batch(reply)) => (reply.done.len(), ErrorKind::from_code(reply.error)),
            other => panic!("a batch answered {other:?}"),
        }
    };
    // Nobody was there meanwhile, and each follows from the one before.
    assert_eq!(late(&mut rig, &done).0, 2);
    assert_eq!(rig.attr(ino).unwrap().mode, 0o644);
    // Somebody was.
    run(&mut rig, Op::SetAttr(mode(0o400))).unwrap();
    assert_eq!(late(&mut rig, &done), (0, ErrorKind::Stale));
    let (before, old) = (rig.attr(ino).unwrap(), touch(known + 3));
    assert_eq!((before.mode, before.mtime_ns < known + 3), (0o400, true));
    assert_eq!(late(&mut rig, &[at(known + 3, old)]), (0, ErrorKind::Stale));
    // The time of a directory in which something came and went is of no use once it has passed;
    // a time that somebody has set is lost with the rest, and told.
    run(&mut rig, Op::SetAttr(touch(known + 9))).unwrap();
    assert_eq!(late(&mut rig, &[at(known + 3, touch(known + 3))]).0, 1);
    assert_eq!(late(&mut rig, &[at(known + 3, touch(1))]), (0, ErrorKind::Stale));
    assert_eq!(rig.attr(ino).unwrap().mtime_ns, known + 9);
    rig.check();
}

/// What a batch makes and moves itself is nobody else's doing, though it gets other times than it
/// had: those of a folder that others changed since, or of now, because it is told too late.
#[test]
fn attributes_of_what_is_told_late_itself_are_taken() {
    let mut rig = Rig::in_memory();
    let first = rig.reserve(4).unwrap();
    let dead = rig.session;
    let next = rig.open_session(2);
    rig.entry(Body::ExpireSession(v1::ExpireSessionEntry { session: dead })).unwrap();
    (rig.session, rig.number) = (next, 0);
    let mode = |ino, at_ns| {
        let op = v1::SetAttrOp { ino, mode: Some(0o711), ..Default::default() };
        Step { at_ns, ..step(Do::SetAttr(op)) }
    };
    // The folder was changed meanwhile, much later than what is told of.
    let folder = v1::SetAttrOp { ino: ROOT, mode: Some(0o777), ..Default::default() };
    run(&mut rig, Op::SetAttr(folder)).unwrap();
    for (ino, at_ns) in [(first, 1), (first + 1, i64::MIN / 2)] {
        let name = format!("made-{ino}");
        let made = Step { at_ns, ..dir(ino, ROOT, &name) };
        let steps = vec![made, mode(ino, at_ns + 1), mode(ino, at_ns + 2)];
        match run(
            &mut rig,
            Op::Batch(v1::BatchOp { steps, session: dead, guarded: true, ..Default::default() }),
        ) {
            Ok(Reply::Batch(reply)) => assert_eq!((reply.done.len(), reply.error), (3, 0)),
            other => panic!("a batch answered {other:?}"),
        }
        assert_eq!(rig.attr(ino).unwrap().mode, 0o711);
    }
    rig.check();
}

/// Nor is what others have changed meanwhile a batch's own because it has touched that as well.
#[test]
fn attributes_that_are_told_late_undo_nothing_behind_another_step() {
    let mut rig = Rig::in_memory();
    let first = rig.reserve(4).unwrap();
    let dead = rig.session;
    let at = rig.attr(ROOT).unwrap().ctime_ns + 1;
    let timed = |step: Step, after| Step { at_ns: at + after, ..step };
    let steps = vec![timed(dir(first, ROOT, "d"), 0), timed(file(first + 1, ROOT, "f"), 1)];
    assert_eq!(batch(&mut rig, steps), (2, None));
    let next = rig.open_session(2);
    rig.entry(Body::ExpireSession(v1::ExpireSessionEntry { session: dead })).unwrap();
    (rig.session, rig.number) = (next, 0);
    let mode = |ino, mode| v1::SetAttrOp { ino, mode: Some(mode), ..Default::default() };
    for ino in [first, first + 1] {
        run(&mut rig, Op::SetAttr(mode(ino, 0o750))).unwrap();
    }
    let set = |ino| timed(step(Do::SetAttr(mode(ino, 0o700))), 3);
    let made = timed(file(first + 2, first, "x"), 2);
    let moved = timed(rename((ROOT, "f"), (ROOT, "g"), first + 1, 0), 2);
    for steps in [vec![made, set(first)], vec![moved, set(first + 1)]] {
        let (guarded, own_times, late) = (true, true, true);
        let op = v1::BatchOp { steps, session: dead, guarded, own_times, late };
        let Ok(Reply::Batch(told)) = run(&mut rig, Op::Batch(op)) else { panic!("no batch") };
        let error = ErrorKind::from_code(told.error);
        assert_eq!((told.done.len(), error), (1, ErrorKind::Stale), "{}", told.message);
    }
    for late in [set_xattr(first, "user.a", "1"), remove_xattr(first, "user.a")] {
        let steps = vec![timed(late, 3)];
        let (guarded, own_times, late) = (true, true, true);
        let op = v1::BatchOp { steps, session: dead, guarded, own_times, late };
        let Ok(Reply::Batch(told)) = run(&mut rig, Op::Batch(op)) else { panic!("no batch") };
        assert_eq!(ErrorKind::from_code(told.error), ErrorKind::Stale, "{}", told.message);
    }
    let modes = [first, first + 1].map(|ino| rig.attr(ino).unwrap().mode);
    assert_eq!(modes, [0o750; 2], "what was set since is undone");
    rig.check();
}

fn set_xattr(ino: u64, name: &'static str, value: &'static str) -> Step {
    let (name, value) = (name.into(), value.into());
    step(Do::SetXattr(v1::SetXattrOp { ino, name, value, ..Default::default() }))
}

fn remove_xattr(ino: u64, name: &'static str) -> Step {
    step(Do::RemoveXattr(v1::RemoveXattrOp { ino, name: name.into() }))
}

#[test]
fn extended_attributes_change_in_their_order() {
    let mut rig = Rig::in_memory();
    let ino = rig.reserve(1).unwrap();
    let at = rig.attr(ROOT).unwrap().ctime_ns + 1000;
    let steps = vec![
        file(ino, ROOT, "f"),
        set_xattr(ino, "user.a", "1"),
        set_xattr(ino, "user.b", "2"),
        remove_xattr(ino, "user.a"),
        Step { at_ns: at, ..set_xattr(ino, "user.c", "3") },
    ];
    assert_eq!(batch(&mut rig, steps), (5, None));
    let names = |rig: &Rig| match rig.read(Op::ListXattr(v1::ListXattrOp { ino })) {
        Ok(Reply::ListXattr(found)) => found.names,
        other => panic!("{other:?}"),
    };
    assert_eq!(names(&rig), ["user.b", "user.c"]);
    let attr = rig.attr(ino).unwrap();
    assert_eq!((attr.ctime_ns, attr.no_xattrs), (at, false));
    rig.check();
    // What comes behind a refusal is not done.
    let list = "system.posix_acl_access";
    for (bad, kind) in [
        (remove_xattr(ino, "user.a"), ErrorKind::NoAttribute),
        (remove_xattr(ino, list), ErrorKind::Invalid),
        (set_xattr(ino, list, ""), ErrorKind::Invalid),
        (set_xattr(ino + 1, "user.a", ""), ErrorKind::Stale),
    ] {
        let steps = vec![bad, remove_xattr(ino, "user.b")];
        assert_eq!(batch(&mut rig, steps), (0, Some(kind)));
    }
    assert_eq!(
        batch(&mut rig, vec![remove_xattr(ino, "user.b"), remove_xattr(ino, "user.c")]),
        (2, None)
    );
    assert!(rig.attr(ino).unwrap().no_xattrs && names(&rig).is_empty());
    rig.check();
}

/// An outage was longer than clocks may differ, and what was done is more than one batch.
#[test]
fn what_is_told_very_late_is_in_order_all_the_same() {
    let mut rig = Rig::in_memory();
    let first = rig.reserve(2).unwrap();
    let (dead, root) = (rig.session, rig.attr(ROOT).unwrap());
    let next = rig.open_session(2);
    rig.entry(Body::ExpireSession(v1::ExpireSessionEntry { session: dead })).unwrap();
    (rig.session, rig.number) = (next, 0);
    let long_ago = root.ctime_ns + 1;
    rig.time += 120_000_000_000;
    let mode = v1::SetAttrOp { ino: first, mode: Some(0o700), ..Default::default() };
    let at = |step, after| Step { at_ns: long_ago + after, ..step };
    let batches = [
        vec![at(dir(first, ROOT, "d"), 0), at(file(first + 1, first, "f"), 1)],
        vec![
            at(step(Do::SetAttr(mode)), 3),
            at(rename((first, "f"), (ROOT, "g"), first + 1, 0), 4),
        ],
        vec![
            at(set_xattr(first + 1, "user.a", "1"), 5),
            at(set_xattr(first + 1, "user.b", "2"), 6),
        ],
    ];
    for steps in batches {
        // Others have changed the directories meanwhile, and not what is in them.
        let chmod = v1::SetAttrOp { ino: ROOT, mode: Some(0o755), ..Default::default() };
        run(&mut rig, Op::SetAttr(chmod)).unwrap();
        let (guarded, own_times, late) = (true, true, true);
        let op = v1::BatchOp { steps, session: dead, guarded, own_times, late };
        let Ok(Reply::Batch(told)) = run(&mut rig, Op::Batch(op)) else { panic!("no batch") };
        assert_eq!((told.done.len(), told.error), (2, 0), "{}", told.message);
    }
    assert_eq!(rig.attr(first + 1).unwrap().ctime_ns, long_ago + 6);
    assert!(rig.attr(ROOT).unwrap().ctime_ns > long_ago + 100_000_000_000);
    rig.check();
}
