//! Requests of sessions: who may ask, and that a request takes effect once (I4, I5).
//!
//! A session has at most [`REQUEST_WINDOW`] numbers between the lowest that it has not acknowledged and
//! the highest, so that what is kept for it is bounded.

use super::{
    Context, EMPTY, Fault, Operation, Reply, locks, refuse, replicated, reserve_inodes, run, stored,
};
use crate::schema::{self, NonceOwner, Session, Tag};
use crate::store::{Read, StoreResult, Txn};
use v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, REQUEST_WINDOW, SessionId, v1};

/// Most locks and replies of an ended session that one entry deletes.
const STEP: usize = 2048;

/// Applies the request of a session, or answers what it answered the first time.
pub(super) fn apply(
    tx: &mut Txn<'_>,
    now: i64,
    request: &v1::MetaRequest,
) -> StoreResult<v1::StoredReply> {
    let id = SessionId(request.session);
    let cx = Context { now, session: id };
    let op = match &request.op {
        Some(Op::OpenSession(op)) => return stored(run(op, tx, &cx)),
        Some(Op::CloseSession(op)) => return stored(run(op, tx, &cx)),
        Some(op) => op,
        None => return stored(refuse(ErrorKind::Protocol, "request without an operation")),
    };
    let Some(mut session) = tx.state().session(id)? else { return stored(Err(expired(id))) };
    let acked = session.acked_below.max(request.acked_below.min(request.number));
    match number_state(tx.state(), id, &session, request.number, acked)? {
        Number::New => {}
        Number::Done(reply) => return Ok(*reply),
        Number::Refused(fault) => return stored(Err(fault)),
    }
    let reply = stored(replicated(op, tx, &cx))?;
    tx.put(schema::reply(id, request.number), &reply);
    session.highest = session.highest.max(request.number);
    forget_replies(tx, id, &session, acked);
    session.acked_below = acked;
    tx.put(schema::session(id), &session);
    Ok(reply)
}

fn expired(id: SessionId) -> Fault {
    Error::new(ErrorKind::SessionExpired, format!("session {id} does not exist (any more)")).into()
}

enum Number {
    New,
    Done(Box<v1::StoredReply>),
    Refused(Fault),
}

/// What is known of a request's number.
fn number_state(
    state: &dyn Read,
    id: SessionId,
    session: &Session,
    number: u64,
    acked: u64,
) -> StoreResult<Number> {
    let refused = |what: String| Ok(Number::Refused(Error::new(ErrorKind::Protocol, what).into()));
    if number == 0 {
        return refused("a request that changes something needs a number".into());
    }
    if number < session.acked_below {
        return refused(format!("request {number} of session {id} was acknowledged already"));
    }
    if number - acked.min(number) >= REQUEST_WINDOW {
        return refused(format!("session {id} has over {REQUEST_WINDOW} unacknowledged requests"));
    }
    // Beyond the highest none can be stored: the common case costs no read.
    if number > session.highest {
        return Ok(Number::New);
    }
    let reply = state.load(&schema::reply(id, number))?;
    Ok(reply.map_or(Number::New, |reply| Number::Done(Box::new(reply))))
}

/// Forgets the replies that the client has seen. None was stored outside of the window.
fn forget_replies(tx: &mut Txn<'_>, id: SessionId, session: &Session, acked: u64) {
    let from = session.acked_below;
    for number in from..acked.min(from.saturating_add(REQUEST_WINDOW)) {
        tx.delete(schema::reply(id, number));
    }
}

/// Ends a session: nothing that it sends takes effect from now on, and what it has locked is free. None of its
/// records need be read for that, and the same ones go whether they can be or not: else what it holds would be
/// held for ever. Those that are too many for one entry go with later ones.
pub(super) fn end(tx: &mut Txn<'_>, id: SessionId) -> StoreResult<()> {
    let key = schema::session(id);
    let Some(record) = tx.get(&key)? else { return Ok(()) };
    let (acked_below, nonces) = match schema::decode::<Session>(&key, record) {
        Ok(session) => (session.acked_below, vec![schema::nonce(&session.nonce)]),
        Err(e) => {
            tracing::error!(session = id.0, "the session is ended although it cannot be read: {e}");
            (0, nonces_of(tx, id)?)
        }
    };
    nonces.into_iter().for_each(|nonce| tx.delete(nonce));
    tx.delete(key);
    // Replies below are forgotten.
    clear(tx, id, acked_below)
}

/// Takes a step in deleting what an ended session has left: locks, and replies from this number on.
fn clear(tx: &mut Txn<'_>, id: SessionId, acked_below: u64) -> StoreResult<()> {
    let locks = locks::end(tx, id, STEP)?;
    let (from, to) = (schema::reply(id, acked_below), schema::replies(id).1);
    let (left, mut keys) = (STEP - locks, Vec::new());
    tx.scan(&from, &to, &mut |key, _| {
        keys.push(key.to_vec());
        Ok(keys.len() <= left)
    })?;
    let is_more = keys.len() > left;
    keys.truncate(left);
    keys.into_iter().for_each(|key| tx.delete(key));
    match locks == STEP || is_more {
        true => tx.put_bytes(schema::ended(id), Default::default()),
        false => tx.delete(schema::ended(id)),
    }
    Ok(())
}

/// Keys of the nonces that lead to a session.
fn nonces_of(tx: &Txn<'_>, id: SessionId) -> StoreResult<Vec<Vec<u8>>> {
    let (from, to) = schema::all(Tag::Nonce);
    let mut keys = Vec::new();
    tx.scan(&from, &to, &mut |key, value| {
        match schema::decode::<NonceOwner>(key, value) {
            Ok(owner) if owner.session == id.0 => keys.push(key.to_vec()),
            Ok(_) => {}
            Err(e) => tracing::error!("whose nonce this was cannot be read: {e}"),
        }
        Ok(true)
    })?;
    Ok(keys)
}

/// Whether the session has not ended.
pub(super) fn exists(state: &dyn Read, id: SessionId) -> StoreResult<bool> {
    Ok(state.get(&schema::session(id))?.is_some())
}

impl Operation for v1::ExpireSessionEntry {
    type Plan = ();

    /// A session that is gone already is no error: the leader may ask twice, and asks again for what is left
    /// of it.
    fn check(&self, _: &dyn Read, _: &Context) -> Result<(), Fault> {
        Ok(())
    }

    fn apply(&self, (): (), tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        let id = SessionId(self.session);
        if exists(tx.state(), id)? {
            end(tx, id)?;
            reserve_inodes::note_death(tx, id, cx.now)?;
        } else if tx.get(&schema::ended(id))?.is_some() {
            clear(tx, id, 0)?;
        }
        Ok(EMPTY)
    }
}

/// Refuses whoever has no session.
pub(super) fn must_exist(state: &dyn Read, id: SessionId) -> Result<(), Fault> {
    if exists(state, id)? { Ok(()) } else { Err(expired(id)) }
}
