//! Waits for locks, in a queue at the leader.

use super::remote::Locks;
use super::take::{StillAsked, would_block};
use super::wire::to_wire;
use crate::meta::unexpected;
use crate::types::{HandleId, Lock};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

/// A request for a turn waits this long at the leader.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failure.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// A place in the queue is tried to be given up this long.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(60);

impl Locks {
    /// Locks as soon as that can be. Errors: as [`Self::set`]; `Interrupted` if `interrupted` ends
    /// first; `Deadlock`.
    pub async fn wait(
        self: &Arc<Self>,
        ino: InodeId,
        handle: HandleId,
        lock: Lock,
        interrupted: impl Future<Output = ()> + Send,
        asked: &StillAsked,
    ) -> Result<()> {
        let first = self.set(ino, handle, lock, asked).await;
        if !would_block(&first) {
            return first;
        }
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed) + 1;
        let mut place = Place { locks: self.clone(), ticket, over: false };
        tokio::pin!(interrupted);
        loop {
            let turn = async {
                self.publish(ino).await;
                place.turn(ino, &lock).await
            };
            tokio::select! {
                biased;
                () = &mut interrupted => {
                    return Err(Error::new(ErrorKind::Interrupted, "a signal came"));
                }
                turn = turn => turn?,
            }
            // Not to be interrupted: it is answered what happened.
            let locked = self.try_lock(ino, handle, &lock, ticket, asked).await;
            if !would_block(&locked) {
                place.over = locked.is_ok();
                return locked;
            }
        }
    }
}

/// A place in the queue at the leader, given up when this is dropped.
struct Place {
    locks: Arc<Locks>,
    ticket: u64,
    /// The leader has taken it away.
    over: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        // Without a runtime the mount is ending, and its session with it.
        let Some(runtime) = Handle::try_current().ok().filter(|_| !self.over) else { return };
        let (locks, ticket) = (self.locks.clone(), self.ticket);
        let leaving = self.locks.leaving.clone();
        runtime.spawn(async move {
            let _until_told = leaving;
            // If it does not get through, the leader forgets who does not ask on.
            let op = Op::CancelLock(v1::CancelLockOp { ticket });
            let asked = timeout(CANCEL_TIMEOUT, locks.requests.ask(op)).await;
            if let Err(error) = asked.unwrap_or(Err(ErrorKind::TimedOut.into())) {
                debug!(%error, "a place in the queue for a lock was not given up");
            }
        });
    }
}

impl Place {
    /// Waits, however long, until it is this one's turn. Errors: `SessionExpired` when the mount is
    /// gone.
    async fn turn(&self, ino: InodeId, lock: &Lock) -> Result<()> {
        let group = &self.locks.group;
        loop {
            let session = group.sessions.current();
            let lock = Some(to_wire(ino, lock));
            let op = Op::WaitLock(v1::WaitLockOp { lock, ticket: self.ticket });
            let request =
                v1::MetaRequest { session: session.id.0, op: Some(op), ..Default::default() };
            let until = Instant::now() + 2 * TURN_TIMEOUT;
            let answer = tokio::select! {
                biased;
                () = group.sessions.ended() => return Err(ErrorKind::SessionExpired.into()),
                answer = group.send(&request, TURN_TIMEOUT, until) => answer,
            };
            match answer.map(|answered| answered.reply.result) {
                Ok(Some(Reply::Lock(v1::LockReply { turn: true, .. }))) => return Ok(()),
                Ok(Some(Reply::Lock(_))) => {}
                Ok(_) => return Err(unexpected("waiting for a lock")),
                Err(failed) => match failed.error.kind {
                    ErrorKind::SessionExpired => {
                        if group.sessions.replacement(session.id, group.deadline()).await.is_err() {
                            sleep(RETRY_INTERVAL).await;
                        }
                    }
                    ErrorKind::TimedOut | ErrorKind::Unavailable | ErrorKind::NotLeader => {
                        sleep(RETRY_INTERVAL).await;
                    }
                    _ => return Err(failed.error),
                },
            }
        }
    }
}
