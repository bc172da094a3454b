//! Limits and rules of the namespace that random histories seldom meet.

use crate::rig::{Answer, ROOT, Rig, ino, run};
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_proto::ErrorKind;
use weft_proto::v1;

fn mkdir(rig: &mut Rig, parent: u64, name: &str) -> u64 {
    let name = name.to_string().into();
    match run(rig, Op::MkDir(v1::MkDirOp { parent, name, mode: 0o755, ..Default::default() })) {
        Ok(Reply::Attr(attr)) => attr.ino,
        other => panic!("mkdir answered {other:?}"),
    }
}

fn mknod(rig: &mut Rig, parent: u64, name: String) -> Answer {
    let kind = v1::FileKind::Regular.into();
    run(rig, Op::MkNod(v1::MkNodOp { parent, name: name.into(), kind, ..Default::default() }))
}

#[test]
fn a_file_has_at_most_65000_names() {
    let mut rig = Rig::in_memory();
    let Ok(Reply::Attr(file)) = mknod(&mut rig, ROOT, "f".into()) else { panic!() };
    for i in 1..65_000 {
        let name = format!("l{i}").into();
        run(&mut rig, Op::Link(v1::LinkOp { ino: file.ino, parent: ROOT, name })).unwrap();
    }
    let link = Op::Link(v1::LinkOp { ino: file.ino, parent: ROOT, name: "one-more".into() });
    assert_eq!(run(&mut rig, link.clone()), Err(ErrorKind::TooManyLinks));
    run(&mut rig, Op::Unlink(v1::UnlinkOp { parent: ROOT, name: "l7".into() })).unwrap();
    assert!(run(&mut rig, link).is_ok());
    rig.check();
}

#[test]
fn a_large_directory_is_read_in_bounded_answers() {
    let mut rig = Rig::in_memory();
    for i in 0..20_000 {
        mknod(&mut rig, ROOT, format!("{i:0200}")).unwrap();
    }
    let op = Op::ReadDir(v1::ReadDirOp { ino: ROOT, attrs: true, ..Default::default() });
    let Ok(reply) = rig.read(op) else { panic!() };
    let reply = v1::MetaReply { result: Some(reply), ..Default::default() };
    let len = prost::Message::encoded_len(&reply);
    assert!((900_000..1_200_000).contains(&len), "{len} bytes");
    assert_eq!(rig.read_dir(ROOT, 0).0.len(), 20_000);
}

#[test]
fn reading_goes_on_while_names_come_and_go() {
    let mut rig = Rig::in_memory();
    for i in 0..100 {
        mknod(&mut rig, ROOT, format!("{i}")).unwrap();
    }
    let mut seen = Vec::new();
    let mut cookie = 0;
    let whole = Op::ReadDir(v1::ReadDirOp { ino: ROOT, ..Default::default() });
    let Ok(Reply::ReadDir(first)) = rig.read(whole) else { panic!() };
    for round in 0.. {
        let op = v1::ReadDirOp { ino: ROOT, cookie, limit: 7, attrs: false };
        let Ok(Reply::ReadDir(reply)) = rig.read(Op::ReadDir(op)) else { panic!() };
        let is_new = |e: &v1::DirEntry| e.name.starts_with(b"new");
        assert!(reply.entries.iter().all(|e| is_new(e) == (e.cookie >= first.next_cookie)));
        seen.extend(reply.entries.iter().map(|e| e.name.clone()));
        if reply.end {
            break;
        }
        cookie = reply.entries.last().unwrap().cookie;
        // What was just listed goes; a name that was there all along moves nowhere.
        let name = reply.entries[0].name.clone();
        run(&mut rig, Op::Unlink(v1::UnlinkOp { parent: ROOT, name })).unwrap();
        if round < 3 {
            mknod(&mut rig, ROOT, format!("new{round}")).unwrap();
        }
    }
    assert_eq!(seen.len(), 103);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 103, "no name is listed twice");
}

#[test]
fn layouts_are_inherited_when_made() {
    let mut rig = Rig::in_memory();
    let layout = |k, m| v1::LayoutInfo {
        profile: Some(v1::ProfileInfo { k, m }),
        unit: 4096,
        segment_len: u64::from(k) * 4096,
        inline_limit: 100,
    };
    let set = |ino, layout| Op::SetLayout(v1::SetLayoutOp { ino, layout: Some(layout) });
    let get = |rig: &Rig, ino| match rig.read(Op::GetLayout(v1::GetLayoutOp { ino })) {
        Ok(Reply::Layout(layout)) => layout,
        other => panic!("{other:?}"),
    };
    let a = mkdir(&mut rig, ROOT, "a");
    run(&mut rig, set(a, layout(3, 2))).unwrap();
    let b = mkdir(&mut rig, a, "b");
    let Ok(Reply::Attr(file)) = mknod(&mut rig, b, "f".into()) else { panic!() };
    assert_eq!(get(&rig, file.ino), layout(3, 2));
    // A later change is for later children.
    run(&mut rig, set(b, layout(1, 2))).unwrap();
    assert_eq!(get(&rig, file.ino), layout(3, 2));
    run(&mut rig, set(file.ino, layout(4, 1))).unwrap();
    let size = Some(1);
    let grow = v1::SetAttrOp { ino: file.ino, size, ..Default::default() };
    run(&mut rig, Op::SetAttr(grow)).unwrap();
    assert_eq!(run(&mut rig, set(file.ino, layout(1, 2))), Err(ErrorKind::Busy));
    let odd = v1::LayoutInfo { unit: 100, ..layout(1, 1) };
    assert_eq!(run(&mut rig, set(a, odd)), Err(ErrorKind::Invalid));
    assert_eq!(get(&rig, file.ino), layout(4, 1));
}

#[test]
fn attributes_have_limits() {
    let mut rig = Rig::in_memory();
    let set = |name: &str, len: usize, flags| {
        let value = vec![0; len].into();
        Op::SetXattr(v1::SetXattrOp {
            ino: ROOT,
            name: name.to_string().into(),
            value,
            flags,
            ..Default::default()
        })
    };
    assert_eq!(run(&mut rig, set("", 1, 0)), Err(ErrorKind::OutOfRange));
    assert_eq!(run(&mut rig, set(&"n".repeat(256), 1, 0)), Err(ErrorKind::OutOfRange));
    assert!(run(&mut rig, set(&"n".repeat(255), 65536, 0)).is_ok());
    assert_eq!(run(&mut rig, set("n", 65537, 0)), Err(ErrorKind::TooLarge));
    assert_eq!(run(&mut rig, set("n", 1, 4)), Err(ErrorKind::Invalid));
    // As many values of full length as fit in a MiB with their names, that one included.
    let longs = (1..100).take_while(|i| run(&mut rig, set(&format!("v{i}"), 65536, 0)).is_ok());
    assert_eq!(longs.count(), 14);
    assert_eq!(run(&mut rig, set("v15", 65536, 0)), Err(ErrorKind::NoSpace));
    assert!(run(&mut rig, set("v1", 1, 0)).is_ok(), "there is room once one is shorter");
    assert!(run(&mut rig, set("v15", 65535, 0)).is_ok());
    rig.check();
    for i in 1..16 {
        let name = format!("v{i}").into();
        run(&mut rig, Op::RemoveXattr(v1::RemoveXattrOp { ino: ROOT, name })).unwrap();
    }

    // Many small ones; and no more names than Linux can list.
    let mut stored = 0;
    while run(&mut rig, set(&format!("user.{stored:06}"), 8, 0)).is_ok() {
        stored += 1;
    }
    assert_eq!(run(&mut rig, set("user.last", 1, 0)), Err(ErrorKind::NoSpace));
    assert!(stored > 5000, "{stored} small attributes");
    let Ok(Reply::ListXattr(list)) = rig.read(Op::ListXattr(v1::ListXattrOp { ino: ROOT })) else {
        panic!()
    };
    let len: usize = list.names.iter().map(|name| name.len() + 1).sum();
    let lists = "system.posix_acl_access system.posix_acl_default ".len();
    assert!((65_536 - 100..=65_536).contains(&(len + lists)), "a list of {len} bytes");
    rig.check();
}

/// What is deleted by one entry is bounded, whatever the inodes have.
#[test]
fn inodes_with_many_attributes_are_purged_in_steps() {
    let mut rig = Rig::in_memory();
    let mut inos = Vec::new();
    for i in 0..4 {
        let name = format!("f{i}");
        let Ok(Reply::Attr(file)) = mknod(&mut rig, ROOT, name.clone()) else { panic!() };
        for i in 0..1500 {
            let (ino, name) = (file.ino, format!("user.{i}").into());
            run(&mut rig, Op::SetXattr(v1::SetXattrOp { ino, name, ..Default::default() }))
                .unwrap();
        }
        run(&mut rig, Op::Unlink(v1::UnlinkOp { parent: ROOT, name: name.into() })).unwrap();
        inos.push(file.ino);
    }
    let mut left = vec![4];
    while left.last() != Some(&0) {
        let purge = v1::PurgeInodesEntry { inos: inos.clone() };
        rig.entry(Body::PurgeInodes(purge)).unwrap();
        left.push(rig.check().orphans);
    }
    assert_eq!(left, [4, 2, 0]);
}

#[test]
fn deep_trees_are_walked() {
    let mut rig = Rig::in_memory();
    let mut at = ROOT;
    for _ in 0..3000 {
        at = mkdir(&mut rig, at, "d");
    }
    let rename = |parent, new_parent| {
        let (name, new_name) = ("d".into(), "e".into());
        Op::Rename(v1::RenameOp { parent, name, new_parent, new_name, flags: 0 })
    };
    assert_eq!(run(&mut rig, rename(ROOT, at)), Err(ErrorKind::Invalid));
    rig.check();
}

#[test]
fn an_access_is_noted_and_changes_nothing_else() {
    let mut rig = Rig::in_memory();
    let Ok(Reply::Attr(made)) = mknod(&mut rig, ROOT, "f".into()) else { panic!() };
    let accessed = |of, atime_ns| {
        let gone = v1::Access { ino: ino(999), atime_ns };
        Op::Accessed(v1::AccessedOp { accesses: vec![gone, v1::Access { ino: of, atime_ns }] })
    };
    let later = made.ctime_ns + 5;
    run(&mut rig, accessed(made.ino, later)).unwrap();
    let noted = v1::Attr { atime_ns: later, ..made };
    assert_eq!(rig.attr(made.ino), Ok(noted));
    run(&mut rig, accessed(made.ino, later - 1)).unwrap();
    assert_eq!(rig.attr(made.ino), Ok(noted), "times go forward");
    // A time that was set stays until the next access.
    let set = v1::SetAttrOp { ino: made.ino, atime_ns: Some(7), ..Default::default() };
    let Ok(Reply::Attr(set)) = run(&mut rig, Op::SetAttr(set)) else { panic!() };
    run(&mut rig, accessed(made.ino, set.ctime_ns - 1)).unwrap();
    assert_eq!(rig.attr(made.ino), Ok(set));
    let many = vec![v1::Access { ino: made.ino, atime_ns: later }; 5000];
    let many = Op::Accessed(v1::AccessedOp { accesses: many });
    assert_eq!(run(&mut rig, many), Err(ErrorKind::Invalid));
}

/// To walk up to the root must not take for ever, on every replica.
#[test]
fn a_directory_is_not_moved_into_the_depths() {
    let mut rig = Rig::in_memory();
    let mut dirs = vec![ROOT];
    for _ in 0..5000 {
        let above = *dirs.last().unwrap();
        dirs.push(mkdir(&mut rig, above, "d"));
    }
    let (shallow, deep) = (dirs[4000], *dirs.last().unwrap());
    mkdir(&mut rig, ROOT, "moved");
    mknod(&mut rig, ROOT, "file".into()).unwrap();
    let mut rename = |parent, name: &'static str, new_parent, new_name: &'static str, flags| {
        let (name, new_name) = (name.into(), new_name.into());
        run(&mut rig, Op::Rename(v1::RenameOp { parent, name, new_parent, new_name, flags }))
    };
    assert_eq!(rename(ROOT, "moved", deep, "m", 0), Err(ErrorKind::TooDeep));
    assert_eq!(rename(dirs[4998], "d", ROOT, "moved", 2), Err(ErrorKind::TooDeep));
    // Files go anywhere, and what is deep comes out.
    rename(ROOT, "file", deep, "file", 0).unwrap();
    rename(ROOT, "moved", shallow, "m", 0).unwrap();
    assert_eq!(rename(ROOT, "d", shallow, "x", 0), Err(ErrorKind::Invalid));
    rename(dirs[4998], "d", ROOT, "out", 0).unwrap();
    mkdir(&mut rig, deep, "deeper");
    rig.check();
}

#[test]
fn usage_counts_what_lies_under_a_directory_once() {
    let mut rig = Rig::in_memory();
    let usage = |rig: &Rig, ino| match rig.read(Op::GetUsage(v1::GetUsageOp { ino })) {
        Ok(Reply::Usage(usage)) => Some((usage.inodes, usage.bytes)),
        Err(ErrorKind::Stale) => None,
        other => panic!("usage of {ino} answered {other:?}"),
    };
    let (dir, beside) = (mkdir(&mut rig, ROOT, "dir"), mkdir(&mut rig, ROOT, "beside"));
    let below = mkdir(&mut rig, dir, "below");
    let mut make = |parent, len: usize| {
        let Ok(Reply::Attr(file)) = mknod(&mut rig, parent, format!("f{len}")) else { panic!() };
        let inline = Some(v1::extent::Source::Inline(vec![1; len].into()));
        let extents = vec![v1::Extent { file_off: 1 << 30, len: len as u64, source: inline }];
        let op = v1::CommitExtentsOp { ino: file.ino, extents, ..Default::default() };
        run(&mut rig, Op::CommitExtents(op)).unwrap();
        file.ino
    };
    let (_, twice, _) = (make(dir, 10), make(below, 200), make(beside, 3000));
    for (parent, name) in [(dir, "again"), (beside, "elsewhere")] {
        let name = name.into();
        run(&mut rig, Op::Link(v1::LinkOp { ino: twice, parent, name })).unwrap();
    }
    assert_eq!(usage(&rig, dir), Some((4, 210)));
    assert_eq!(usage(&rig, below), Some((2, 200)));
    assert_eq!(usage(&rig, beside), Some((3, 3200)));
    assert_eq!(usage(&rig, ROOT), Some((7, 3210)));
    assert_eq!(usage(&rig, twice), Some((1, 200)));
    assert_eq!(usage(&rig, ROOT + 99), None);
}
