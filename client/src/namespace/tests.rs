//! The log: in which order it is told, what never gets there, and before which recall.

use super::content::Slot;
use super::entries::{Call, Of, What};
use super::log::ChangeLog;
use super::lost::{MAX_APART, Synced};
use super::numbers::MIN_NUMBERS;
use crate::Options;
use crate::meta::Group;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use v1::batch_op::step::Op as Do;
use weft_net::{Identity, Peers, tcp};
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, SessionId, v1};
use weft_segments::{MapWatch, Rng};

const ROOT: u64 = InodeId::ROOT.0;

/// A mount that made the root, and has numbers for more.
fn alone() -> Arc<ChangeLog> {
    let options = Options::new(Vec::new(), tcp());
    let peers = Peers::new(tcp(), Identity { name: String::new(), cluster: None });
    let rng = Arc::new(Rng::new(Some(1)));
    let group = Group::new(&options, peers, MapWatch::new(), rng);
    let log = Arc::new(ChangeLog::new(Arc::new(group), options.publish_age));
    let leases = &log.group.leases;
    leases.renewed(Instant::now(), Duration::from_secs(600));
    {
        let mut table = log.table.lock();
        table.batches = true;
        table.numbers.push_back(100..100 + 2 * MIN_NUMBERS);
    }
    let kind = v1::FileKind::Directory.into();
    let attr = v1::Attr { ino: ROOT, kind, nlink: 2, ..Default::default() };
    let layout = Some(v1::LayoutInfo::default());
    let grant = v1::Grant { ino: ROOT, seq: 1, write: true, layout, ..Default::default() };
    // As of a directory that was just made: there is nothing in it.
    let op = Op::MkDir(v1::MkDirOp { parent: 9, name: "d".into(), ..Default::default() });
    let (result, grants) = (Some(Reply::Attr(attr)), vec![grant]);
    let reply = v1::MetaReply { result, grants, ..Default::default() };
    leases.changed(leases.start(), &op, &reply);
    log
}

fn make(log: &Arc<ChangeLog>, parent: u64, name: &'static str, kind: v1::FileKind) -> u64 {
    let op = v1::MakeOp { parent, name: name.into(), kind: kind.into(), ..Default::default() };
    let made = log.make(op, 5, None).expect("the right to make it");
    made.attr.expect("attributes").ino
}

fn file(log: &Arc<ChangeLog>, parent: u64, name: &'static str) -> u64 {
    make(log, parent, name, v1::FileKind::Regular)
}

fn unlink(log: &Arc<ChangeLog>, parent: u64, name: &'static str, open: bool) -> Option<bool> {
    let op = v1::UnlinkOp { parent, name: name.into() };
    log.unlink(op, 5, |_| open).map(|(_, never_was)| never_was)
}

fn rename(log: &Arc<ChangeLog>, from: (u64, &'static str), to: (u64, &'static str)) -> Option<()> {
    let (parent, name, new_parent, new_name) = (from.0, from.1.into(), to.0, to.1.into());
    log.rename(v1::RenameOp { parent, name, new_parent, new_name, flags: 0 }, 5)
}

/// What waits to be told, in a word each.
fn waits(log: &Arc<ChangeLog>) -> Vec<&'static str> {
    waits_of(log, Of::This)
}

fn waits_of(log: &Arc<ChangeLog>, of: Of) -> Vec<&'static str> {
    let mut table = log.table.lock();
    let word = |what: &What| match what {
        What::Content(..) => "content",
        What::Step(step) => match &step.op {
            Some(Do::Make(_)) => "make",
            Some(Do::Unlink(_)) => "unlink",
            Some(Do::RmDir(_)) => "rmdir",
            Some(Do::Rename(_)) => "rename",
            Some(Do::SetAttr(_)) => "setattr",
            Some(Do::SetXattr(_) | Do::RemoveXattr(_)) => "xattr",
            Some(Do::Commit(_)) | None => "other",
        },
    };
    table.queue(of).iter().map(|entry| word(&entry.what)).collect()
}

#[tokio::test]
async fn a_tree_that_comes_and_goes_is_never_told() {
    let log = alone();
    let dir = make(&log, ROOT, "d", v1::FileKind::Directory);
    let f = file(&log, dir, "f");
    make(&log, dir, "l", v1::FileKind::Symlink);
    log.content(InodeId(f), None, Box::new(|_, _| ()));
    let times = v1::SetAttrOp { ino: f, mtime_ns: Some(7), ..Default::default() };
    assert_eq!(log.set_attr(times, None, 5).unwrap().mtime_ns, 7);
    assert_eq!(waits(&log), ["make", "make", "make", "content", "setattr"]);
    let op = v1::RmDirOp { parent: ROOT, name: "d".into() };
    assert!(log.rm_dir(op.clone(), 5, |_| false).is_none(), "it is not empty");
    assert_eq!(unlink(&log, dir, "f", false), Some(true));
    assert_eq!(unlink(&log, dir, "l", false), Some(true));
    assert!(log.rm_dir(op, 5, |_| false).is_some());
    // The root has changed all the same.
    assert_eq!(waits(&log), ["setattr"]);
    assert!(log.group.leases.lookup(InodeId::ROOT, b"d").unwrap().is_err());
    assert!(!log.has(InodeId(f)) && !log.is_unpublished(InodeId(dir)));
    assert!(log.is_unpublished(InodeId::ROOT));
}

/// What is known above may be opened without its name.
#[tokio::test]
async fn a_tree_that_went_is_told_unless_it_is_forgotten_before() {
    let log = alone();
    let dir = make(&log, ROOT, "d", v1::FileKind::Directory);
    let f = file(&log, dir, "f");
    log.content(InodeId(f), None, Box::new(|_, _| ()));
    assert_eq!(unlink(&log, dir, "f", true), Some(false));
    let op = v1::RmDirOp { parent: ROOT, name: "d".into() };
    assert!(log.rm_dir(op, 5, |_| true).is_some());
    assert_eq!(waits(&log), ["make", "make", "content", "unlink", "rmdir"]);
    assert!(!log.forgotten(InodeId(f), |_| true), "it was opened meanwhile");
    assert!(!log.forgotten(InodeId(dir), |_| false), "its file may be told of still");
    assert!(log.forgotten(InodeId(f), |_| false) && !log.has(InodeId(f)));
    assert_eq!(waits(&log), ["make", "setattr", "rmdir"], "in the place of the removal");
    assert!(log.forgotten(InodeId(dir), |_| false));
    // The root has changed all the same.
    assert_eq!(waits(&log), ["setattr"]);
    assert!(!log.forgotten(InodeId(dir), |_| false), "once");
    // What has a name, or lost it to another, is not gone.
    let (a, b) = (file(&log, ROOT, "a"), file(&log, ROOT, "b"));
    assert!(!log.forgotten(InodeId(a), |_| false));
    assert!(rename(&log, (ROOT, "a"), (ROOT, "b")).is_some());
    assert!(!log.forgotten(InodeId(a), |_| false) && !log.forgotten(InodeId(b), |_| false));
    assert_eq!(waits(&log), ["setattr", "make", "make", "rename"]);
}

/// The time of a removal stays in its place, in front of what came later.
#[tokio::test]
async fn what_is_forgotten_late_leaves_an_early_time() {
    let log = alone();
    let a = file(&log, ROOT, "a");
    let removed = |name: &'static str, now| {
        let op = v1::UnlinkOp { parent: ROOT, name: name.into() };
        log.unlink(op, now, |_| true).unwrap().0
    };
    assert_eq!(removed("a", 6), InodeId(a));
    let times = v1::SetAttrOp { ino: ROOT, mtime_ns: Some(1), ..Default::default() };
    log.set_attr(times, None, 7).unwrap();
    file(&log, ROOT, "b");
    assert!(log.forgotten(InodeId(a), |_| false));
    // What somebody has set is later, and stays.
    assert_eq!(waits(&log), ["setattr", "make"]);
    let mtime = |log: &Arc<ChangeLog>| match &log.table.lock().this[0].what {
        What::Step(step) => match &step.op {
            Some(Do::SetAttr(op)) => op.mtime_ns,
            _ => None,
        },
        What::Content(..) => None,
    };
    assert_eq!(mtime(&log), Some(1));
    // Many leave one time, which has waited since the first of them.
    let age = |log: &Arc<ChangeLog>| log.table.lock().this.back().map(|last| (last.seq, last.at));
    let mut first = None;
    for (name, now) in [("c", 9), ("d", 10), ("e", 11)] {
        let ino = InodeId(file(&log, ROOT, name));
        removed(name, now);
        assert!(log.forgotten(ino, |_| false));
        assert_eq!(*first.get_or_insert(age(&log)), age(&log));
    }
    assert_eq!(waits(&log), ["setattr", "make", "setattr"]);
    log.table.lock().this.drain(..2);
    // As it is shown.
    assert_eq!(mtime(&log), log.group.leases.attr(InodeId::ROOT).map(|attr| attr.mtime_ns));
}

#[tokio::test]
async fn what_is_open_or_was_moved_is_told() {
    let log = alone();
    file(&log, ROOT, "open");
    assert_eq!(unlink(&log, ROOT, "open", true), Some(false));
    file(&log, ROOT, "a");
    assert!(rename(&log, (ROOT, "a"), (ROOT, "b")).is_some());
    assert_eq!(unlink(&log, ROOT, "b", false), Some(false));
    assert_eq!(waits(&log), ["make", "unlink", "make", "rename", "unlink"]);
    assert!(log.group.leases.lookup(InodeId::ROOT, b"b").unwrap().is_err());
}

#[tokio::test]
async fn a_name_that_is_replaced_leads_to_what_was_moved() {
    let log = alone();
    let (old, new) = (file(&log, ROOT, "f"), file(&log, ROOT, "f.tmp"));
    assert!(rename(&log, (ROOT, "f.tmp"), (ROOT, "f")).is_some());
    let found = log.group.leases.lookup(InodeId::ROOT, b"f").unwrap().unwrap();
    assert_eq!(found.ino, InodeId(new));
    assert_eq!(log.group.leases.attr(InodeId(old)).unwrap().nlink, 0);
    // What the group has to say.
    let dir = make(&log, ROOT, "d", v1::FileKind::Directory);
    assert!(rename(&log, (ROOT, "d"), (ROOT, "e")).is_none(), "a directory");
    assert!(rename(&log, (ROOT, "f"), (ROOT, "d")).is_none(), "onto a directory");
    assert!(rename(&log, (ROOT, "x"), (ROOT, "y")).is_none(), "what is not there");
    assert!(rename(&log, (dir, "x"), (99, "y")).is_none(), "to where nothing is known");
    assert_eq!(waits(&log), ["make", "make", "rename", "make"]);
}

/// Two mounts that tell of what they did in earlier sessions, each in a directory that the other
/// has by now, would wait for each other: either gives its directory back only when it has told
/// what it did there.
#[tokio::test]
async fn what_is_of_an_earlier_session_holds_up_no_other() {
    let log = alone();
    file(&log, ROOT, "a");
    let f = file(&log, ROOT, "b");
    log.content(InodeId(f), None, Box::new(|_, _| ()));
    log.lost();
    assert!(waits(&log).is_empty(), "content is sent again by its file");
    let mut table = log.table.lock();
    assert_eq!(table.earlier.len(), 2);
    let [this, earlier] = table.concerned(Some(&[InodeId(f)])).unwrap();
    assert_eq!((this, earlier.is_some()), (None, true));
    table.part(SessionId(7));
    assert_eq!(table.queue(Of::Earlier).len(), 2);
}

/// They may have written to it since.
#[tokio::test]
async fn an_earlier_session_takes_nothing_from_others() {
    let log = alone();
    for (ino, name) in [(50, "old"), (51, "target")] {
        let attr =
            v1::Attr { ino, kind: v1::FileKind::Regular.into(), nlink: 1, ..Default::default() };
        let op = Op::Lookup(v1::LookupOp { parent: ROOT, name: name.into() });
        let found = v1::MetaReply { result: Some(Reply::Attr(attr)), ..Default::default() };
        log.group.leases.learn(log.group.leases.start(), &op, &found);
        let grants = vec![v1::Grant { ino, seq: 2, write: true, ..Default::default() }];
        let result = Some(Reply::LeaseMany(v1::LeaseManyReply { attrs: vec![attr] }));
        let granted = v1::MetaReply { result, grants, ..Default::default() };
        let op = Op::LeaseMany(v1::LeaseManyOp { inos: vec![ino] });
        log.group.leases.learn(log.group.leases.start(), &op, &granted);
    }
    assert_eq!(unlink(&log, ROOT, "old", false), Some(false));
    file(&log, ROOT, "new");
    assert!(rename(&log, (ROOT, "new"), (ROOT, "target")).is_some());
    file(&log, ROOT, "own");
    assert_eq!(unlink(&log, ROOT, "own", true), Some(false));
    log.lost();
    assert_eq!(waits_of(&log, Of::Earlier), ["make", "make", "unlink"]);
    assert!(log.take_lost(Synced::All).is_err(), "who syncs is told");
    assert!(log.take_lost(Synced::Dir(InodeId::ROOT)).is_err());
    for ino in [50, 51].map(InodeId) {
        assert!(log.take_lost(Synced::File(ino)).is_err());
    }
}

/// However much is lost, each sync is told of it once, by whichever process.
#[tokio::test]
async fn what_is_lost_takes_bounded_memory() {
    let error = Error::new(ErrorKind::NoSpace, "full");
    let (log, next) = (alone(), alone());
    let (apart, all) = (MAX_APART as u64, MAX_APART as u64 + 10);
    let file = |number| InodeId(100 + number);
    (1..=all).for_each(|number| log.lose(file(number), Some(InodeId::ROOT), &error));
    let mut state = v1::ClientState::default();
    assert!(log.hand_over(&mut state));
    assert_eq!(state.lost.len() as u64, apart + 1);
    next.adopt(&mut state);
    for log in [log, next] {
        // Of those nothing is lost.
        for ino in (all + 1..=all + apart).map(file) {
            assert_eq!(log.take_lost(Synced::File(ino)), Ok(()));
        }
        // However many have synced before.
        for ino in [1, 10, 11, apart, all].map(file) {
            assert!(log.take_lost(Synced::File(ino)).is_err());
            assert_eq!(log.take_lost(Synced::File(ino)), Ok(()), "once");
        }
        for of in [Synced::Dir(InodeId::ROOT), Synced::All] {
            assert!(log.take_lost(of).is_err());
            assert_eq!(log.take_lost(of), Ok(()), "once");
        }
        assert_eq!(log.take_lost(Synced::Dir(InodeId(7))), Ok(()), "another directory");
    }
}

/// Else each file is told once, for ever, also those that are made later.
#[tokio::test]
async fn what_an_older_process_lost_is_told_to_so_many_and_no_more() {
    let (log, error) = (alone(), Error::new(ErrorKind::NoSpace, "full"));
    let mut state =
        v1::ClientState { lost_of_other_files: Some(error.into()), ..Default::default() };
    log.adopt(&mut state);
    let apart = MAX_APART as u64;
    for ino in (1..apart).map(InodeId) {
        assert!(log.take_lost(Synced::File(ino)).is_err());
        assert_eq!(log.take_lost(Synced::File(ino)), Ok(()), "once");
    }
    let mut state = v1::ClientState::default();
    assert!(log.hand_over(&mut state));
    assert_eq!(state.other_files, None, "nobody knows");
    assert!(log.take_lost(Synced::File(InodeId(apart))).is_err());
    assert_eq!(log.take_lost(Synced::File(InodeId(apart + 1))), Ok(()));
}

/// A process that keeps more apart says nothing of others.
#[tokio::test]
async fn what_another_process_kept_apart_is_not_missed() {
    let log = alone();
    let error: v1::ErrorHead = Error::new(ErrorKind::NoSpace, "full").into();
    let all = MAX_APART as u64 + 5;
    let lost =
        |dir| v1::LostFile { dir, error: Some(error.clone()), is_file: true, ..Default::default() };
    let mut state = v1::ClientState { lost: (1..=all).map(lost).collect(), ..Default::default() };
    log.adopt(&mut state);
    let missed = (1..=all).filter(|ino| log.take_lost(Synced::File(InodeId(*ino))).is_ok());
    assert_eq!(missed.collect::<Vec<_>>(), Vec::<u64>::new());
}

/// It takes no room from what somebody may sync.
#[tokio::test]
async fn nothing_is_kept_of_what_nobody_can_sync() {
    let (log, error) = (alone(), Error::new(ErrorKind::NoSpace, "full"));
    let f = InodeId(file(&log, ROOT, "f"));
    log.lose(f, None, &error);
    assert_eq!(unlink(&log, ROOT, "f", false), Some(true));
    assert_eq!(log.take_lost(Synced::File(f)), Ok(()));
    // It is open.
    let f = InodeId(file(&log, ROOT, "f"));
    log.lose(f, None, &error);
    unlink(&log, ROOT, "f", true).unwrap();
    assert!(log.take_lost(Synced::File(f)).is_err());
    // Or was, or the kernel knew it; another still has its name, and the removal of a third is
    // refused.
    let lost = |name| {
        let ino = InodeId(file(&log, ROOT, name));
        log.lose(ino, None, &error);
        ino
    };
    let [f, named, stays] = ["f", "named", "stays"].map(lost);
    let dir = InodeId(make(&log, ROOT, "d", v1::FileKind::Directory));
    log.lose(f, Some(dir), &error);
    unlink(&log, ROOT, "f", true).unwrap();
    unlink(&log, ROOT, "stays", true).unwrap();
    log.lose(stays, None, &error);
    log.rm_dir(v1::RmDirOp { parent: ROOT, name: "d".into() }, 5, |_| true).unwrap();
    log.unused(dir, |_| true);
    let is_lost = |of| {
        let mut known = log.table.lock().lost.clone();
        known.take(of).is_err()
    };
    assert!(is_lost(Synced::File(f)) && is_lost(Synced::Dir(dir)), "they are open");
    [f, named, stays, dir].into_iter().for_each(|ino| log.unused(ino, |_| false));
    assert!(!is_lost(Synced::File(f)) && !is_lost(Synced::Dir(dir)));
    assert!(is_lost(Synced::File(named)) && is_lost(Synced::File(stays)));
    // Attributes are those of a file, or of a directory.
    let op = v1::SetAttrOp { ino: 7, mode: Some(0o600), ..Default::default() };
    let step = v1::batch_op::Step { op: Some(Do::SetAttr(op)), ..Default::default() };
    for [first, second] in [[Synced::File, Synced::Dir], [Synced::Dir, Synced::File]] {
        log.table.lock().lose(&step, &error);
        assert!(log.take_lost(first(InodeId(7))).is_err());
        assert_eq!(log.take_lost(second(InodeId(7))), Ok(()));
    }
}

/// One of an older version says not what is lost.
#[tokio::test]
async fn what_is_lost_may_come_from_an_older_process() {
    let log = alone();
    let error: v1::ErrorHead = Error::new(ErrorKind::NoSpace, "full").into();
    let lost = |dir| v1::LostFile { dir, error: Some(error.clone()), ..Default::default() };
    let mut state = v1::ClientState { lost: vec![lost(1), lost(2)], ..Default::default() };
    log.adopt(&mut state);
    assert!(log.take_lost(Synced::Dir(InodeId(1))).is_err());
    assert!(log.take_lost(Synced::File(InodeId(2))).is_err());
    assert_eq!(log.take_lost(Synced::All), Ok(()));
}

/// The lease was good when it was looked at, and the recall does not see the file in the log yet.
#[tokio::test]
async fn a_recall_waits_for_what_is_being_done() {
    let log = alone();
    let op = v1::MakeOp { parent: ROOT, name: "f".into(), ..Default::default() };
    let mut open = |_| {
        assert!(log.group.leases.stop_buffering(InodeId::ROOT, true, false).unwrap());
        assert!(!log.is_empty(), "there is nothing to tell");
    };
    let made = log.make(op.clone(), 5, Some(&mut open));
    assert!(made.is_some() && log.is_unpublished(InodeId::ROOT));
    // After the recall nothing is made, nor counted.
    let log = alone();
    assert!(log.group.leases.stop_buffering(InodeId::ROOT, true, false).unwrap());
    assert!(log.make(op, 5, None).is_none() && log.is_empty());
}

/// A place is asked for once, and again only for what comes after it was.
#[tokio::test]
async fn a_file_has_one_place_until_it_is_asked_for() {
    let log = alone();
    let f = InodeId(file(&log, ROOT, "f"));
    let gives_up = |log: &Arc<ChangeLog>| -> Call {
        let log = log.clone();
        Box::new(move |seq, session| drop(Slot::new(log, seq, session)))
    };
    let place = log.content(f, None, gives_up(&log));
    assert_eq!(log.content(f, Some(place), Box::new(|_, _| ())), place);
    let next = log.content(InodeId(7), None, Box::new(|_, _| ()));
    assert_eq!(log.call(), (true, false), "the second is not filled");
    // The first was given up by its file.
    assert_eq!(waits(&log), ["make", "content"]);
    assert_ne!(log.content(InodeId(7), Some(next), Box::new(|_, _| ())), next);
    // Nor for what comes after another change.
    let place = log.content(f, None, Box::new(|_, _| ()));
    let mode = v1::SetAttrOp { ino: f.0, mode: Some(0o600), ..Default::default() };
    log.set_attr(mode, None, 5).unwrap();
    assert_ne!(log.content(f, Some(place), Box::new(|_, _| ())), place);
}

/// What comes and goes hides nothing that was done before.
#[tokio::test]
async fn what_waits_is_found_by_each_inode() {
    let log = alone();
    let a = file(&log, ROOT, "a");
    for name in ["t", "u"] {
        file(&log, ROOT, name);
        assert_eq!(unlink(&log, ROOT, name, false), Some(true));
    }
    assert!(log.is_unpublished(InodeId::ROOT) && log.is_unpublished(InodeId(a)));
    let (to, given) = (log.clone(), Box::new(|_, _| ()));
    let place = log.content(InodeId(a), None, given);
    drop(Slot::new(to, place, SessionId(0)));
    assert!(log.is_unpublished(InodeId(a)), "it is not made yet");
    log.content(InodeId(a), None, Box::new(|_, _| ()));
    log.lost();
    assert!(log.is_unpublished(InodeId(a)), "nor in the next session");
}

/// What is known of extended attributes is from before those that the group has not heard of.
#[tokio::test]
async fn extended_attributes_are_changed_as_the_group_would() {
    let log = alone();
    let f = InodeId(file(&log, ROOT, "f"));
    let set = |name: &'static str, value: Option<&'static str>, flags| {
        log.set_xattr(f, (name.into(), value.map(Into::into)), flags, 5).is_some()
    };
    assert!(!set("user.a", Some("1"), 0), "the group may not know such batches");
    log.table.lock().xattrs = true;
    assert!(set("user.b", Some("2"), 1) && set("user.a", Some("1"), 0));
    // What is refused, and what only the group knows of, is its to answer.
    assert!(!set("user.a", Some("3"), 1) && !set("user.c", Some("3"), 2));
    assert!(!set("user.c", None, 0) && !set("", Some("3"), 0) && !set("user.c", Some("3"), 4));
    assert!(!set("system.posix_acl_access", Some("3"), 0));
    assert_eq!(waits(&log), ["make", "xattr", "xattr"]);

    let leases = &log.group.leases;
    let get = |name: &[u8]| leases.xattr(f, name).map(|got| got.ok());
    let both = || (get(b"user.a"), get(b"user.b"));
    let knows = |value: &'static str| Some(Some(value.into()));
    let own = (knows("1"), knows("2"));
    assert_eq!((both(), get(b"user.c")), (own.clone(), Some(None)));
    assert_eq!(leases.xattr_names(f).unwrap(), ["user.a", "user.b"]);
    // As what comes with the listing of its directory.
    let asked = Op::ReadDir(v1::ReadDirOp { ino: ROOT, ..Default::default() });
    let listed = |names: &[&'static str]| {
        let value = Some("9".into());
        let item =
            |name: &&'static str| v1::xattrs::Item { name: (*name).into(), value: value.clone() };
        let xattrs = vec![v1::Xattrs { ino: f.0, items: names.iter().map(item).collect() }];
        v1::MetaReply { xattrs, ..Default::default() }
    };
    leases.learn(leases.start(), &asked, &listed(&[]));
    assert_eq!(both(), own);

    let steps: Vec<_> = {
        let table = log.table.lock();
        let step = |what: &What| match what {
            What::Step(step) => (**step).clone(),
            What::Content(..) => v1::batch_op::Step::default(),
        };
        table.this.iter().map(|entry| step(&entry.what)).collect()
    };
    let done = vec![v1::batch_reply::Done::default(); steps.len()];
    let told = Reply::Batch(v1::BatchReply { done, ..Default::default() });
    let told = v1::MetaReply { result: Some(told), ..Default::default() };
    let late = leases.start();
    leases.changed(leases.start(), &Op::Batch(v1::BatchOp { steps, ..Default::default() }), &told);
    assert_eq!(both(), own);
    // Answered before the batch was carried out, and heard after it.
    leases.learn(late, &asked, &listed(&["user.a"]));
    assert_eq!(both(), own);
    leases.learn(leases.start(), &asked, &listed(&["user.a"]));
    assert_eq!(both(), (knows("9"), Some(None)));
}
