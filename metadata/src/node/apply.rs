//! Applying committed entries, on a worker of its own so that it overlaps with the disk and the
//! network.
//!
//! Invariant: entries are applied in the order of the log, each once; an entry that cannot be
//! decoded was written by a newer version, and stops the server rather than let states differ.

use crate::state::StateMachine;
use prost::Message;
use raft::eraftpb::{Entry, EntryType};
use std::sync::Arc;
use tokio::sync::mpsc;
use weft_proto::{Error, ErrorKind, Result, v1};

/// What the event loop learns from the worker.
#[derive(Default)]
pub struct Applied {
    /// Index of the last entry.
    pub last: u64,
    /// Bytes of the entries.
    pub bytes: usize,
    /// Newest time in an entry.
    pub time_ns: i64,
    /// Per entry that carries a change: index, term, answer.
    pub answers: Vec<(u64, u64, v1::StoredReply)>,
    /// An entry touched the cluster map.
    pub map_changed: bool,
    /// Servers that start anew with an empty log.
    pub admitted: Vec<u64>,
}

/// Bytes of an entry that count against the limit of what waits to be applied.
pub fn size(entry: &Entry) -> usize {
    entry.data.len() + 64
}

/// The worker's function: applies the waiting entries as one batch.
pub fn applier(
    state: Arc<StateMachine>,
    done: mpsc::UnboundedSender<Result<Applied>>,
) -> impl FnMut(Vec<Vec<Entry>>) + Send + 'static {
    let mut failed = false;
    move |batches| {
        if failed {
            return;
        }
        let applied = apply(&state, batches.into_iter().flatten());
        failed = applied.is_err();
        // The event loop may have ended.
        let _ = done.send(applied);
    }
}

/// Applies entries as one batch.
pub fn apply(state: &StateMachine, entries: impl Iterator<Item = Entry>) -> Result<Applied> {
    let mut applied = Applied::default();
    let mut changes = Vec::new();
    let mut terms = Vec::new();
    for entry in entries {
        applied.last = entry.index;
        applied.bytes += size(&entry);
        if entry.entry_type != EntryType::EntryNormal as i32 {
            return Err(newer(entry.index, "it changes the group's membership"));
        }
        if entry.data.is_empty() {
            continue; // A new leader's first entry.
        }
        let change = v1::LogEntry::decode(bytes::Bytes::from(entry.data))
            .map_err(|e| newer(entry.index, &e.to_string()))?;
        applied.time_ns = applied.time_ns.max(change.time_ns);
        applied.map_changed |= touches_map(&change);
        if let Some(v1::log_entry::Body::AdmitServer(admit)) = &change.body {
            applied.admitted.push(admit.node);
        }
        terms.push(entry.term);
        changes.push((entry.index, change));
    }
    if !changes.is_empty() {
        let replies = state.apply(&changes)?;
        applied.answers = changes
            .iter()
            .zip(terms)
            .zip(replies)
            .map(|(((index, _), term), reply)| (*index, term, reply))
            .collect();
    }
    if changes.last().is_none_or(|(index, _)| *index < applied.last) {
        state.set_applied(applied.last, None)?;
    }
    Ok(applied)
}

fn touches_map(entry: &v1::LogEntry) -> bool {
    use v1::log_entry::Body::*;
    matches!(
        entry.body,
        Some(InitCluster(_) | RegisterTarget(_) | SetTargetState(_) | SetPgs(_) | MoveSeats(_))
    )
}

fn newer(index: u64, why: &str) -> Error {
    Error::new(
        ErrorKind::Protocol,
        format!(
            "log entry {index} cannot be applied: {why}; a newer version of weft wrote it, \
             upgrade this server"
        ),
    )
}
