//! Leases: what is believed, kept, given back and forgotten.

use super::leases::Leases;
use super::recall::MAX_INODES;
use super::table::{MAX_MARKS, Mode};
use super::xattrs::Xattrs;
use bytes::Bytes;
use futures_util::FutureExt;
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{ErrorKind, InodeId, SessionId, v1};

const DIR: u64 = 1;
const INO: u64 = 7;

fn attr(ino: u64) -> v1::Attr {
    v1::Attr { ino, kind: v1::FileKind::Regular.into(), ..Default::default() }
}

fn lookup(name: &'static str) -> Op {
    Op::Lookup(v1::LookupOp { parent: DIR, name: name.into() })
}

fn grant(ino: u64) -> v1::Grant {
    v1::Grant { ino, seq: ino, ..Default::default() }
}

fn found() -> v1::MetaReply {
    v1::MetaReply {
        result: Some(Reply::Attr(attr(INO))),
        grants: vec![grant(DIR), grant(INO)],
        ..Default::default()
    }
}

fn leases() -> Leases {
    let leases = Leases::default();
    leases.renewed(Instant::now(), Duration::from_secs(600));
    leases
}

fn release(l: &Leases, ino: u64) {
    l.stop_buffering(InodeId(ino), true, false);
    assert!(l.flushed(InodeId(ino), false));
}

fn unlinked() -> (Op, v1::MetaReply) {
    let op = Op::Unlink(v1::UnlinkOp { parent: DIR, name: "a".into() });
    let result = Some(Reply::Empty(v1::Empty {}));
    (op, v1::MetaReply { result, touched: vec![DIR, INO], ..Default::default() })
}

fn write_grant(ino: u64) -> v1::Grant {
    v1::Grant { write: true, locks: true, layout: Some(v1::LayoutInfo::default()), ..grant(ino) }
}

fn opened(ino: u64) -> Option<Reply> {
    let (attr, layout) = (Some(attr(ino)), Some(v1::LayoutInfo::default()));
    Some(Reply::Open(v1::OpenReply { attr, layout, extents: None, owes: false }))
}

/// The leader has sent the answer first, and has had its lease back since.
#[tokio::test]
async fn a_grant_that_its_recall_has_overtaken_is_not_believed() {
    let l = leases();
    let create = Op::Create(v1::CreateOp { parent: DIR, name: "a".into(), ..Default::default() });
    let lease = Op::Lease(v1::LeaseOp { ino: INO, write: true, ..Default::default() });
    let grants = vec![write_grant(DIR), write_grant(INO)];
    let reply =
        v1::MetaReply { result: opened(INO), grants, touched: vec![DIR], ..Default::default() };
    let (start, inos) = (l.start(), [DIR, INO].map(InodeId));
    inos.into_iter().for_each(|ino| assert!(!l.stop_buffering(ino, true, false).unwrap()));
    l.changed(start, &create, &reply);
    l.learn(start, &lease, &reply);
    assert_eq!(inos.map(|ino| l.mode(ino)), [None; 2]);
    // Of one that comes after, it is.
    l.changed(l.start(), &create, &reply);
    assert_eq!(inos.map(|ino| l.mode(ino)), [Some(Mode::Write); 2]);
}

/// Whoever gave it back was ended in the midst of that: it is held to write still, with all that
/// has to be done before it is given back, and that begins anew.
#[tokio::test]
async fn what_was_not_given_back_is_held_as_before() {
    let l = leases();
    let lease = Op::Lease(v1::LeaseOp { ino: INO, write: true, ..Default::default() });
    let grants = vec![write_grant(INO)];
    l.learn(
        l.start(),
        &lease,
        &v1::MetaReply { result: opened(INO), grants, ..Default::default() },
    );
    let ino = InodeId(INO);
    assert!(l.stop_buffering(ino, true, false).unwrap() && !l.has_right_to_write(ino));
    l.release_later(InodeId(8), 3);
    assert_eq!(l.take_surplus(), [(InodeId(8), 3)]);
    l.resume();
    assert!(l.has_right_to_write(ino));
    assert_eq!(l.take_surplus(), [(InodeId(8), 3), (ino, INO)]);
    l.given([InodeId(8), ino]);
    l.resume();
    assert_eq!(l.take_surplus(), []);
    let (held, surplus) = l.at_rest();
    assert_eq!((held.len(), held[0].write, surplus.len()), (1, true, 0));
}

/// Nobody recalled anything, as nothing was held when it was asked.
#[tokio::test]
async fn an_answer_from_before_the_lease_does_not_undo_a_mode() {
    let (l, ino) = (leases(), InodeId(INO));
    let start = l.start();
    let told = |mode, ctime_ns, grants| {
        let attr = v1::Attr { mode, ctime_ns, ..attr(INO) };
        v1::MetaReply { result: Some(Reply::Attr(attr)), grants, ..Default::default() }
    };
    let (newer, older) = (told(0o600, 2, vec![grant(INO)]), told(0o644, 1, vec![grant(INO)]));
    let asked = Op::GetAttr(v1::GetAttrOp { ino: INO });
    l.learn(l.start(), &asked, &newer);
    l.learn(start, &asked, &older);
    assert_eq!(l.attr(ino).map(|attr| attr.mode), Some(0o600));
}

/// A change that was sent may be seen by others before its answer is here.
#[tokio::test]
async fn what_a_change_in_flight_is_about_is_asked_for() {
    let l = leases();
    let (dir, ino) = (InodeId(DIR), InodeId(INO));
    l.learn(l.start(), &lookup("a"), &found());
    let missing = Some(Reply::Missing(v1::Empty {}));
    l.learn(l.start(), &lookup("b"), &v1::MetaReply { result: missing, ..Default::default() });
    let open = Op::Open(v1::OpenOp { ino: INO, ..Default::default() });
    l.learn(l.start(), &open, &v1::MetaReply { result: opened(INO), ..Default::default() });
    l.table.lock().edit_xattrs(ino, |known| *known = Xattrs::all(&v1::Xattrs::default()));
    let knows = || {
        let names = [l.lookup(dir, b"a").is_some(), l.has_name(dir, b"a", Some(ino))];
        let content = [l.attr(ino).is_some(), l.content(ino).is_some()];
        let xattrs = l.xattr(ino, b"user.x").is_some() && l.xattr_names(ino).is_some();
        let others = l.lookup(dir, b"b").is_some();
        (names, content, xattrs && l.attr_to_cache(ino).is_some(), others)
    };
    let all = ([true, true], [true, true], true, true);
    assert_eq!(knows(), all);
    let chmod = Op::SetAttr(v1::SetAttrOp { ino: INO, mode: Some(0o600), ..Default::default() });
    let (first, second) = (l.in_flight(&chmod).await, l.in_flight(&chmod).await);
    assert_eq!(knows(), ([false, true], [false, false], false, true));
    drop(first);
    assert!(l.attr(ino).is_none(), "one is in flight still");
    // They were refused.
    drop(second);
    assert_eq!(knows(), all);
    let (unlink, _) = unlinked();
    let third = l.in_flight(&unlink).await;
    assert_eq!(knows(), ([false, false], [false, false], false, true));
    drop(third);
    assert_eq!(knows(), all);
}

#[tokio::test]
async fn what_only_this_mount_may_write_is_known_while_it_changes() {
    let l = leases();
    directory(&l, |_| ());
    let (dir, op) = (InodeId(DIR), v1::SetAttrOp { ino: DIR, ..Default::default() });
    let in_flight = l.in_flight(&Op::SetAttr(op)).await;
    assert!(l.attr(dir).is_some());
    // Its right is given back before the answer: others look.
    assert!(l.stop_buffering(dir, true, false).unwrap());
    assert!(l.attr(dir).is_some(), "not before that is done");
    assert!(l.flushed(dir, true));
    assert!(l.attr(dir).is_none());
    drop(in_flight);
    assert!(l.attr(dir).is_some());
}

fn file(ino: u64, name: &'static str) -> v1::MakeOp {
    let kind = v1::FileKind::Regular.into();
    v1::MakeOp { ino, parent: DIR, name: name.into(), kind, ..Default::default() }
}

/// Makes a file; answers it, and when it was made.
fn make(l: &Leases, ino: u64, name: &'static str) -> Option<(v1::Attr, i64)> {
    l.make(&file(ino, name), 5, 0).map(|(reply, at)| (reply.attr.unwrap(), at))
}

/// A directory that this mount may write and whose attributes it knows.
fn directory(l: &Leases, change: impl FnOnce(&mut v1::Attr)) {
    let op = Op::MkDir(v1::MkDirOp { parent: 9, name: "dir".into(), ..Default::default() });
    let kind = v1::FileKind::Directory.into();
    let mut dir = v1::Attr { kind, nlink: 2, ctime_ns: 9, ..attr(DIR) };
    change(&mut dir);
    let (result, grants) = (Some(Reply::Attr(dir)), vec![write_grant(DIR)]);
    l.changed(l.start(), &op, &v1::MetaReply { result, grants, ..Default::default() });
}

#[tokio::test]
async fn a_file_is_made_where_nobody_else_can() {
    let l = leases();
    assert!(make(&l, 7, "a").is_none(), "without a lease");
    directory(&l, |_| ());
    let (made, at) = make(&l, 7, "a").unwrap();
    assert_eq!((made.ino, made.ctime_ns, at), (7, 10, 10), "after all before");
    assert_eq!(l.lookup(InodeId(DIR), b"a").unwrap().unwrap().ino, InodeId(7));
    assert_eq!(l.attr(InodeId(DIR)).unwrap().mtime_ns, 10);
    assert!(l.may_buffer(InodeId(7)) && l.may_lock(InodeId(7)));
    assert!(make(&l, 8, "a").is_none(), "the name is taken");
    // The group has not heard of it, and shows the directory as it was.
    let kind = v1::FileKind::Directory.into();
    let old = v1::Attr { kind, nlink: 2, ctime_ns: 9, ..attr(DIR) };
    let op = Op::Lookup(v1::LookupOp { parent: 9, name: "dir".into() });
    let reply = v1::MetaReply { result: Some(Reply::Attr(old)), ..Default::default() };
    l.learn(l.start(), &op, &reply);
    assert_eq!(l.attr(InodeId(DIR)).unwrap().mtime_ns, 10);
    assert_eq!(l.newest(old.try_into().unwrap()).mtime_ns, 10);
    // An answer that was asked for before knows less.
    let asked = l.start();
    make(&l, 8, "b").unwrap();
    let op = Op::Lookup(v1::LookupOp { parent: DIR, name: "b".into() });
    let missing = Some(Reply::Missing(v1::Empty {}));
    l.learn(asked, &op, &v1::MetaReply { result: missing, ..Default::default() });
    assert!(!matches!(l.lookup(InodeId(DIR), b"b"), Some(Err(_))));
    l.stop_buffering(InodeId(DIR), true, false);
    assert!(make(&l, 9, "c").is_none(), "it is being given back");
    // What a list or a removed directory make of a file is not for this mount to say.
    for change in [|dir: &mut v1::Attr| dir.acls = true, |dir: &mut v1::Attr| dir.nlink = 0] {
        let l = leases();
        directory(&l, change);
        assert!(make(&l, 7, "a").is_none());
    }
}

#[tokio::test]
async fn a_file_that_is_not_made_leaves_no_lease() {
    let l = leases();
    directory(&l, |_| ());
    make(&l, 7, "a").unwrap();
    let op = Some(v1::batch_op::step::Op::Make(file(7, "a")));
    let step = v1::batch_op::Step { op, ..Default::default() };
    l.not_done(&step, &[InodeId(7), InodeId(DIR)]);
    assert!(l.lookup(InodeId(DIR), b"a").is_none() && l.mode(InodeId(7)).is_none());
    assert_eq!(l.take_surplus(), [(InodeId(7), u64::MAX)]);
}

/// Also what may be written, which has to be looked after first.
#[tokio::test]
async fn half_of_too_much_is_given_back() {
    let l = leases();
    directory(&l, |_| ());
    for ino in 0..=MAX_INODES as u64 {
        let op = Op::Create(v1::CreateOp { parent: 9, name: "x".into(), ..Default::default() });
        let grants = vec![write_grant(100 + ino)];
        let reply = v1::MetaReply { result: opened(100 + ino), grants, ..Default::default() };
        l.changed(l.start(), &op, &reply);
    }
    let surplus = l.take_surplus();
    assert!(surplus.len().abs_diff(MAX_INODES / 2) < 2, "{}", surplus.len());
    assert!(surplus.iter().all(|(ino, _)| ino.0 != DIR), "it leads to others");
    surplus.iter().for_each(|(ino, _)| release(&l, ino.0));
    l.shrunk();
    assert_eq!(l.take_surplus(), []);
}

#[tokio::test]
async fn what_was_found_is_known_until_it_is_recalled() {
    let l = leases();
    assert!(l.lookup(InodeId(DIR), b"a").is_none());
    l.learn(l.start(), &lookup("a"), &found());
    assert_eq!(l.lookup(InodeId(DIR), b"a").unwrap().unwrap().ino, InodeId(INO));
    assert!(l.lookup(InodeId(DIR), b"b").is_none());
    release(&l, INO);
    assert!(l.lookup(InodeId(DIR), b"a").is_none());
    assert!(l.attr(InodeId(INO)).is_none());
    l.learn(l.start(), &lookup("a"), &found());
    release(&l, DIR);
    assert!(l.lookup(InodeId(DIR), b"a").is_none());
    assert!(l.attr(InodeId(INO)).is_some());
}

#[tokio::test]
async fn an_answer_that_was_overtaken_by_a_recall_teaches_nothing() {
    let l = leases();
    let start = l.start();
    release(&l, INO);
    l.learn(start, &lookup("a"), &found());
    assert!(l.mode(InodeId(INO)).is_none() && l.attr(InodeId(INO)).is_none());
    assert_eq!(l.mode(InodeId(DIR)), Some(Mode::Read));
    l.learn(l.start(), &lookup("a"), &found());
    assert!(l.attr(InodeId(INO)).is_some());
}

#[tokio::test]
async fn own_changes_are_known_and_overtake_old_answers() {
    let l = leases();
    let early = l.start();
    l.learn(early, &lookup("a"), &found());
    let (op, reply) = unlinked();
    l.changed(l.start(), &op, &reply);
    assert_eq!(l.lookup(InodeId(DIR), b"a").unwrap().unwrap_err().kind, ErrorKind::NotFound);
    l.learn(early, &lookup("a"), &found());
    assert!(l.lookup(InodeId(DIR), b"a").is_none(), "it is not known which came first");
    assert_eq!(l.take_surplus(), [(InodeId(INO), INO)]);
}

#[tokio::test]
async fn overlapping_changes_of_a_directory_leave_the_name_unknown() {
    let l = leases();
    l.learn(l.start(), &lookup("a"), &found());
    let both = l.start();
    let (op, reply) = unlinked();
    l.changed(both, &op, &reply);
    l.changed(both, &op, &reply);
    assert!(l.lookup(InodeId(DIR), b"a").is_none());
}

#[tokio::test]
async fn a_directory_is_known_after_own_changes_that_do_not_overlap() {
    let l = leases();
    l.learn(l.start(), &lookup("a"), &found());
    let (op, mut reply) = unlinked();
    reply.dirs = vec![v1::Attr { nlink: 5, ..attr(DIR) }];
    let both = l.start();
    l.changed(both, &op, &reply);
    assert_eq!(l.attr(InodeId(DIR)).unwrap().nlink, 5);
    l.changed(both, &op, &reply);
    assert!(l.attr(InodeId(DIR)).is_none(), "it is not known which came first");
}

#[tokio::test]
async fn a_directory_made_here_is_known_whole() {
    let l = leases();
    let op = Op::MkDir(v1::MkDirOp { parent: DIR, name: "d".into(), ..Default::default() });
    let mut made = attr(9);
    made.kind = v1::FileKind::Directory.into();
    let reply = v1::MetaReply {
        result: Some(Reply::Attr(made)),
        grants: vec![grant(9)],
        touched: vec![DIR],
        ..Default::default()
    };
    l.changed(l.start(), &op, &reply);
    assert_eq!(l.lookup(InodeId(9), b"x").unwrap().unwrap_err().kind, ErrorKind::NotFound);
    assert!(l.lookup(InodeId(DIR), b"d").is_none(), "no lease on the parent");
}

/// Changes are remembered for what is asked meanwhile, and a mount may make thousands each second.
#[tokio::test]
async fn what_remembers_changes_is_bounded() {
    let l = leases();
    let before = l.start();
    l.table.lock().change(InodeId(DIR));
    for ino in 0..3 * MAX_MARKS as u64 {
        l.table.lock().change(InodeId(1_000_000 + ino));
    }
    let marks: usize = l.table.lock().marks.iter().map(|marks| marks.len()).sum();
    assert!(marks <= 2 * MAX_MARKS, "{marks}");
    l.learn(before, &lookup("a"), &found());
    assert!(l.lookup(InodeId(DIR), b"a").is_none(), "the directory was changed since");
    let start = l.start();
    (0..MAX_MARKS as u64 - 1).for_each(|ino| l.table.lock().change(InodeId(1_000_000 + ino)));
    l.learn(start, &lookup("a"), &found());
    assert!(l.lookup(InodeId(DIR), b"a").is_some());
}

/// Who looks up two names and lists nothing is told all of them, and which are not there.
#[tokio::test]
async fn a_directory_in_which_names_are_looked_up_becomes_known() {
    let (l, dir) = (leases(), InodeId(DIR));
    assert!(l.names_ahead(dir, b"a").is_none(), "no lease on it");
    l.learn(l.start(), &lookup("a"), &found());
    assert!(l.names_ahead(dir, b"b").is_none(), "one name");
    assert!(l.names_ahead(dir, b"a").is_none(), "it is known");
    let op = l.names_ahead(dir, b"c").unwrap();
    assert_eq!((op.ino, op.cookie, op.attrs), (DIR, 0, false));
    let entry = |ino: u64, name: &'static str| v1::DirEntry {
        name: name.into(),
        ino,
        kind: v1::FileKind::Regular.into(),
        cookie: ino,
        attr: None,
    };
    let entries = vec![entry(INO, "a"), entry(8, "b")];
    let page = v1::ReadDirReply { entries, end: true, parent: DIR, next_cookie: 9 };
    let result = Some(Reply::ReadDir(page));
    let reply = v1::MetaReply { result, grants: vec![grant(DIR)], ..Default::default() };
    l.learn(l.start(), &Op::ReadDir(op), &reply);
    assert_eq!(l.lookup(dir, b"c").unwrap().unwrap_err().kind, ErrorKind::NotFound);
    assert!(l.lookup(dir, b"b").is_none(), "its attributes are not known");
    assert!(l.names_ahead(dir, b"d").is_none(), "there are no more");
    l.note_sought(dir);
    assert_eq!(l.attrs_ahead(dir, b"b").map(|op| (op.cookie, op.attrs)), Some((INO, true)));
    // Given back, nothing is known of it.
    release(&l, DIR);
    assert!(l.lookup(dir, b"c").is_none() && l.attrs_ahead(dir, b"b").is_none());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_used_after_the_session_may_be_dead() {
    let l = Leases::default();
    l.renewed(Instant::now(), Duration::from_secs(10));
    l.learn(l.start(), &lookup("a"), &found());
    tokio::time::advance(Duration::from_secs(8)).await;
    assert!(l.attr(InodeId(INO)).is_some());
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!(l.attr(InodeId(INO)).is_none() && l.mode(InodeId(DIR)).is_none());
    assert!(l.lookup(InodeId(DIR), b"a").is_none());
}

#[tokio::test]
async fn a_new_leader_leaves_the_right_to_write() {
    let l = leases();
    let mut reply = found();
    reply.grants[1].write = true;
    l.learn(l.start(), &lookup("a"), &reply);
    let before = l.start();
    assert_eq!(l.keep_writes().0, [InodeId(INO)]);
    assert!(l.may_buffer(InodeId(INO)) && l.attr(InodeId(INO)).is_none());
    l.learn(before, &lookup("a"), &found());
    assert!(l.mode(InodeId(DIR)).is_none(), "the old leader's grants are worth nothing");
    // Its recall has begun, and what was buffered is not committed yet.
    assert!(
        l.stop_buffering(InodeId(INO), true, false).unwrap()
            && !l.stop_buffering(InodeId(DIR), true, false).unwrap()
    );
    assert!(!l.may_buffer(InodeId(INO)));
    assert_eq!(l.keep_writes().0, [InodeId(INO)]);
    assert!(l.flushed(InodeId(INO), true));
    assert!(l.keep_writes().0.is_empty());
}

/// Between a recall and its answer what was buffered before may be committed; after it nobody is
/// kept from writing.
#[tokio::test]
async fn a_right_to_write_ends_when_what_was_buffered_is_committed() {
    let (l, ino) = (leases(), InodeId(INO));
    let lease = Op::Lease(v1::LeaseOp { ino: INO, write: true, ..Default::default() });
    let grants = vec![write_grant(INO)];
    let reply = v1::MetaReply { result: opened(INO), grants, ..Default::default() };
    l.learn(l.start(), &lease, &reply);
    let first = l.right_to_write(ino).unwrap();
    assert!(l.keeps(ino, first));
    assert!(l.stop_buffering(ino, true, false).unwrap());
    assert_eq!((l.right_to_write(ino), l.keeps(ino, first)), (None, true));
    assert!(l.flushed(ino, true));
    assert!(!l.keeps(ino, first));
    l.learn(l.start(), &lease, &reply);
    let second = l.right_to_write(ino).unwrap();
    assert_eq!((l.keeps(ino, first), l.keeps(ino, second)), (false, true));
}

#[tokio::test]
async fn extended_attributes_are_known_until_they_may_have_changed() {
    const LIST: &[u8] = b"system.posix_acl_access";
    let l = leases();
    let get = |name: &[u8]| l.xattr(InodeId(INO), name).map(|got| got.map_err(|e| e.kind));
    let item = |name: &'static [u8]| v1::xattrs::Item {
        name: name.into(),
        value: Some(Bytes::from_static(b"x")),
    };
    let told = |flags: (bool, bool), names: &[&'static [u8]]| {
        let (acls, no_xattrs) = flags;
        let attr = v1::Attr { acls, no_xattrs, ..attr(INO) };
        let items = names.iter().map(|name| item(name)).collect();
        v1::MetaReply {
            result: Some(Reply::Attr(attr)),
            xattrs: Vec::from_iter((!names.is_empty()).then_some(v1::Xattrs { ino: INO, items })),
            ..found()
        }
    };
    let value = || Some(Ok(Bytes::from_static(b"x")));
    let absent = || Some(Err(ErrorKind::NoAttribute));
    assert_eq!(get(b"user.a"), None);
    l.learn(l.start(), &lookup("a"), &told((false, true), &[]));
    assert_eq!((get(b"user.a"), get(LIST)), (absent(), absent()));
    assert_eq!(l.xattr_names(InodeId(INO)), Some(vec![]));

    // Who has some, has them in the answer, or has to be asked.
    l.learn(l.start(), &lookup("a"), &told((false, false), &[]));
    assert_eq!((get(b"user.a"), get(LIST), l.xattr_names(InodeId(INO))), (None, absent(), None));
    l.learn(l.start(), &lookup("a"), &told((true, false), &[LIST, b"user.a"]));
    assert_eq!((get(b"user.a"), get(b"user.b"), get(LIST)), (value(), absent(), value()));
    assert_eq!(l.xattr_names(InodeId(INO)).unwrap().len(), 2);

    // A mode changes the list.
    let done = v1::MetaReply { result: Some(Reply::Empty(v1::Empty {})), ..Default::default() };
    let done = v1::MetaReply { touched: vec![INO], ..done };
    l.changed(l.start(), &Op::SetAttr(v1::SetAttrOp { ino: INO, ..Default::default() }), &done);
    assert_eq!((get(b"user.a"), get(LIST)), (value(), None));
    let asked = l.start();
    l.changed(l.start(), &Op::SetXattr(v1::SetXattrOp { ino: INO, ..Default::default() }), &done);
    assert_eq!(get(b"user.a"), None);
    // What was asked before that is old.
    let ask = Op::GetXattr(v1::GetXattrOp { ino: INO, name: "user.a".into() });
    let answer = v1::MetaReply { result: Some(Reply::Data("x".into())), ..Default::default() };
    l.learn(asked, &ask, &answer);
    l.learn(asked, &lookup("a"), &told((true, false), &[LIST, b"user.a"]));
    assert_eq!(get(b"user.a"), None);
    l.learn(l.start(), &ask, &answer);
    assert_eq!((get(b"user.a"), get(b"user.b")), (value(), None));
    release(&l, INO);
    l.learn(l.start(), &ask, &answer);
    assert_eq!(get(b"user.a"), None, "without a lease");
    assert_eq!(l.table.lock().xattrs, 0);
}

/// The leader does not know that it is being given back, and grants it once more.
#[tokio::test]
async fn what_is_being_given_back_is_not_buffered_under_a_new_grant() {
    let (l, ino) = (leases(), InodeId(INO));
    let lease = Op::Lease(v1::LeaseOp { ino: INO, write: true, ..Default::default() });
    let grant = |maps| {
        let grants = vec![v1::Grant { maps, ..write_grant(INO) }];
        let reply = v1::MetaReply { result: opened(INO), grants, ..Default::default() };
        l.learn(l.start(), &lease, &reply);
    };
    let (granted, without_maps) = (|| grant(true), || grant(false));
    granted();
    let right = l.right_to_write(ino).expect("granted");
    assert!(l.may_map(ino));
    assert_eq!(
        l.stop_buffering(ino, false, false),
        None,
        "what is stored in pages is to be written back before"
    );
    assert!(l.may_buffer(ino) && l.stop_buffering(ino, true, false).unwrap());
    granted();
    assert!(!l.may_buffer(ino) && !l.may_lock(ino) && !l.may_map(ino) && l.keeps(ino, right));
    assert!(l.flushed(ino, true));
    assert!(!l.keeps(ino, right) && !l.may_buffer(ino));
    without_maps();
    assert!(l.may_buffer(ino) && l.may_lock(ino) && !l.may_map(ino), "of the grant before");
    granted();
    assert!(l.may_map(ino));
    // It may have been granted in a new session, while the answer to a recall of the old one is
    // made ready.
    assert!(!l.flushed(ino, false), "there may be something to flush");
    assert!(l.may_buffer(ino));
    assert!(
        l.stop_buffering(ino, true, false).unwrap()
            && l.flushed(ino, false)
            && l.mode(ino).is_none()
    );
}

/// `rename(2)` of one name of an inode to another one of it does nothing.
#[tokio::test]
async fn of_two_names_of_one_inode_neither_goes_by_a_rename() {
    for (known, stays) in [(Some(INO), true), (Some(9), false), (None, true)] {
        let l = leases();
        l.learn(l.start(), &lookup("a"), &found());
        if let Some(ino) = known {
            let mut other = found();
            other.result = Some(Reply::Attr(attr(ino)));
            other.grants.push(grant(ino));
            l.learn(l.start(), &lookup("b"), &other);
        }
        let (parent, new_parent) = (DIR, DIR);
        let (name, new_name) = ("a".into(), "b".into());
        let op = Op::Rename(v1::RenameOp { parent, name, new_parent, new_name, flags: 0 });
        let result = Some(Reply::Empty(v1::Empty {}));
        let touched = [DIR, INO].into_iter().chain(known).collect();
        let reply = v1::MetaReply { result, touched, ..Default::default() };
        l.changed(l.start(), &op, &reply);
        let gone = l.lookup(InodeId(DIR), b"a").is_some_and(|known| known.is_err());
        assert_eq!(gone, !stays, "{known:?}");
    }
}

/// It may be waiting for servers that are away, for as long as that takes.
#[tokio::test]
async fn a_release_for_a_session_that_is_over_holds_up_none_of_the_next() {
    let (l, ino) = (leases(), InodeId(INO));
    let (over, next) = (SessionId(1), SessionId(2));
    let first = l.begin_release(over, ino).await;
    assert!(l.begin_release(over, ino).now_or_never().is_none(), "two at a time");
    assert!(l.begin_release(over, InodeId(DIR)).now_or_never().is_some());
    assert!(l.begin_release(next, ino).now_or_never().is_some());
    drop(first);
    assert!(l.begin_release(over, ino).now_or_never().is_some());
}

/// The group answers a commit before it hears of them.
#[tokio::test]
async fn a_commit_hides_no_attributes_that_wait_to_be_told() {
    let (l, ino) = (leases(), InodeId(INO));
    let lease = Op::Lease(v1::LeaseOp { ino: INO, write: true, ..Default::default() });
    let grants = vec![v1::Grant { write: true, ..grant(INO) }];
    let held = v1::MetaReply { result: opened(INO), grants, ..Default::default() };
    l.learn(l.start(), &lease, &held);
    l.table.lock().edit_xattrs(ino, |known| *known = Xattrs::none());
    assert!(l.set_xattr(ino, b"user.a", Some(b"1"), 0, 5).is_some());
    let attr = Some(v1::Attr { no_xattrs: true, data_version: 9, ..attr(INO) });
    let done = Reply::CommitExtents(v1::CommitExtentsReply { attr, ..Default::default() });
    let told = v1::MetaReply { result: Some(done), touched: vec![INO], ..Default::default() };
    let op = v1::CommitExtentsOp { ino: INO, ..Default::default() };
    l.changed(l.start(), &Op::CommitExtents(op), &told);
    assert_eq!(l.xattr(ino, b"user.a"), Some(Ok("1".into())));
    assert!(l.set_xattr(ino, b"user.b", Some(b"2"), 0, 6).is_none(), "that is the group's to say");
}
