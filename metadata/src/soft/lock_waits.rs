//! Who waits for which lock: a queue for each inode, and whose turn it is.
//!
//! Soft state of the leader; the locks themselves are replicated ([`crate::ops`]), and clients ask
//! a new leader again. A turn is no lock: it says that the waiter may set it now, and nobody who
//! came later gets ahead of it meanwhile ([`Waits::in_the_way`]). Turns are given in the order of
//! arrival to all whose locks are free. A waiter whose lock is not free keeps nobody from one that
//! is, as on Linux: else waiting in line could itself be a deadlock.
//!
//! Whoever would wait for itself, over any number of waiters of fcntl(2)'s locks and wherever they
//! run, is told so instead ([`Turn::Deadlock`]); whoever came last to the circle is. Those of
//! flock(2) take no part, as on Linux.
//!
//! Thousands may wait for one file, who hold up nobody else: to come and to go is quick, and one
//! look at an inode takes little longer than to read what is locked and who waits there. Looks are
//! cut into pieces, between which others have their turn (`settle`).

mod circles;
mod queues;
mod ranges;
mod settle;
mod taken;

pub use circles::Held;
pub use queues::Turn;

use queues::{Queues, Waiter, item_of};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, v1};

/// A waiter whose turn it is has so long to set its lock, and one that does not ask on to ask
/// again, before others go first.
const TURN_TIMEOUT: Duration = Duration::from_secs(2);
/// Most waiters of one session.
const MAX_WAITERS: usize = 1 << 14;

/// All waiters of one term.
pub struct Waits {
    queues: Queues,
    /// Sessions that hold a lock, or have the turn to, for which another waits here.
    wanted: BTreeMap<InodeId, BTreeSet<SessionId>>,
    /// Where it may be somebody's turn, or something is not as it was.
    unsettled: BTreeSet<InodeId>,
    /// Where a look that was cut goes on: none that is looked at again and again keeps the others.
    goes_on: InodeId,
    /// There is something in `unsettled`.
    pub news: Arc<Notify>,
    /// Whoever stands behind somebody's turn looks again.
    changed: watch::Sender<u64>,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            queues: Queues::default(),
            wanted: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            goes_on: InodeId(0),
            news: Arc::default(),
            changed: watch::Sender::new(0),
        }
    }
}

impl Waits {
    /// A session waits for a lock, or goes on to do so under the ticket that it had: what it asked
    /// before under that is told that it is not its turn yet.
    pub fn wait(
        &mut self,
        session: SessionId,
        ticket: u64,
        lock: &v1::Lock,
    ) -> Result<watch::Receiver<Turn>> {
        let ino = InodeId(lock.ino);
        let count = self.queues.count(session);
        let turn = match self.queues.find_mut(session, ticket, ino) {
            Some(waiter) if waiter.has_turn() => waiter.turn.subscribe(),
            Some(waiter) => {
                let answer;
                (waiter.turn, answer) = watch::channel(Turn::NotYet);
                waiter.since = None;
                answer
            }
            None if count >= MAX_WAITERS => {
                let what = format!("over {MAX_WAITERS} requests of one client wait for locks");
                return Err(Error::new(ErrorKind::NoLocks, what));
            }
            None => {
                let (turn, answer) = watch::channel(Turn::NotYet);
                let lock = v1::Lock { session: session.0, ..*lock };
                self.queues.push(Waiter { session, ticket, lock, turn, since: None });
                answer
            }
        };
        self.unsettle(ino);
        self.note();
        Ok(turn)
    }

    /// Whether another session waits for a lock of this inode.
    pub fn others_wait(&self, session: SessionId, ino: InodeId) -> bool {
        self.queues.get(ino).is_some_and(|queue| queue.has_others(session))
    }

    /// Whether a lock is set by who has waited for it, and whose turn it is.
    pub fn has_turn(&self, session: SessionId, op: &v1::SetLockOp) -> bool {
        let Some(ino) = op.lock.map(|lock| InodeId(lock.ino)) else { return false };
        let at = self.queues.place(session, op.ticket, ino);
        let waiter = at.and_then(|at| self.queues.get(ino)?.get(at));
        waiter.is_some_and(Waiter::has_turn)
    }

    /// Whether others wait for a lock that this session holds or has the turn to set.
    pub fn is_wanted_of(&self, session: SessionId) -> bool {
        self.wanted.values().any(|of| of.contains(&session))
    }

    /// A waiter wants nothing any more.
    pub fn cancel(&mut self, session: SessionId, ticket: u64) {
        let gone = self.queues.of_session(session, Some(ticket));
        self.remove(gone);
    }

    /// A session is no more, and its locks are free.
    pub fn ended(&mut self, session: SessionId) {
        let gone = self.queues.of_session(session, None);
        self.remove(gone);
        // Which locks it held is not known here.
        self.unsettled.extend(self.queues.inodes());
        self.note();
    }

    /// Locks on an inode were set or not, by the waiter with this ticket or by who did not wait.
    pub fn was_set(&mut self, session: SessionId, ino: InodeId, ticket: u64, granted: bool) {
        let waiter = self.queues.place(session, ticket, ino).filter(|_| ticket != 0);
        match waiter {
            Some(_) if granted => self.cancel(session, ticket),
            // Somebody was quicker after all. It keeps its place.
            Some(at) => self.queues.take_turn_back(ino, at),
            None => {}
        }
        self.unsettle(ino);
        self.note();
    }

    fn remove(&mut self, gone: Vec<(InodeId, u64)>) {
        for (ino, at) in gone {
            self.queues.remove(ino, at);
            self.unsettle(ino);
        }
        self.note();
    }

    /// What is known of an inode is not so any more.
    fn unsettle(&mut self, ino: InodeId) {
        if self.queues.get(ino).is_some() {
            self.unsettled.insert(ino);
        } else {
            self.wanted.remove(&ino);
        }
    }

    fn note(&mut self) {
        self.changed.send_modify(|n| *n += 1);
        if !self.unsettled.is_empty() {
            self.news.notify_one();
        }
    }

    /// Is it somebody else's turn to set a lock that stands against this one? Then wait for what
    /// this answers, and look again.
    pub fn in_the_way(
        &self,
        session: SessionId,
        ticket: u64,
        lock: &v1::Lock,
    ) -> Option<watch::Receiver<u64>> {
        let lock = v1::Lock { session: session.0, ..*lock };
        let ino = InodeId(lock.ino);
        let queue = self.queues.get(ino)?;
        let at = self.queues.place(session, ticket, ino).unwrap_or(u64::MAX);
        let ahead = queue.turns_before(at).any(|w| conflict(&w.lock, &lock));
        ahead.then(|| self.changed.subscribe())
    }

    /// Forgets waiters that do not use their turn or do not ask on.
    pub fn look_around(&mut self, now: Instant) {
        let mut gone = Vec::new();
        for (ino, at, waiter) in self.queues.all_mut() {
            let idle = waiter.has_turn() || waiter.turn.receiver_count() == 0;
            waiter.since = if idle { waiter.since.or(Some(now)) } else { None };
            if waiter.since.is_some_and(|since| now.duration_since(since) > TURN_TIMEOUT) {
                gone.push((ino, at));
            }
        }
        self.remove(gone);
    }
}

/// Do these locks stand against each other?
fn conflict(a: &v1::Lock, b: &v1::Lock) -> bool {
    let meet = |(a, b): (ranges::Item<_>, ranges::Item<_>)| {
        a.whose != b.whose && a.start <= b.end && b.start <= a.end && (a.write || b.write)
    };
    a.flock == b.flock && item_of(a).zip(item_of(b)).is_some_and(meet)
}

#[cfg(test)]
mod tests;
