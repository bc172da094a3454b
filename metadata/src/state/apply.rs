//! Applies entries of the log.

use super::set_aside::SetAside;
use super::{StateMachine, requests};
use crate::operation::{Context, EMPTY, attempt, refuse, stored};
use crate::ops;
use crate::schema::{self, Tag};
use crate::store::{Changes, StoreError, StoreResult, Txn};
use crate::tables::{events, quotas};
use std::sync::atomic::Ordering;
use v1::log_entry::Body;
use weft_proto::{Error, ErrorKind, Result, SessionId, v1};

impl StateMachine {
    /// Applies entries in order as one atomic batch and answers one reply per entry. Indexes must
    /// grow and be above [`Self::applied`]. An error means that the store failed and nothing was
    /// applied: the replica must stop.
    pub fn apply(&self, entries: &[(u64, v1::LogEntry)]) -> Result<Vec<v1::StoredReply>> {
        let _writer = self.writer.lock();
        let mut last = self.applied();
        let (changes, replies) = self.store.newest(|base| {
            let mut tx = Txn::new(base);
            tx.counts = self.has_quotas();
            tx.read_locked = self.read_locked.clone();
            let mut replies = Vec::with_capacity(entries.len());
            for (index, entry) in entries {
                if *index <= last {
                    return Err(StoreError(Error::new(
                        ErrorKind::Internal,
                        format!("log entry {index} comes after entry {last} was applied"),
                    )));
                }
                replies.push(apply(&mut tx, entry)?);
                last = *index;
            }
            tx.put_number(schema::APPLIED, last);
            tx.put_number(schema::FORMAT_NAME, schema::FORMAT);
            Ok((tx.into_changes(), replies))
        })?;
        let lists = [
            (Tag::Orphan, &self.orphaned),
            (Tag::Garbage, &self.discarded),
            (Tag::Trim, &self.cut),
            (Tag::Ended, &self.ended),
            (Tag::Scattered, &self.scattered),
            (Tag::QuotaWalk, &self.to_count),
        ];
        let counts = puts(&changes, Tag::Accounting);
        let qos = changes.keys().any(|key| schema::has_tag(key, Tag::Qos));
        // With each change of the map its epoch grows, which is kept there.
        let map = changes.contains_key(&schema::meta(schema::CLUSTER));
        let grown = lists.map(|(tag, count)| puts(&changes, tag).then_some(count));
        let set_aside = SetAside::among(&changes);
        self.store.write(changes)?;
        self.set_aside.note(set_aside);
        self.quotas.fetch_or(counts, Ordering::Release);
        self.applied.store(last, Ordering::Release);
        for count in grown.into_iter().flatten() {
            count.fetch_add(1, Ordering::Release);
        }
        self.qos.fetch_add(qos.into(), Ordering::Release);
        self.maps.fetch_add(map.into(), Ordering::Release);
        Ok(replies)
    }
}

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
    let read_locked = tx.read_locked.clone();
    let cx = Context { now: entry.time_ns, session: SessionId(0), read_locked };
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

/// Whether a record with this tag is among what is written.
fn puts(changes: &Changes, tag: Tag) -> bool {
    changes.iter().any(|(key, value)| value.is_some() && schema::has_tag(key, tag))
}
