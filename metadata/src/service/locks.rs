//! Locks: what stands against them, whose turn it is, and until when nobody locks without asking.

use super::context::{RequestContext, empty, reply};
use crate::conflicts;
use crate::node::Node;
use crate::sharing;
use crate::soft::lock_counts::MAX_WITH_HELD;
use crate::soft::lock_waits::Turn;
use std::sync::Arc;
use tokio::sync::watch;
use v1::meta_reply::Result as Reply;
use weft_proto::locks::MAX_LOCKS;
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, v1};

/// What stands against a lock now.
pub(super) async fn get_lock(
    cx: &RequestContext<'_>,
    lock: Option<&v1::Lock>,
) -> Result<v1::MetaReply> {
    let lock = lock.ok_or_else(no_lock)?;
    cx.may_read(Some(InodeId(lock.ino))).await?;
    let conflict = cx.node.state.lock_conflict(cx.session, lock)?;
    Ok(reply(Reply::Lock(v1::LockReply { conflict, turn: false })))
}

/// Answers when it is the waiter's turn, or that it is not yet.
pub(super) async fn wait_lock(
    cx: &RequestContext<'_>,
    op: &v1::WaitLockOp,
) -> Result<v1::MetaReply> {
    let term = cx.lead().await?;
    let until = cx.wait_until();
    let lock = op.lock.as_ref().ok_or_else(no_lock)?;
    // Who locked without asking tells it now. Who locks so after this loses the right to when the
    // lock is set.
    conflicts::all_declared(cx.node, cx.session, cx.deadline).await?;
    conflicts::readable(cx.node, cx.session, InodeId(lock.ino), cx.deadline).await?;
    let mut turn = cx.node.soft.with(|s| s.wait_for_lock(cx.session, op.ticket, lock))?;
    let (mut views, mut shutdown) = (cx.node.watch_view(), cx.shutdown.clone());
    sharing::give_place_back();
    let told = tokio::select! {
        biased;
        _ = shutdown.wait_for(|&stop| stop) => return Err(cx.node.not_leader()),
        _ = views.wait_for(|v| !v.serving || v.term != term) => {
            return Err(cx.node.not_leader());
        }
        told = turn.wait_for(|turn| *turn != Turn::NotYet) => told.map(|turn| *turn),
        () = tokio::time::sleep_until(until) => Ok(Turn::NotYet),
    };
    match told {
        Ok(Turn::Deadlock) => {
            let what = "who holds the lock waits for one of who wants it";
            Err(Error::new(ErrorKind::Deadlock, what))
        }
        Ok(turn) => {
            Ok(reply(Reply::Lock(v1::LockReply { conflict: None, turn: turn == Turn::Now })))
        }
        // It was forgotten, with its session or for another reason. Let it ask again.
        Err(_) => Ok(reply(Reply::Lock(v1::LockReply::default()))),
    }
}

/// Whoever waited for a lock does so no more.
pub(super) async fn cancel_lock(
    cx: &RequestContext<'_>,
    op: &v1::CancelLockOp,
) -> Result<v1::MetaReply> {
    cx.lead().await?;
    cx.node.soft.with(|s| s.locks.cancel(cx.session, op.ticket));
    Ok(empty())
}

/// Waits while it is the turn of another to set a lock that stands against this one, and until
/// nobody else locks without asking, which goes on for as long as what this answers lives. Whether
/// the lock is to be had is decided in the log alone, so that a retry is answered the same (I4).
pub(super) async fn may_lock(
    cx: &RequestContext<'_>,
    op: &v1::SetLockOp,
) -> Result<Option<Locking>> {
    let term = cx.lead().await?;
    let lock = op.lock.as_ref().ok_or_else(no_lock)?;
    while let Some(mut changed) = turn_of_another(cx, op, lock) {
        let what = "another client does not take the lock that it waited for";
        sharing::give_place_back();
        tokio::time::timeout_at(cx.deadline, changed.changed())
            .await
            .map_err(|_| Error::new(ErrorKind::TimedOut, what))?
            .map_err(|_| cx.node.not_leader())?;
    }
    if lock.kind() == v1::lock::Kind::None {
        return Ok(None);
    }
    cx.node.has_last_room()?;
    has_room(cx, if op.held { MAX_WITH_HELD } else { MAX_LOCKS }).await?;
    if !op.held {
        let ino = InodeId(lock.ino);
        conflicts::may_begin_lock(cx.node, cx.session, ino, cx.deadline).await?;
    }
    let locking = Locking::begin(cx.node, term, cx.session, InodeId(lock.ino))?;
    conflicts::all_declared(cx.node, cx.session, cx.deadline).await?;
    conflicts::readable(cx.node, cx.session, locking.ino, cx.deadline).await?;
    Ok(Some(locking))
}

/// Whether the session may hold more locks than it does. A retry of one that was set is none more.
async fn has_room(cx: &RequestContext<'_>, most: usize) -> Result<()> {
    let room = || cx.node.soft.with(|s| s.lock_counts.has_room(cx.session, most));
    let known = match room() {
        None => {
            let locks = cx.node.state.count_locks(cx.session, MAX_WITH_HELD)?;
            cx.node.soft.with(|s| s.counted_locks(cx.session, locks));
            room().unwrap_or(Ok(()))
        }
        Some(known) => known,
    };
    if known.is_err() {
        cx.node.read_barrier().await?;
        if cx.node.state.is_done(&cx.request)? {
            return Ok(());
        }
    }
    known
}

fn turn_of_another(
    cx: &RequestContext<'_>,
    op: &v1::SetLockOp,
    lock: &v1::Lock,
) -> Option<watch::Receiver<u64>> {
    if op.held {
        return None;
    }
    cx.node.soft.with(|s| s.locks.in_the_way(cx.session, op.ticket, lock))
}

/// A lock is being set: nobody else is granted the right to write, and to lock without asking,
/// until this is dropped.
pub(super) struct Locking {
    node: Arc<Node>,
    term: u64,
    by: SessionId,
    ino: InodeId,
}

impl Locking {
    /// Error: `NotLeader`, the term is over. In a later one nobody would end it.
    fn begin(node: &Arc<Node>, term: u64, by: SessionId, ino: InodeId) -> Result<Self> {
        let begun = node.soft.with(|s| {
            let same = s.term() == term;
            if same {
                s.leases.begin_lock(by, ino);
            }
            same
        });
        match begun {
            true => Ok(Self { node: node.clone(), term, by, ino }),
            false => Err(node.not_leader()),
        }
    }
}

impl Drop for Locking {
    fn drop(&mut self) {
        self.node.soft.with(|s| {
            if s.term() == self.term {
                s.leases.locked(self.by, self.ino);
            }
        });
    }
}

fn no_lock() -> Error {
    Error::new(ErrorKind::Protocol, "a request about a lock without one")
}
