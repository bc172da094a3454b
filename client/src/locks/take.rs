//! Takes locks: here, if the table may decide, else at the leader.

use super::entry::Gate;
use super::remote::Locks;
use super::wire::{from_wire, to_wire};
use crate::meta::{Failed, unexpected};
use crate::to_the_end::to_the_end;
use crate::types::{HandleId, Lock, LockKind};
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};
use weft_proto::locks::LAST;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, v1};

impl Locks {
    /// Locks, or unlocks, without waiting. Errors: `WouldBlock` if another holds what stands
    /// against it; `Io` if locks of this owner were lost.
    pub async fn set(self: &Arc<Self>, ino: InodeId, handle: HandleId, lock: Lock) -> Result<()> {
        let mut locked = self.try_lock(ino, handle, &lock, 0).await;
        // What another process on this mount has closed before may be on its way.
        if would_block(&locked) && self.releases(ino).await {
            locked = self.try_lock(ino, handle, &lock, 0).await;
        }
        // On Linux flock(2) gives up what it holds before it asks for the other kind.
        if would_block(&locked)
            && lock.flock
            && self.table.find(ino, (true, lock.owner), |e| e.held) == Some(true)
        {
            let none = Lock { kind: LockKind::None, ..lock };
            self.try_lock(ino, handle, &none, 0).await?;
        }
        locked
    }

    /// What stands against a lock.
    pub async fn get(self: &Arc<Self>, ino: InodeId, lock: Lock) -> Result<Option<Lock>> {
        if let Some(known) = self.table.conflict_here(ino, &lock) {
            return Ok(known);
        }
        self.publish(ino).await;
        let op = Op::GetLock(v1::GetLockOp { lock: Some(to_wire(ino, &lock)) });
        let Reply::Lock(reply) = self.requests.ask(op).await? else {
            return Err(unexpected("a lock"));
        };
        let ours = self.group.sessions.current().id;
        Ok(reply.conflict.map(|found| from_wire(&found, ours)))
    }

    pub(super) async fn try_lock(
        self: &Arc<Self>,
        ino: InodeId,
        handle: HandleId,
        lock: &Lock,
        ticket: u64,
    ) -> Result<()> {
        let (locks, lock) = (self.clone(), *lock);
        to_the_end(async move { locks.lock_once(ino, handle, &lock, ticket).await }).await
    }

    async fn lock_once(
        self: &Arc<Self>,
        ino: InodeId,
        handle: HandleId,
        lock: &Lock,
        ticket: u64,
    ) -> Result<()> {
        let table = &self.table;
        let (owner, deadline) = ((lock.flock, lock.owner), self.requests.deadline());
        let unlocks = lock.kind == LockKind::None;
        if unlocks && table.find(ino, owner, |_| ()).is_none() {
            return Ok(());
        }
        // Held until all is over, so that a release waits for it, and comes after it.
        let (gate, _shared) = loop {
            let gate = table.begin(ino, owner, handle);
            if let Some(locked) = table.lock_here(ino, &gate, lock) {
                table.end(ino, &gate, |_| ());
                return locked;
            }
            self.publish(ino).await;
            let shared = timeout_at(deadline, gate.clone().read_owned()).await;
            match shared {
                Ok(shared) if table.find(ino, owner, |e| e.is(&gate)) == Some(true) => {
                    break (gate, shared);
                }
                // All was released meanwhile.
                Ok(_) => table.end(ino, &gate, |_| ()),
                Err(_) => {
                    table.end(ino, &gate, |_| ());
                    let what = "earlier locks are not released yet";
                    return Err(Error::new(ErrorKind::TimedOut, what));
                }
            }
        };
        let op = Op::SetLock(v1::SetLockOp { lock: Some(to_wire(ino, lock)), ticket, held: false });
        let answer = self.ask_for_lock(ino, &gate, op, deadline).await;
        table.end(ino, &gate, |entry| match &answer {
            Ok(_) if unlocks => {
                let all = lock.start == 0 && lock.end == LAST && entry.asking == 0;
                entry.held &= !all;
            }
            Ok(session) => {
                // If another thread of the owner met the end of the session first.
                entry.doubtful |= entry.session.id != *session;
                entry.held = true;
            }
            // What it did will be known, or went with its session.
            Err(failed) => entry.doubtful |= failed.ambiguous && unsettled(&failed.error),
        });
        answer.map(drop).map_err(Error::from)
    }

    /// Asks in the session of now; in the next one if that ends, with which went whatever was done
    /// in it. Answers in which.
    async fn ask_for_lock(
        &self,
        ino: InodeId,
        gate: &Gate,
        op: Op,
        deadline: Instant,
    ) -> Result<SessionId, Failed> {
        let known = |error| Failed { error, ambiguous: false };
        loop {
            let session = self.table.session_of(ino, gate).map_err(known)?;
            match self.requests.change_in(&session, op.clone(), deadline).await {
                Ok(_) => return Ok(session.id),
                Err(failed) if failed.error.kind == ErrorKind::SessionExpired => {
                    self.group.sessions.replacement(session.id, deadline).await.map_err(known)?;
                }
                Err(failed) => return Err(failed),
            }
        }
    }

    /// Waits for releases of the inode's locks that are under way. Answers whether there were any.
    async fn releases(&self, ino: InodeId) -> bool {
        let gates = self.table.releasing(ino);
        for gate in &gates {
            let _ = timeout_at(self.requests.deadline(), gate.read()).await;
        }
        !gates.is_empty()
    }
}

pub(super) fn would_block<T>(answer: &Result<T>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind == ErrorKind::WouldBlock)
}

/// May the request still take effect?
fn unsettled(error: &Error) -> bool {
    use ErrorKind::*;
    matches!(error.kind, TimedOut | Unavailable | NotLeader | StaleMap | Protocol)
}
