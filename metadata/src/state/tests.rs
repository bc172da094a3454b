//! Answers of the state machine as a whole.

mod longest;

use super::*;
use prost::Message as _;
use v1::log_entry::Body;
use v1::meta_request::Op;

/// A log that makes a cluster, a session and the files `f`, `g` and `h`, which are 2, 3 and 4.
fn log() -> Vec<(u64, v1::LogEntry)> {
    let init = v1::InitClusterEntry {
        cluster: vec![7; 16].into(),
        profile: Some(v1::ProfileInfo { k: 2, m: 1 }),
        members: vec![],
        shard: 0,
    };
    let open =
        v1::OpenSessionOp { client: "c".into(), nonce: vec![1; 16].into(), ..Default::default() };
    let open = v1::MetaRequest { op: Some(Op::OpenSession(open)), ..Default::default() };
    let mut log = vec![entry(1, Body::InitCluster(init)), entry(2, Body::Client(open))];
    for (at, name) in (3..).zip(["f", "g", "h"]) {
        let create = v1::CreateOp { parent: 1, name: name.into(), ..Default::default() };
        log.push(request(at, Op::Create(create)));
    }
    log
}

fn entry(index: u64, body: Body) -> (u64, v1::LogEntry) {
    (index, v1::LogEntry { time_ns: index as i64, body: Some(body), ..Default::default() })
}

fn request(index: u64, op: Op) -> (u64, v1::LogEntry) {
    let request = v1::MetaRequest { session: 1, number: index, acked_below: 0, op: Some(op) };
    entry(index, Body::Client(request))
}

fn unlink(index: u64, name: &'static str) -> (u64, v1::LogEntry) {
    request(index, Op::Unlink(v1::UnlinkOp { parent: 1, name: name.into() }))
}

/// What begins no record.
const GARBAGE: bytes::Bytes = bytes::Bytes::from_static(b"\xff");

/// A machine in which the record of file `g` is gone.
fn damaged() -> StateMachine {
    let machine = StateMachine::open_in_memory();
    machine.apply(&log()).unwrap();
    machine.store.write([(schema::inode(InodeId(3)), None)].into()).unwrap();
    machine
}

/// Also while they grow, and go.
#[test]
fn whose_a_number_is_is_known_as_the_state_has_it() {
    let machine = StateMachine::open_in_memory();
    machine.apply(&log()).unwrap();
    let of = |session, op| {
        let at = machine.applied() + 1;
        let (number, acked_below, op) = (at, 0, Some(op));
        let request = v1::MetaRequest { session, number, acked_below, op };
        machine.apply(&[entry(at, Body::Client(request))]).unwrap();
    };
    let open =
        v1::OpenSessionOp { client: "d".into(), nonce: vec![2; 16].into(), ..Default::default() };
    of(0, Op::OpenSession(open));
    let whose = |ino| {
        machine.range_of(InodeId(ino)).unwrap().map(|(first, last, of, _)| (first, last, of.0))
    };
    let all = || machine.store.newest(|s| crate::tables::numbers::all(s)).unwrap();
    let agrees = || {
        for (end, (session, range)) in all() {
            let is = Some((range.first, end - 1, session.0));
            assert_eq!([range.first, end - 1].map(whose), [is; 2]);
        }
        let end = all().into_keys().max().unwrap_or(100);
        assert_eq!([whose(0), whose(1), whose(end)], [None; 3]);
    };
    assert_eq!(whose(100), None);
    for (session, count) in [(1, 1), (2, 9), (1, 1 << 16), (1, 5), (2, 1 << 16)] {
        of(session, Op::ReserveInodes(v1::ReserveInodesOp { count, ..Default::default() }));
        agrees();
    }
    assert!(all().len() > 2, "{:?}", all());
    for session in [1, 2] {
        of(session, Op::CloseSession(v1::CloseSessionOp {}));
        agrees();
    }
    assert!(all().is_empty());
}

/// Small requests would cost each replica much more than their bytes.
#[test]
fn an_acknowledgement_deletes_what_is_there_and_no_more() {
    let machine = StateMachine::open_in_memory();
    machine.apply(&log()).unwrap();
    let mkdir = v1::MkDirOp { parent: 1, name: "d".into(), ..Default::default() };
    let op = Some(Op::MkDir(mkdir));
    let number = weft_proto::REQUEST_WINDOW + 9;
    let request = v1::MetaRequest { session: 1, number, acked_below: number, op };
    let applied = machine.store.newest(|s| {
        let mut tx = Txn::new(s);
        requests::apply(&mut tx, 9, &request)?;
        Ok::<_, StoreError>(tx.into_changes())
    });
    let changes = applied.unwrap();
    let gone: Vec<_> = changes.iter().filter(|(_, change)| change.is_none()).collect();
    let stored = (3..6).map(|number| schema::reply(SessionId(1), number));
    assert!(gone.iter().map(|(key, _)| (*key).clone()).eq(stored), "{} keys", gone.len());
}

/// Every replica meets it, at every start again: to stop there would be to stop for good.
#[test]
fn what_meets_records_that_make_no_sense_is_undone_and_refused() {
    // To take a name away writes before it reads the inode.
    let log = [unlink(6, "g"), unlink(7, "f"), unlink(8, "g")];
    let (at_once, one_by_one) = (damaged(), damaged());
    let replies = at_once.apply(&log).unwrap();
    let internal = ErrorKind::Internal.code();
    let errors: Vec<_> = replies.iter().map(|reply| reply.error).collect();
    assert_eq!(errors, [internal, 0, internal]);
    assert_eq!(at_once.applied(), 8);
    for (name, there) in [("f", false), ("g", true)] {
        let child = at_once.child(InodeId::ROOT, name.as_bytes()).unwrap();
        assert_eq!(child.is_some(), there, "{name}");
    }
    for one in &log {
        one_by_one.apply(std::slice::from_ref(one)).unwrap();
    }
    assert!(one_by_one.dump().unwrap() == at_once.dump().unwrap());
    // It is refused for good, also where it would be possible by now (I4).
    let before = damaged();
    let whole = before.store.newest(|s| s.get(&schema::inode(InodeId(2)))).unwrap();
    at_once.store.write([(schema::inode(InodeId(3)), whole)].into()).unwrap();
    let (_, again) = unlink(6, "g");
    assert_eq!(at_once.apply(&[(10, again)]).unwrap()[0].error, internal);
}

/// That is not the same on the others, which go on.
#[test]
fn a_record_that_does_not_read_stops_its_replica() {
    let log = [unlink(6, "f"), unlink(7, "h"), unlink(8, "g")];
    let sound = StateMachine::open_in_memory();
    sound.apply(&self::log()).unwrap();
    assert!(sound.apply(&log).unwrap().iter().all(|reply| reply.error == 0));
    for key in [
        schema::inode(InodeId(4)),
        schema::inode(InodeId::ROOT),
        schema::dentry(InodeId::ROOT, b"h"),
        schema::session(SessionId(1)),
    ] {
        let machine = StateMachine::open_in_memory();
        machine.apply(&self::log()).unwrap();
        machine.store.write([(key.clone(), Some(GARBAGE))].into()).unwrap();
        let before = machine.dump().unwrap();
        let stopped = machine.apply(&log).unwrap_err();
        assert_eq!(stopped.kind, ErrorKind::Io, "{stopped}");
        assert!(stopped.message.contains("move the whole data folder away"), "{stopped}");
        assert!(machine.dump().unwrap() == before, "nothing of the batch took effect");
    }
}

/// It is ended as a whole one is: the same is left.
#[test]
fn a_session_whose_records_do_not_read_ends_as_any() {
    let reserve = Op::ReserveInodes(v1::ReserveInodesOp { count: 5, ..Default::default() });
    let lock = v1::Lock {
        ino: 2,
        end: weft_proto::locks::LAST,
        kind: v1::lock::Kind::Write.into(),
        ..Default::default()
    };
    let lock = Op::SetLock(v1::SetLockOp { lock: Some(lock), ..Default::default() });
    let expire = Body::ExpireSession(v1::ExpireSessionEntry { session: 1 });
    let close = v1::MetaRequest {
        session: 1,
        op: Some(Op::CloseSession(v1::CloseSessionOp {})),
        ..Default::default()
    };
    let begun = || {
        let machine = StateMachine::open_in_memory();
        machine.apply(&log()).unwrap();
        let done = machine.apply(&[request(6, reserve.clone()), request(7, lock.clone())]);
        assert!(done.unwrap().iter().all(|reply| reply.error == 0));
        machine
    };
    for end in [expire, Body::Client(close)] {
        let end = [entry(8, end)];
        let whole = begun();
        whole.apply(&end).unwrap();
        let records = begun().dump().unwrap();
        let of_session = records.iter().filter(|(key, _)| {
            let tag = |tag: Tag| key[2] == tag as u8;
            tag(Tag::Session) || tag(Tag::Reply) || tag(Tag::Nonce) || tag(Tag::Lock)
        });
        let mut damaged = 0;
        for (key, _) in of_session {
            let machine = begun();
            machine.store.write([(key.clone(), Some(GARBAGE))].into()).unwrap();
            assert_eq!(machine.clients().unwrap().len(), 1, "a leader knows of it");
            assert_eq!(machine.apply(&end).unwrap()[0].error, 0, "{key:02x?}");
            assert!(machine.dump().unwrap() == whole.dump().unwrap(), "{key:02x?}");
            damaged += 1;
        }
        assert_eq!(damaged, 1 + 5 + 1 + 1);
        // What it set aside is remembered after a death, and is not read for that.
        let machine = begun();
        let (from, _) = schema::all_reserved(SessionId(1));
        let key = records.iter().find(|(key, _)| key.starts_with(&from)).unwrap().0.clone();
        machine.store.write([(key, Some(GARBAGE))].into()).unwrap();
        assert_eq!(machine.apply(&end).unwrap()[0].error, 0);
        assert_eq!(machine.clients().unwrap(), []);
    }
}

/// An older one, too: tags and records have changed their meaning.
#[test]
fn a_store_of_another_format_is_refused_and_left_as_it_is() {
    for (format, says) in
        [(upgrade::FROM - 1, "make a new cluster"), (schema::FORMAT + 1, "start the newer version")]
    {
        let dir = tempfile::tempdir().unwrap();
        let machine = StateMachine::open(dir.path()).unwrap();
        machine.apply(&log()).unwrap();
        let record = prost::Message::encode_to_vec(&schema::Number { value: format });
        let key = schema::meta(schema::FORMAT_NAME);
        machine.store.write([(key, Some(record.into()))].into()).unwrap();
        let before = machine.dump().unwrap();
        let copy = dir.path().join("copy");
        machine.checkpoint(&copy).unwrap();
        drop(machine);
        let refused = StateMachine::open(dir.path()).err().expect("refused");
        assert_eq!(refused.kind, ErrorKind::NotSupported);
        assert!(refused.message.contains(says), "{refused}");
        // Nor is it taken from another server.
        let other = tempfile::tempdir().unwrap();
        let ours = StateMachine::open(other.path()).unwrap();
        ours.apply(&log()).unwrap();
        let kept = ours.dump().unwrap();
        std::fs::rename(&copy, other.path().join("copy")).unwrap();
        let refused = ours.replace(&other.path().join("copy")).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NotSupported);
        assert!(ours.dump().unwrap() == kept);
        let left = Store::open(dir.path(), 1 << 20).unwrap();
        let mut found = Vec::new();
        left.view(|s| {
            s.scan(&[], &[u8::MAX; 8], &mut |k, v| {
                found.push((k.to_vec(), v.to_vec()));
                Ok(true)
            })
        })
        .unwrap();
        assert!(found == before);
    }
}

#[test]
fn an_orphan_that_makes_no_sense_keeps_no_other() {
    let machine = damaged();
    machine.apply(&[unlink(6, "f")]).unwrap();
    let orphan = (schema::orphan(InodeId(3)), Some(bytes::Bytes::new()));
    machine.store.write([orphan].into()).unwrap();
    let purge = v1::PurgeInodesEntry { inos: vec![3, 2] };
    assert_eq!(machine.apply(&[entry(7, Body::PurgeInodes(purge))]).unwrap()[0].error, 0);
    assert_eq!(machine.attr(InodeId(2)).unwrap(), None);
    assert_eq!(machine.orphans(InodeId(0), 9).unwrap(), []);
}

struct Failing;

impl Read for Failing {
    fn get(&self, _: &[u8]) -> StoreResult<Option<bytes::Bytes>> {
        Err(StoreError::io("the drive is gone"))
    }

    fn scan(&self, _: &[u8], _: &[u8], _: &mut crate::store::Visit<'_>) -> StoreResult<()> {
        Err(StoreError::io("the drive is gone"))
    }
}

/// Others can read what this one cannot: it must not go on.
#[test]
fn a_store_that_fails_refuses_nothing() {
    let log = log();
    let (_, purge) = entry(7, Body::PurgeInodes(v1::PurgeInodesEntry { inos: vec![3] }));
    for entry in log.iter().map(|(_, entry)| entry).chain([&purge]) {
        let failed = apply::apply(&mut Txn::new(&Failing), entry).unwrap_err();
        assert_eq!(failed.0.kind, ErrorKind::Io);
    }
}
