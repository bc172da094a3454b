//! Requests of sessions: who may ask, and that a request takes effect once (I4, I5).
//!
//! A session has at most [`REQUEST_WINDOW`] numbers between the lowest that it has not acknowledged
//! and the highest, so that what is kept for it is bounded.

use crate::operation::{Context, Fault, refuse, stored};
use crate::ops;
use crate::schema::{self, Session};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::quotas;
use crate::tables::sessions::expired;
use v1::meta_request::Op;
use weft_proto::planted::{self, Bug};
use weft_proto::{Error, ErrorKind, Kind, REQUEST_WINDOW, SessionId, v1};

/// Of so few replies it is not looked whether they are there before they are forgotten.
const FEW: u64 = 16;

/// Applies the request of a session, or answers what it answered the first time.
pub(super) fn apply(
    tx: &mut Txn<'_>,
    now: i64,
    request: &v1::MetaRequest,
) -> StoreResult<v1::StoredReply> {
    let id = SessionId(request.session);
    let cx = Context { now, session: id, read_locked: tx.read_locked.clone() };
    let Some(op) = &request.op else {
        return stored(refuse(ErrorKind::Protocol, "request without an operation"));
    };
    let run = |tx: &mut Txn<'_>| match ops::change(op) {
        Some(change) => {
            // What was done already is told only. And a change of the size adds nothing but what is
            // yet to be purged of what it cuts off.
            let tells = match op {
                Op::Batch(_) | Op::MakeFiles(_) => true,
                Op::SetAttr(op) => (op.uid, op.gid) == (None, None),
                _ => false,
            };
            quotas::carried_out(tx, now, tells, |tx| change.run(tx, &cx))
        }
        None => refuse(ErrorKind::Protocol, "this request is not a replicated operation"),
    };
    if op.kind() == Kind::Session {
        return stored(run(tx));
    }
    let Some(mut session) = tx.state().session(id)? else {
        if planted::is(Bug::FencingForgotten) && matches!(op, Op::CommitExtents(_) | Op::Batch(_)) {
            return stored(run(tx));
        }
        return stored(Err(expired(id)));
    };
    let acked = session.acked_below.max(request.acked_below.min(request.number));
    match number_state(tx.state(), id, &session, request.number, acked)? {
        Number::New => {}
        Number::Done(_) if planted::is(Bug::DoubleApply) => {}
        Number::Done(reply) => return Ok(*reply),
        Number::Refused(fault) => return stored(Err(fault)),
    }
    let reply = stored(run(tx))?;
    tx.put(schema::reply(id, request.number), &reply);
    session.highest = session.highest.max(request.number);
    forget_replies(tx, id, &session, acked)?;
    session.acked_below = acked;
    tx.put(schema::session(id), &session);
    Ok(reply)
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

/// Whether a request of a session that lives was carried out, and what it answered is kept.
pub(super) fn is_done(state: &dyn Read, request: &v1::MetaRequest) -> StoreResult<bool> {
    let id = SessionId(request.session);
    if request.number == 0 {
        return Ok(false);
    }
    let Some(session) = state.session(id)? else { return Ok(false) };
    let number = number_state(state, id, &session, request.number, session.acked_below)?;
    Ok(matches!(number, Number::Done(_)))
}

/// Forgets the replies that the client has seen. None was stored outside of the window, nor need
/// there be one for each number within it: a client may leave out as many as it likes.
fn forget_replies(
    tx: &mut Txn<'_>,
    id: SessionId,
    session: &Session,
    acked: u64,
) -> StoreResult<()> {
    let from = session.acked_below;
    if acked.saturating_sub(from) <= FEW {
        (from..acked).for_each(|number| tx.delete(schema::reply(id, number)));
        return Ok(());
    }
    let mut stored = Vec::new();
    tx.scan(&schema::reply(id, from), &schema::reply(id, acked), &mut |key, _| {
        stored.push(key.to_vec());
        Ok(true)
    })?;
    stored.into_iter().for_each(|key| tx.delete(key));
    Ok(())
}
