//! Applies one entry of the log.

use super::requests;
use crate::operation::{Context, EMPTY, attempt, refuse, stored};
use crate::ops;
use crate::store::{StoreResult, Txn};
use crate::tables::{events, quotas};
use v1::log_entry::Body;
use weft_proto::{ErrorKind, SessionId, v1};

/// Applies an entry. Fails only if the store does.
pub(crate) fn apply(tx: &mut Txn<'_>, entry: &v1::LogEntry) -> StoreResult<v1::StoredReply> {
    tx.complete = entry.complete;
    // The records of the session itself may make no sense, too.
    attempt(tx, |tx| {
        let outcome = apply_body(tx, entry)?;
        if outcome.error == 0 {
            events::keep(tx, &entry.events, entry.time_ns)?;
        }
        Ok(outcome)
    })
    .or_else(|fault| stored(Err(fault)))
}

fn apply_body(tx: &mut Txn<'_>, entry: &v1::LogEntry) -> StoreResult<v1::StoredReply> {
    let cx = Context { now: entry.time_ns, session: SessionId(0) };
    stored(match &entry.body {
        Some(Body::Client(request)) => return requests::apply(tx, entry.time_ns, request),
        // Of the group, not of the state.
        Some(Body::AdmitServer(_)) => Ok(EMPTY),
        // What it carries is kept beside.
        Some(Body::Note(_)) => Ok(EMPTY),
        Some(body) => match ops::of_leader(body) {
            Some(change) => quotas::carried_out(tx, cx.now, true, |tx| change.run(tx, &cx)),
            None => refuse(ErrorKind::Internal, "a log entry that nobody carries out"),
        },
        None => refuse(ErrorKind::Protocol, "log entry of an unknown kind"),
    })
}
