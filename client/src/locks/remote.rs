//! What the leader is told of locks, and how they are given up.
//!
//! Invariants:
//! - locks that the leader does not know are told before the right to take them is given back
//!   ([`Locks::publish`]), and before the leader is asked for any lock of that file;
//! - an owner's locks are released after all that it asked for before was answered, also what its
//!   caller has given up, or went with its session; and are forgotten when that was told.

use super::entry::Gate;
use super::table::Table;
use super::wire::to_wire;
use crate::meta::{Failed, Group, Session};
use crate::namespace::Requests;
use crate::options::{FOR_EVER, after};
use crate::to_the_end::to_the_end;
use crate::types::{HandleId, Lock, LockKind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};
use weft_net::trace::carried;
use weft_proto::locks::Ranges;
use weft_proto::locks::{LAST, Range};
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, v1};

/// Pause before what did not get through is told again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Locks of files, as processes on this mount take them.
pub(crate) struct Locks {
    pub(super) group: Arc<Group>,
    pub(super) requests: Arc<Requests>,
    pub(super) table: Table,
    /// Names of places in queues at the leader.
    pub(super) tickets: AtomicU64,
    /// Shared with whoever gives such a place up.
    pub(super) leaving: Arc<()>,
    /// A release is waited for this long.
    patience: Duration,
}

impl Locks {
    pub fn new(group: Arc<Group>, requests: Arc<Requests>, patience: Duration) -> Arc<Self> {
        let table = Table::new(group.sessions.clone(), group.leases.clone());
        let (tickets, leaving) = (AtomicU64::new(0), Arc::default());
        Arc::new(Self { group, requests, table, tickets, leaving, patience })
    }

    /// A session is over: says how many lose their locks.
    pub fn lost_with(&self, session: SessionId) {
        self.table.lost_with(session);
    }

    /// Whether anybody's locks on the inode are lost.
    pub fn lost_on(&self, ino: InodeId) -> bool {
        self.table.lost_on(ino)
    }

    /// Fails if locks that were taken through the handle are lost.
    pub fn hold(&self, ino: InodeId, handle: HandleId) -> Result<()> {
        self.table.hold(ino, handle)
    }

    /// Whether the owner may hold locks of fcntl(2) on the inode.
    pub fn has_any(&self, ino: InodeId, owner: u64) -> bool {
        self.table.find(ino, (false, owner), |_| ()).is_some()
    }

    /// Tells the leader which locks of the inode it does not know. When this returns it knows them,
    /// or their owners will be told that they have lost them.
    pub async fn publish(self: &Arc<Self>, ino: InodeId) {
        if !self.table.is_empty() {
            let locks = self.clone();
            to_the_end(async move { locks.publish_all(ino).await }).await;
        }
    }

    async fn publish_all(&self, ino: InodeId) {
        let Some(telling) = self.table.telling(ino) else { return };
        let _one_at_a_time = telling.lock().await;
        for gate in self.table.unpublished(ino) {
            // A release waits for this, and comes after it.
            let _shared = gate.read().await;
            let mut found = None;
            self.table.edit(ino, &gate, |e| {
                found = Some((e.session.clone(), e.owner, e.here.clone()));
                true
            });
            let Some((session, (flock, owner), here)) = found else { continue };
            let mut told = Ok(());
            for Range { start, end, write } in here.ranges {
                let kind = if write { LockKind::Write } else { LockKind::Read };
                let lock = to_wire(ino, &Lock { flock, owner, kind, start, end, pid: here.pid });
                let op = Op::SetLock(v1::SetLockOp { lock: Some(lock), ticket: 0, held: true });
                told = self.tell(ino, &session, op).await;
                if told.is_err() {
                    break;
                }
            }
            self.table.edit(ino, &gate, |entry| {
                entry.here = Ranges::default();
                if let Err(error) = told {
                    warn!(%ino, %error, "locks could not be told, and are lost");
                    entry.doubtful = true;
                }
                true
            });
        }
    }

    /// Tells the leader of a lock, as often as it takes to reach it. The error is its answer, or
    /// says that the session is over. What is given up before might still take effect, after a
    /// release that comes later.
    async fn tell(&self, ino: InodeId, session: &Arc<Session>, op: Op) -> Result<()> {
        loop {
            if self.group.sessions.is_over(session.id) {
                return Err(ErrorKind::SessionExpired.into());
            }
            // Whoever locks next is to see what was done before; what was refused for good by then
            // is told to others, and not waited for again.
            let error = match self.requests.settle_for(&op).await {
                Err(error) => error,
                Ok(()) => match self.group.change_in(session, op.clone(), after(FOR_EVER)).await {
                    Err(Failed { error, .. }) if passes(error.kind) => error,
                    told => return told.map(drop).map_err(Error::from),
                },
            };
            debug!(%ino, %error, "what is to be told of a lock did not get through; trying on");
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// Releases all that one owner holds of an inode. Ends when that is done; goes on without being
    /// waited for.
    async fn release(self: &Arc<Self>, ino: InodeId, gate: Gate) {
        if self.table.release_here(ino, &gate) {
            return;
        }
        let locks = self.clone();
        let releasing = tokio::spawn(carried(async move {
            let _alone = gate.write().await;
            let mut found = None;
            locks.table.edit(ino, &gate, |entry| {
                let may_hold = entry.held || entry.doubtful;
                found = may_hold.then(|| (entry.session.clone(), entry.owner));
                may_hold
            });
            let Some((session, (flock, owner))) = found else { return };
            let lock = Lock { flock, owner, kind: LockKind::None, start: 0, end: LAST, pid: 0 };
            let lock = Some(to_wire(ino, &lock));
            let op = Op::SetLock(v1::SetLockOp { lock, ..Default::default() });
            // Until it is told, or the session ends, the lock stands against everybody. With the
            // session it is gone.
            match locks.tell(ino, &session, op).await {
                Err(error) if error.kind != ErrorKind::SessionExpired => {
                    warn!(%ino, %error, "locks were not released");
                }
                _ => {}
            }
            locks.table.edit(ino, &gate, |_| false);
        }));
        if timeout(self.patience, releasing).await.is_err() {
            warn!(%ino, "locks are not released yet: no metadata leader answers");
        }
    }

    /// Releases what the owner holds by fcntl(2) of the inode.
    pub async fn unlock_owner(self: &Arc<Self>, ino: InodeId, owner: u64) {
        let gate = self.table.find(ino, (false, owner), |e| e.gate.clone());
        if let Some(gate) = gate {
            self.release(ino, gate).await;
        }
    }

    /// Releases what was locked through this handle alone.
    pub async fn unlock_handle(self: &Arc<Self>, ino: InodeId, handle: HandleId) {
        for gate in self.table.only_through(ino, handle) {
            self.release(ino, gate).await;
        }
    }
}

/// Whether it is to be told again.
fn passes(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::TimedOut | ErrorKind::Unavailable)
}
