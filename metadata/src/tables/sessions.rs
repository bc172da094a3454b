//! Sessions: which live, and how what one has left goes when it ends (I5).

use super::locks;
use crate::operation::Fault;
use crate::schema::{self, NonceOwner, Session, Tag};
use crate::store::{Read, StoreResult, Txn};
use weft_proto::planted::{self, Bug};
use weft_proto::{Error, ErrorKind, SessionId};

/// Most locks and replies of an ended session that one entry deletes.
const STEP: usize = 2048;

/// What is answered to who has no session.
pub(crate) fn expired(id: SessionId) -> Fault {
    Error::new(ErrorKind::SessionExpired, format!("session {id} does not exist (any more)")).into()
}

/// Refuses whoever has no session.
pub(crate) fn must_exist(state: &dyn Read, id: SessionId) -> Result<(), Fault> {
    if state.has_session(id)? { Ok(()) } else { Err(expired(id)) }
}

/// Ends a session: nothing that it sends takes effect from now on, and what it has locked is free.
/// None of its records need be read for that, and the same ones go whether they can be or not: else
/// what it holds would be held for ever. Those that are too many for one entry go with later ones.
pub(crate) fn end(tx: &mut Txn<'_>, id: SessionId) -> StoreResult<()> {
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
pub(crate) fn clear(tx: &mut Txn<'_>, id: SessionId, acked_below: u64) -> StoreResult<()> {
    let locks = if planted::is(Bug::LockKept) { 0 } else { locks::end(tx, id, STEP)? };
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
