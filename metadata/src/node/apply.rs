//! Applying committed entries, on a worker of its own so that it overlaps with the disk and the
//! network.
//!
//! Invariant: entries are applied in the order of the log, each once; an entry that cannot be
//! decoded was written by a newer version, and stops the server rather than let states differ.

use crate::state::StateMachine;
use crate::tables::members;
use bytes::Bytes;
use prost::Message;
use raft::eraftpb::{ConfChangeV2, ConfState, Entry, EntryType};
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
    /// An entry has changed the cluster map.
    pub map_changed: bool,
    /// Servers that start anew with an empty log.
    pub admitted: Vec<u64>,
    /// Changes of the group that were carried out, with their indexes.
    pub members: Vec<(u64, ConfChangeV2)>,
    /// The configuration that the state has after them.
    pub conf: Option<ConfState>,
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
        if entry.data.is_empty() {
            continue; // A new leader's first entry, or a change of the group that Raft refused.
        }
        let (index, term) = (entry.index, entry.term);
        let change = decode(entry.entry_type, entry.data).map_err(|why| newer(index, &why))?;
        applied.time_ns = applied.time_ns.max(change.time_ns);
        if let Some(v1::log_entry::Body::AdmitServer(admit)) = &change.body {
            applied.admitted.push(admit.node);
        }
        terms.push(term);
        changes.push((index, change));
    }
    if !changes.is_empty() {
        // Nobody else applies anything meanwhile. What an entry did is what counts: a list of those
        // that may change the map would lack the next one.
        let before = state.map_changes();
        let replies = state.apply(&changes)?;
        applied.map_changed = state.map_changes() != before;
        applied.answers = changes
            .iter()
            .zip(terms)
            .zip(replies)
            .map(|(((index, _), term), reply)| (*index, term, reply))
            .collect();
        for (index, change) in &changes {
            let done = |(i, _, reply): &(u64, u64, v1::StoredReply)| i == index && reply.error == 0;
            if let Some(v1::log_entry::Body::ChangeMembers(entry)) = &change.body
                && applied.answers.iter().any(done)
            {
                applied.members.push((*index, members::conf_change(entry)));
            }
        }
        if !applied.members.is_empty() {
            // Whoever acts on a configuration must not forget it: the log knows it only by what
            // was applied.
            state.sync()?;
            applied.conf = state.membership()?.map(|group| group.conf_state());
        }
    }
    if changes.last().is_none_or(|(index, _)| *index < applied.last) {
        state.set_applied(applied.last)?;
    }
    Ok(applied)
}

/// What an entry holds. A change of the group travels in an entry of Raft's own for that, and no
/// other.
pub(crate) fn decode(kind: i32, data: Vec<u8>) -> std::result::Result<v1::LogEntry, String> {
    let read = |data: Vec<u8>| v1::LogEntry::decode(Bytes::from(data)).map_err(|e| e.to_string());
    let of_group = |e: &v1::LogEntry| matches!(e.body, Some(v1::log_entry::Body::ChangeMembers(_)));
    let (change, expected) = match EntryType::from_i32(kind) {
        Some(EntryType::EntryNormal) => (read(data)?, false),
        Some(EntryType::EntryConfChangeV2) => {
            let raft = raft_prost::Message::decode(&data[..]);
            let raft: ConfChangeV2 = raft.map_err(|e: raft_prost::DecodeError| e.to_string())?;
            (read(raft.context)?, true)
        }
        _ => return Err("it is of an unknown kind".into()),
    };
    if change.body.is_none() {
        return Err("it is of an unknown kind".into());
    }
    if of_group(&change) != expected {
        return Err("it changes the group's membership in another way".into());
    }
    Ok(change)
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
