//! Requests take effect once (I4), and never after their session ended (I5).

use crate::rig::{ROOT, Rig};
use v1::log_entry::Body;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_metadata::state::StateMachine;
use weft_proto::{ErrorKind, SessionId, v1};

fn mkdir(name: &str) -> Op {
    let name = name.to_string().into();
    Op::MkDir(v1::MkDirOp { parent: ROOT, name, mode: 0o755, ..Default::default() })
}

fn request(session: u64, number: u64, acked_below: u64, op: Op) -> v1::MetaRequest {
    v1::MetaRequest { session, number, acked_below, op: Some(op) }
}

#[test]
fn a_retry_answers_the_same_and_does_nothing() {
    let mut rig = Rig::in_memory();
    let s = rig.session;
    let first = rig.request(request(s, 1, 0, mkdir("d")));
    assert!(first.is_ok());
    let refused = rig.request(request(s, 2, 0, mkdir("d")));
    assert_eq!(refused, Err(ErrorKind::Exists));
    // What made the second fail goes away: its retry still fails, as it did.
    let rmdir = Op::RmDir(v1::RmDirOp { parent: ROOT, name: "d".into() });
    rig.request(request(s, 3, 0, rmdir)).unwrap();
    assert_eq!(rig.request(request(s, 2, 0, mkdir("d"))), refused);
    assert_eq!(rig.request(request(s, 1, 0, mkdir("d"))), first);
    assert_eq!(rig.read_dir(ROOT, 10).0, vec![]);
    // Out of order, but new.
    assert!(rig.request(request(s, 9, 0, mkdir("e"))).is_ok());
    assert!(rig.request(request(s, 8, 0, mkdir("f"))).is_ok());
    assert_eq!(rig.request(request(s, 9, 0, mkdir("g"))).unwrap(), {
        let attr = rig.read_dir(ROOT, 10).0[0].attr.unwrap();
        Reply::Attr(v1::Attr { nlink: 2, ..attr })
    });
    // Acknowledged: no longer kept, and refused rather than done again.
    assert!(rig.request(request(s, 10, 9, mkdir("h"))).is_ok());
    assert_eq!(rig.request(request(s, 8, 0, mkdir("x"))), Err(ErrorKind::Protocol));
    assert_eq!(replies(&rig.machine), 2);
    rig.check();
}

#[test]
fn numbers_are_bounded() {
    let mut rig = Rig::in_memory();
    let s = rig.session;
    for (number, acked) in [(0, 0), (u64::MAX, 0), (1 << 17, 0)] {
        assert_eq!(rig.request(request(s, number, acked, mkdir("d"))), Err(ErrorKind::Protocol));
    }
    assert_eq!(replies(&rig.machine), 0);
    // An acknowledgement of what was never asked is clipped to what was.
    assert!(rig.request(request(s, 5, u64::MAX, mkdir("d"))).is_ok());
    assert!(rig.request(request(s, 6, u64::MAX, mkdir("e"))).is_ok());
    assert_eq!(replies(&rig.machine), 1);
    assert!(rig.request(request(s, u64::MAX, u64::MAX, mkdir("f"))).is_ok());
    assert_eq!(replies(&rig.machine), 1);
}

fn replies(machine: &StateMachine) -> usize {
    machine.dump().unwrap().iter().filter(|(key, _)| key[2] == 0x31).count()
}

#[test]
fn opening_is_idempotent_by_nonce() {
    let mut rig = Rig::in_memory();
    let a = rig.open_session(1);
    assert_eq!(a, rig.session);
    let b = rig.open_session(2);
    assert_ne!(a, b);
    let clients = rig.machine.clients().unwrap();
    let mut names: Vec<_> = clients.into_iter().map(|(id, client)| (id, client.name)).collect();
    names.sort();
    assert_eq!(names, [(SessionId(a), "client-1".into()), (SessionId(b), "client-2".into())]);
    let short =
        v1::OpenSessionOp { client: "x".into(), nonce: vec![1; 15].into(), ..Default::default() };
    let request = v1::MetaRequest { op: Some(Op::OpenSession(short)), ..Default::default() };
    assert_eq!(rig.request(request), Err(ErrorKind::Invalid));
}

#[test]
fn an_ended_session_changes_nothing() {
    for expire in [false, true] {
        let mut rig = Rig::in_memory();
        let s = rig.session;
        let other = rig.open_session(9);
        rig.request(request(s, 1, 0, mkdir("d"))).unwrap();
        rig.request(request(other, 1, 0, mkdir("o"))).unwrap();
        match expire {
            true => rig.entry(Body::ExpireSession(v1::ExpireSessionEntry { session: s })).unwrap(),
            false => {
                rig.request(request(s, 2, 0, Op::CloseSession(v1::CloseSessionOp {}))).unwrap()
            }
        };
        assert!(!rig.machine.session_exists(SessionId(s)).unwrap());
        let before = rig.machine.dump().unwrap();
        // A new request, a retry of an old one, and another close.
        for (number, op) in
            [(3, mkdir("e")), (1, mkdir("d")), (4, Op::CloseSession(v1::CloseSessionOp {}))]
        {
            assert_eq!(rig.request(request(s, number, 0, op)), Err(ErrorKind::SessionExpired));
        }
        let after = rig.machine.dump().unwrap();
        let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
        assert_eq!((before.len(), changed), (after.len(), 1), "only the applied index moves");
        assert_eq!(replies(&rig.machine), 1, "the other session keeps its reply");
        // The same client comes back as a new session.
        assert!(rig.open_session(1) > other);
        rig.entry(Body::ExpireSession(v1::ExpireSessionEntry { session: s })).unwrap();
    }
}

#[test]
fn reads_and_soft_state_are_not_log_operations() {
    let mut rig = Rig::in_memory();
    let s = rig.session;
    for op in [
        Op::GetAttr(v1::GetAttrOp { ino: ROOT }),
        Op::Open(v1::OpenOp { ino: ROOT, open_seq: 1, write: false }),
        Op::Renew(v1::RenewOp::default()),
    ] {
        rig.number += 1;
        assert_eq!(rig.request(request(s, rig.number, 0, op)), Err(ErrorKind::Protocol));
    }
    assert_eq!(rig.read(mkdir("d")), Err(ErrorKind::Protocol));
}
