//! The content of files in the log: a place is taken in order when a file is closed or synced, and
//! filled when it is told, with all that the file has by then.
//!
//! Invariants: who waits for the log holds no file in order, but for the one whose place is being
//! filled; so each place is filled or given up.

use super::entries::{Call, Of, Published, Stage, What};
use super::log::{BATCH, ChangeLog};
use crate::meta::Failed;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::oneshot;
use weft_proto::{ErrorKind, InodeId, SessionId, v1};

/// The place of a file's content, which others behind it wait for until this is dropped.
pub(crate) struct Slot {
    log: Arc<ChangeLog>,
    seq: u64,
    /// The session that the place is of.
    pub session: SessionId,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut table = self.log.table.lock();
        if let Some(at) = table.find(self.seq) {
            table.remove(Of::This, at);
        }
        self.log.counted(&table);
        drop(table);
        self.log.filled.notify_one();
    }
}

impl Slot {
    /// The place with this number.
    pub fn new(log: Arc<ChangeLog>, seq: u64, session: SessionId) -> Self {
        Self { log, seq, session }
    }

    /// Commits content in this place. May be called again.
    pub async fn commit(&self, op: v1::CommitExtentsOp) -> Published {
        let answer = {
            let mut table = self.log.table.lock();
            let at = table.find(self.seq);
            let entry = at.and_then(|at| table.this.get_mut(at));
            let stage = entry.and_then(|entry| match &mut entry.what {
                What::Content(_, stage) => Some(stage),
                What::Step(_) => None,
            });
            let ended = self.log.group.sessions.have_ended();
            let Some(stage) = stage.filter(|_| !ended) else { return Err(session_is_over()) };
            let (told, answer) = oneshot::channel();
            *stage = Stage::Ready(Box::new(op), told);
            answer
        };
        self.log.filled.notify_one();
        answer.await.unwrap_or_else(|_| Err(session_is_over()))
    }
}

fn session_is_over() -> Failed {
    Failed { error: ErrorKind::SessionExpired.into(), ambiguous: false }
}

impl ChangeLog {
    /// Takes a place for the content of a file; `call` is called when it is its turn, unless the
    /// session ends before. If the file has `before`, in which nothing was asked for yet, that is
    /// its place. Answers the number of the place.
    pub fn content(&self, ino: InodeId, before: Option<u64>, call: Call) -> u64 {
        let mut table = self.table.lock();
        let session = self.group.sessions.current().id;
        let waits = |at: &usize| {
            let entry = &table.this[*at];
            let waits = matches!(entry.what, What::Content(_, Stage::Waiting(_)));
            waits && entry.session == session
        };
        // What was done to it since comes after what it has now.
        if let Some(seq) = before.filter(|seq| table.is_last(ino, *seq))
            && table.find(seq).filter(waits).is_some()
        {
            return seq;
        }
        let seq = table.push(What::Content(ino, Stage::Waiting(call)), session);
        self.pushed(&table);
        seq
    }

    /// Asks the files of the entries that come next for their content, each for one place at a
    /// time. Answers whether the first of these entries is ready, and whether all are.
    pub(super) fn call(&self) -> (bool, bool) {
        let (mut calls, mut files) = (Vec::new(), HashSet::new());
        let (mut first, mut all) = (None, true);
        {
            let mut table = self.table.lock();
            for entry in table.this.iter_mut().take(BATCH) {
                if let What::Content(ino, stage) = &mut entry.what {
                    if !files.insert(*ino) {
                        break;
                    }
                    if matches!(stage, Stage::Waiting(_))
                        && let Stage::Waiting(call) = std::mem::replace(stage, Stage::Called)
                    {
                        calls.push((call, entry.seq, entry.session));
                    }
                }
                let ready = entry.is_ready();
                first.get_or_insert(ready);
                all &= ready;
            }
        }
        calls.into_iter().for_each(|(call, seq, session)| call(seq, session));
        (first.unwrap_or(true), all)
    }
}
