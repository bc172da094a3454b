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

use std::collections::hash_map::{Entry, HashMap};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use v1::lock::Kind;
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, v1};

/// A waiter whose turn it is has so long to set its lock, and one that does not ask on to ask
/// again, before others go first.
const TURN_TIMEOUT: Duration = Duration::from_secs(2);
/// Most waiters of one session.
const MAX_WAITERS: usize = 1 << 14;

/// What a waiter is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    NotYet,
    Now,
    Deadlock,
}

/// A process, or an open file, on any client.
type Owner = (SessionId, u64);

struct Waiter {
    session: SessionId,
    ticket: u64,
    lock: v1::Lock,
    turn: watch::Sender<Turn>,
    /// Since when it has its turn, or nobody asks for it.
    since: Option<Instant>,
}

impl Waiter {
    fn has_turn(&self) -> bool {
        *self.turn.borrow() == Turn::Now
    }

    fn owner(&self) -> Owner {
        (self.session, self.lock.owner)
    }
}

fn owner_of(lock: &v1::Lock) -> Owner {
    (SessionId(lock.session), lock.owner)
}

/// Do these locks stand against each other?
fn conflict(a: &v1::Lock, b: &v1::Lock) -> bool {
    let (one, other) = (a.kind(), b.kind());
    let write = one == Kind::Write || other == Kind::Write;
    a.flock == b.flock
        && owner_of(a) != owner_of(b)
        && a.start <= b.end
        && b.start <= a.end
        && write
        && one != Kind::None
        && other != Kind::None
}

/// Answers all locks on an inode, of flock(2) or of fcntl(2).
pub type Held<'a> = dyn FnMut(InodeId, bool) -> Result<Vec<v1::Lock>> + 'a;

/// All waiters of one term.
pub struct Waits {
    queues: HashMap<InodeId, Vec<Waiter>>,
    /// How many there are of each session.
    counts: HashMap<SessionId, usize>,
    /// Sessions that hold a lock, or have the turn to, for which another waits here.
    wanted: HashMap<InodeId, BTreeSet<SessionId>>,
    /// Where it may be somebody's turn, or something is not as it was.
    unsettled: BTreeSet<InodeId>,
    /// There is something in `unsettled`.
    pub news: Arc<Notify>,
    /// Whoever stands behind somebody's turn looks again.
    changed: watch::Sender<u64>,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            queues: HashMap::new(),
            counts: HashMap::new(),
            wanted: HashMap::new(),
            unsettled: BTreeSet::new(),
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
        let queue = self.queues.entry(ino).or_default();
        let known = queue.iter_mut().find(|w| (w.session, w.ticket) == (session, ticket));
        let count = self.counts.get(&session).copied().unwrap_or_default();
        let turn = match known {
            Some(waiter) if waiter.has_turn() => waiter.turn.subscribe(),
            Some(waiter) => {
                let answer;
                (waiter.turn, answer) = watch::channel(Turn::NotYet);
                waiter.since = None;
                answer
            }
            None if count >= MAX_WAITERS => {
                self.forget_empty();
                let what = format!("over {MAX_WAITERS} requests of one client wait for locks");
                return Err(Error::new(ErrorKind::NoLocks, what));
            }
            None => {
                let (turn, answer) = watch::channel(Turn::NotYet);
                let lock = v1::Lock { session: session.0, ..*lock };
                queue.push(Waiter { session, ticket, lock, turn, since: None });
                self.counts.insert(session, count + 1);
                answer
            }
        };
        self.unsettle(ino);
        Ok(turn)
    }

    /// Whether another session waits for a lock of this inode.
    pub fn others_wait(&self, session: SessionId, ino: InodeId) -> bool {
        self.queues.get(&ino).into_iter().flatten().any(|w| w.session != session)
    }

    /// Whether a lock is set by who has waited for it, and whose turn it is.
    pub fn has_turn(&self, session: SessionId, op: &v1::SetLockOp) -> bool {
        let queue = op.lock.and_then(|lock| self.queues.get(&InodeId(lock.ino)));
        let mut waiters = queue.into_iter().flatten();
        waiters.any(|w| (w.session, w.ticket) == (session, op.ticket) && w.has_turn())
    }

    /// Whether others wait for a lock that this session holds or has the turn to set.
    pub fn is_wanted_of(&self, session: SessionId) -> bool {
        self.wanted.values().any(|of| of.contains(&session))
    }

    /// A waiter wants nothing any more.
    pub fn cancel(&mut self, session: SessionId, ticket: u64) {
        let of = |w: &Waiter| (w.session, w.ticket) == (session, ticket);
        self.remove(|_, waiter| of(waiter));
    }

    /// A session is no more, and its locks are free.
    pub fn ended(&mut self, session: SessionId) {
        self.remove(|_, waiter| waiter.session == session);
        // Which locks it held is not known here.
        let all: Vec<_> = self.queues.keys().copied().collect();
        all.into_iter().for_each(|ino| self.unsettle(ino));
    }

    /// Locks on an inode were set or not, by the waiter with this ticket or by who did not wait.
    pub fn was_set(&mut self, session: SessionId, ino: InodeId, ticket: u64, granted: bool) {
        let queue = self.queues.get_mut(&ino);
        let mut waiters = queue.into_iter().flatten();
        let waiter = waiters.find(|w| ticket != 0 && (w.session, w.ticket) == (session, ticket));
        match waiter {
            Some(_) if granted => self.cancel(session, ticket),
            Some(waiter) => {
                // Somebody was quicker after all. It keeps its place.
                waiter.turn.send_replace(Turn::NotYet);
                waiter.since = None;
            }
            None => {}
        }
        self.unsettle(ino);
    }

    fn remove(&mut self, which: impl Fn(InodeId, &Waiter) -> bool) {
        for (&ino, queue) in &mut self.queues {
            for gone in queue.extract_if(.., |waiter| which(ino, waiter)) {
                uncount(&mut self.counts, gone.session);
                self.unsettled.insert(ino);
            }
        }
        self.forget_empty();
        self.note();
    }

    fn forget_empty(&mut self) {
        self.queues.retain(|_, queue| !queue.is_empty());
        self.wanted.retain(|ino, _| self.queues.contains_key(ino));
    }

    fn unsettle(&mut self, ino: InodeId) {
        if self.queues.contains_key(&ino) {
            self.unsettled.insert(ino);
        }
        self.note();
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
        let queue = self.queues.get(&InodeId(lock.ino))?;
        let first = queue.iter().take_while(|w| (w.session, w.ticket) != (session, ticket));
        let ahead = first.filter(|w| w.has_turn()).any(|w| conflict(&w.lock, &lock));
        ahead.then(|| self.changed.subscribe())
    }

    /// Forgets waiters that do not use their turn or do not ask on.
    pub fn look_around(&mut self, now: Instant) {
        for queue in self.queues.values_mut() {
            for waiter in queue {
                let idle = waiter.has_turn() || waiter.turn.receiver_count() == 0;
                waiter.since = if idle { waiter.since.or(Some(now)) } else { None };
            }
        }
        self.remove(|_, w| w.since.is_some_and(|since| now.duration_since(since) > TURN_TIMEOUT));
    }

    /// Gives turns where something changed. `held` must answer what is locked now.
    pub fn settle(&mut self, now: Instant, held: &mut Held<'_>) -> Result<()> {
        while let Some(ino) = self.unsettled.pop_first() {
            self.give_turns(now, ino, held)?;
            self.break_circles(ino, held)?;
        }
        Ok(())
    }

    fn give_turns(&mut self, now: Instant, ino: InodeId, held: &mut Held<'_>) -> Result<()> {
        let mut wanted = BTreeSet::new();
        for flock in [false, true] {
            let Some(queue) = self.queues.get_mut(&ino) else { return Ok(()) };
            if !queue.iter().any(|w| w.lock.flock == flock) {
                continue;
            }
            let mut taken = held(ino, flock)?;
            taken.extend(queue.iter().filter(|w| w.has_turn()).map(|w| w.lock));
            for waiter in queue.iter_mut().filter(|w| w.lock.flock == flock && !w.has_turn()) {
                let against = taken.iter().filter(|lock| conflict(lock, &waiter.lock));
                let holders: Vec<_> = against.map(|lock| SessionId(lock.session)).collect();
                if holders.is_empty() {
                    taken.push(waiter.lock);
                    waiter.since = Some(now);
                    waiter.turn.send_replace(Turn::Now);
                }
                wanted.extend(holders.into_iter().filter(|holder| *holder != waiter.session));
            }
        }
        match wanted.is_empty() {
            true => self.wanted.remove(&ino),
            false => self.wanted.insert(ino, wanted),
        };
        Ok(())
    }

    /// Tells those who wait here, the last first, if they wait for themselves.
    fn break_circles(&mut self, ino: InodeId, held: &mut Held<'_>) -> Result<()> {
        let mut look = Look::default();
        let mut at = self.queues.get(&ino).map_or(0, Vec::len);
        while at > 0 {
            at -= 1;
            let waits = |w: &&Waiter| !w.lock.flock && !w.has_turn();
            let Some(waiter) = self.queues.get(&ino).and_then(|q| q.get(at)).filter(waits) else {
                continue;
            };
            if self.waits_for_itself(waiter, &mut look, held)?
                && let Some(queue) = self.queues.get_mut(&ino)
            {
                let waiter = queue.remove(at);
                waiter.turn.send_replace(Turn::Deadlock);
                uncount(&mut self.counts, waiter.session);
                look.waiting = None;
            }
        }
        self.forget_empty();
        Ok(())
    }

    fn waits_for_itself(
        &self,
        waiter: &Waiter,
        look: &mut Look,
        held: &mut Held<'_>,
    ) -> Result<bool> {
        let (mut seen, mut todo) = (HashSet::new(), vec![waiter.lock]);
        let waiting = look.waiting.get_or_insert_with(|| self.by_owner());
        while let Some(next) = todo.pop() {
            let ino = InodeId(next.ino);
            let taken = match look.taken.entry(ino) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    let mut taken = held(ino, false)?;
                    let queue = self.queues.get(&ino).into_iter().flatten();
                    taken.extend(queue.filter(|w| w.has_turn()).map(|w| w.lock));
                    unknown.insert(taken)
                }
            };
            for lock in taken.iter().filter(|lock| conflict(lock, &next)) {
                let holder = owner_of(lock);
                if holder == waiter.owner() {
                    return Ok(true);
                }
                if seen.insert(holder) {
                    todo.extend(waiting.get(&holder).into_iter().flatten());
                }
            }
        }
        Ok(false)
    }

    /// What who waits for a lock of fcntl(2) wants.
    fn by_owner(&self) -> HashMap<Owner, Vec<v1::Lock>> {
        let mut all: HashMap<Owner, Vec<v1::Lock>> = HashMap::new();
        let waiting = self.queues.values().flatten().filter(|w| !w.lock.flock && !w.has_turn());
        waiting.for_each(|w| all.entry(w.owner()).or_default().push(w.lock));
        all
    }
}

/// One waiter of a session less.
fn uncount(counts: &mut HashMap<SessionId, usize>, session: SessionId) {
    if let Entry::Occupied(mut count) = counts.entry(session) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

/// What one look for circles needs to know of all waiters, put together once.
#[derive(Default)]
struct Look {
    /// What is locked of an inode, or somebody's turn to be.
    taken: HashMap<InodeId, Vec<v1::Lock>>,
    /// What each owner waits for.
    waiting: Option<HashMap<Owner, Vec<v1::Lock>>>,
}

#[cfg(test)]
mod tests;
