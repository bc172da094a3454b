//! Files that are made without a name: they get one at most once, or go when nobody has them open.

use crate::rig::{ROOT, Rig};
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_proto::{ErrorKind, v1};

fn run(rig: &mut Rig, op: Op) -> Result<Reply, ErrorKind> {
    let request = rig.next_request(op);
    rig.request(request)
}

fn make(rig: &mut Rig, parent: u64) -> Result<v1::Attr, ErrorKind> {
    let op = v1::TmpFileOp { parent, mode: 0o640, uid: 5, gid: 6, open_seq: 1, umask: 0o27 };
    match run(rig, Op::TmpFile(op))? {
        Reply::Open(reply) => Ok(reply.attr.expect("attributes")),
        other => panic!("tmpfile answered {other:?}"),
    }
}

fn link(rig: &mut Rig, ino: u64, name: &str) -> Result<v1::Attr, ErrorKind> {
    let name = name.to_string().into();
    match run(rig, Op::Link(v1::LinkOp { ino, parent: ROOT, name }))? {
        Reply::Attr(attr) => Ok(attr),
        other => panic!("link answered {other:?}"),
    }
}

fn unlink(rig: &mut Rig, name: &str) {
    let name = name.to_string().into();
    run(rig, Op::Unlink(v1::UnlinkOp { parent: ROOT, name })).expect("unlink");
}

fn purge(rig: &mut Rig, ino: u64) {
    rig.entry(Body::PurgeInodes(v1::PurgeInodesEntry { inos: vec![ino] })).expect("purge");
}

#[test]
fn a_file_without_a_name_gets_one_and_is_then_like_any_other() {
    let mut rig = Rig::in_memory();
    let made = make(&mut rig, ROOT).unwrap();
    assert_eq!((made.nlink, made.mode, made.uid, made.gid), (0, 0o640, 5, 6));
    assert_eq!(rig.machine.orphans(weft_proto::InodeId(0), 9).unwrap().len(), 1);
    rig.check();
    let linked = link(&mut rig, made.ino, "f").unwrap();
    assert_eq!((linked.ino, linked.nlink), (made.ino, 1));
    rig.check();
    // It has a name: the purge of what had none must not take it.
    purge(&mut rig, made.ino);
    assert_eq!(rig.attr(made.ino).unwrap().nlink, 1);
    // Once it has lost its last name it is as gone as any.
    unlink(&mut rig, "f");
    assert_eq!(link(&mut rig, made.ino, "g"), Err(ErrorKind::NotFound));
    rig.check();
    purge(&mut rig, made.ino);
    assert_eq!(rig.attr(made.ino), Err(ErrorKind::Stale));
}

#[test]
fn a_file_that_never_got_a_name_goes_when_nobody_has_it_open() {
    let mut rig = Rig::in_memory();
    let made = make(&mut rig, ROOT).unwrap();
    purge(&mut rig, made.ino);
    assert_eq!(rig.attr(made.ino), Err(ErrorKind::Stale));
    assert_eq!(link(&mut rig, made.ino, "f"), Err(ErrorKind::Stale));
    rig.check();
}

#[test]
fn it_needs_a_directory_and_inherits_from_it() {
    let mut rig = Rig::in_memory();
    let mode = 0o2775;
    let dir = v1::MkDirOp { parent: ROOT, name: "d".into(), mode, gid: 42, ..Default::default() };
    let Ok(Reply::Attr(dir)) = run(&mut rig, Op::MkDir(dir)) else { panic!("no directory") };
    let made = make(&mut rig, dir.ino).unwrap();
    assert_eq!((made.gid, made.btime_ns), (42, rig.time));
    assert_eq!(make(&mut rig, made.ino), Err(ErrorKind::NotDirectory));
    assert_eq!(make(&mut rig, 999), Err(ErrorKind::Stale));
    run(&mut rig, Op::RmDir(v1::RmDirOp { parent: ROOT, name: "d".into() })).unwrap();
    assert_eq!(make(&mut rig, dir.ino), Err(ErrorKind::NotFound));
}
