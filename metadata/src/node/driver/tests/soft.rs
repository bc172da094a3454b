//! Soft state of a leader, which is to know what the state says, and nothing of an earlier term.

use super::service::{incoming, serving};
use super::*;
use crate::soft::leases::Mode;
use crate::soft::lock_waits::Turn;
use crate::soft::sessions::Client;
use v1::meta_request::Op;
use weft_net::Incoming;
use weft_proto::{InodeId, SessionId};

const ROOT: InodeId = InodeId::ROOT;

fn request(session: u64, number: u64, op: Op) -> Incoming {
    incoming(&v1::MetaRequest { session, number, acked_below: 0, op: Some(op) })
}

fn open(nonce: u8) -> Incoming {
    let nonce = vec![nonce; 16].into();
    request(0, 0, Op::OpenSession(v1::OpenSessionOp { nonce, ..Default::default() }))
}

fn lock() -> v1::Lock {
    let kind = v1::lock::Kind::Write.into();
    v1::Lock { ino: ROOT.0, owner: 1, kind, end: 9, ..Default::default() }
}

fn set_lock() -> Op {
    Op::SetLock(v1::SetLockOp { lock: Some(lock()), ..Default::default() })
}

/// Asks for what goes through the log.
async fn change(rig: &mut Rig, service: &MetadataService, request: Incoming) -> Result<()> {
    let mut call = service.call(request);
    assert!(timeout(Duration::ZERO, &mut call).await.is_err(), "it waits for the log");
    assert_eq!(rig.pump().await, 1);
    call.await.map(drop)
}

/// It goes on in a term that has begun while it waited for another's turn.
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_asked_for_in_an_earlier_term_bars_nobody_in_this_one() {
    let (mut rig, service) = serving().await;
    let node = rig.driver.node.clone();
    for nonce in 1..=2 {
        change(&mut rig, &service, open(nonce)).await.unwrap();
    }
    node.lease.extend(Instant::now());
    let mut held = |ino, flock| node.state.locks_of(ino, flock);
    let turn = node.soft.with(|s| {
        let turn = s.wait_for_lock(SessionId(2), 7, &lock()).unwrap();
        s.locks.settle(Instant::now(), &mut held).unwrap();
        turn
    });
    assert_eq!(*turn.borrow(), Turn::Now);
    let mut call = service.call(request(1, 1, set_lock()));
    assert!(timeout(Duration::ZERO, &mut call).await.is_err(), "it is the turn of another");
    assert_eq!(rig.pump().await, 0);
    node.soft.with(|s| {
        s.locks.cancel(SessionId(2), 7);
        let sessions = [1, 2].map(|id| (SessionId(id), Client::default()));
        s.start(Instant::now(), s.term() + 1, sessions.into());
    });
    node.view.send_modify(|view| view.term += 1);
    let answer = timeout(Duration::ZERO, &mut call).await;
    assert_eq!(answer.map(|a| a.map(drop).map_err(|e| e.kind)), Ok(Err(ErrorKind::NotLeader)));
    drop(call);
    let now = Instant::now();
    let granted = node.soft.with(|s| s.leases.grant(now, SessionId(2), ROOT, Mode::Write, true));
    assert!(granted.is_some(), "it counts as being locked for ever");
}

/// It would be for as long as this server leads.
#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_who_has_no_session() {
    let (mut rig, service) = serving().await;
    let node = rig.driver.node.clone();
    node.lease.extend(Instant::now());
    let refused = change(&mut rig, &service, request(9, 1, set_lock())).await;
    assert_eq!(refused.map_err(|e| e.kind), Err(ErrorKind::SessionExpired));
    assert!(node.soft.with(|s| s.lock_counts.has_room(SessionId(9), 1)).is_none());
}
