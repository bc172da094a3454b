//! Takes locks: here, if the table may decide, else at the leader.
//!
//! Invariants:
//! - a request for a lock that was sent is followed to its end, however long its caller waits for
//!   it: a release that comes after it does so at the leader, too;
//! - each try is entered in the table, and only then it is looked whether the lock is still asked
//!   for: whoever is gone by then locks nothing, and the release of who goes later finds the try.

use super::entry::Gate;
use super::remote::Locks;
use super::wire::{from_wire, to_wire};
use crate::meta::{Failed, unexpected};
use crate::options::{FOR_EVER, after};
use crate::to_the_end::to_the_end;
use crate::types::{HandleId, Lock, LockKind};
use std::sync::{Arc, OnceLock};
use tokio::time::{Instant, timeout_at};
use weft_proto::locks::LAST;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, v1};

/// Whether a lock is still asked for; the error says why it is not.
pub(crate) type StillAsked = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// Whether a request for a lock was sent, or was given up before that: whichever comes first.
#[derive(Clone)]
struct Fate {
    sent: Arc<OnceLock<bool>>,
    asked: StillAsked,
}

impl Fate {
    /// It is about to be sent. False: it was given up, and is not to be.
    fn send(&self) -> bool {
        *self.sent.get_or_init(|| true)
    }

    /// Its caller waits no more. Answers whether it was sent.
    fn give_up(&self) -> bool {
        *self.sent.get_or_init(|| false)
    }
}

impl Locks {
    /// Locks, or unlocks, without waiting. Errors: `WouldBlock` if another holds what stands
    /// against it; `Io` if locks of this owner were lost; that of `asked`.
    pub async fn set(
        self: &Arc<Self>,
        ino: InodeId,
        handle: HandleId,
        lock: Lock,
        asked: &StillAsked,
    ) -> Result<()> {
        let mut locked = self.try_lock(ino, handle, &lock, 0, asked).await;
        // What another process on this mount has closed before may be on its way.
        if would_block(&locked) && self.releases(ino).await {
            locked = self.try_lock(ino, handle, &lock, 0, asked).await;
        }
        // On Linux flock(2) gives up what it holds before it asks for the other kind.
        if would_block(&locked)
            && lock.flock
            && self.table.find(ino, (true, lock.owner), |e| e.held) == Some(true)
        {
            let none = Lock { kind: LockKind::None, ..lock };
            self.try_lock(ino, handle, &none, 0, asked).await?;
        }
        locked
    }

    /// What stands against a lock.
    pub async fn get(self: &Arc<Self>, ino: InodeId, lock: Lock) -> Result<Option<Lock>> {
        if let Some(known) = self.table.conflict_here(ino, &lock) {
            return Ok(known);
        }
        let told = timeout_at(self.requests.deadline(), self.publish(ino)).await;
        told.map_err(|_| given_up())?;
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
        asked: &StillAsked,
    ) -> Result<()> {
        let (locks, lock, until) = (self.clone(), *lock, self.requests.deadline());
        let fate = Fate { sent: Arc::default(), asked: asked.clone() };
        let locking = to_the_end({
            let fate = fate.clone();
            async move { locks.lock_once(ino, handle, &lock, ticket, until, &fate).await }
        });
        if let Ok(locked) = timeout_at(until, locking).await {
            return locked;
        }
        if fate.give_up() {
            self.table.doubt(ino, (lock.flock, lock.owner));
        }
        Err(given_up())
    }

    async fn lock_once(
        self: &Arc<Self>,
        ino: InodeId,
        handle: HandleId,
        lock: &Lock,
        ticket: u64,
        until: Instant,
        fate: &Fate,
    ) -> Result<()> {
        let (table, owner) = (&self.table, (lock.flock, lock.owner));
        let unlocks = lock.kind == LockKind::None;
        if unlocks && table.find(ino, owner, |_| ()).is_none() {
            return Ok(());
        }
        // Held until all is over, so that a release waits for it, and comes after it.
        let (gate, _shared) = loop {
            let gate = table.begin(ino, owner, handle);
            if let Err(gone) = (fate.asked)() {
                table.end(ino, &gate, |_| ());
                return Err(gone);
            }
            // Whose turn it is at the leader locks there: it keeps others waiting behind it until
            // then.
            let here = if ticket == 0 { table.lock_here(ino, &gate, lock) } else { None };
            if let Some(locked) = here {
                table.end(ino, &gate, |_| ());
                return locked;
            }
            // From now on the leader is asked about this file.
            self.publish(ino).await;
            let shared = timeout_at(until, gate.clone().read_owned()).await;
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
        let answer = self.ask_for_lock(ino, &gate, op, fate).await;
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
    /// in it. Answers in which. Goes on for as long as it takes once it was sent.
    async fn ask_for_lock(
        &self,
        ino: InodeId,
        gate: &Gate,
        op: Op,
        fate: &Fate,
    ) -> Result<SessionId, Failed> {
        let known = |error| Failed { error, ambiguous: false };
        let until = after(FOR_EVER);
        loop {
            let session = self.table.session_of(ino, gate).map_err(known)?;
            self.requests.settle_for(&op).await.map_err(known)?;
            if !fate.send() {
                return Err(known(given_up()));
            }
            match self.group.change_in(&session, op.clone(), until).await {
                Ok(_) => return Ok(session.id),
                Err(failed) if failed.error.kind == ErrorKind::SessionExpired => {
                    self.group.sessions.replacement(session.id, until).await.map_err(known)?;
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

fn given_up() -> Error {
    Error::new(ErrorKind::TimedOut, "the metadata group has not answered a request for a lock")
}

/// May the request still take effect?
fn unsettled(error: &Error) -> bool {
    use ErrorKind::*;
    matches!(error.kind, TimedOut | Unavailable | NotLeader | StaleMap | Protocol)
}

#[cfg(test)]
mod tests;
