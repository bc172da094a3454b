//! The waiters of all inodes, each in the order in which they came, and where those of a session,
//! of a ticket and of an owner are.

use super::ranges::Item;
use std::collections::hash_map::{Entry, HashMap};
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::watch;
use tokio::time::Instant;
use weft_proto::{InodeId, SessionId, v1};

/// What a waiter is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    NotYet,
    Now,
    Deadlock,
}

/// A process, or an open file, on any client.
pub(super) type Owner = (SessionId, u64);

pub(super) fn owner_of(lock: &v1::Lock) -> Owner {
    (SessionId(lock.session), lock.owner)
}

/// What a lock takes, if it stands against anything.
pub(super) fn item_of(lock: &v1::Lock) -> Option<Item<Owner>> {
    Item::of(lock, owner_of(lock))
}

pub(super) struct Waiter {
    pub session: SessionId,
    pub ticket: u64,
    pub lock: v1::Lock,
    pub turn: watch::Sender<Turn>,
    /// Since when it has its turn, or nobody asks for it.
    pub since: Option<Instant>,
}

impl Waiter {
    pub fn has_turn(&self) -> bool {
        *self.turn.borrow() == Turn::Now
    }

    pub fn owner(&self) -> Owner {
        (self.session, self.lock.owner)
    }

    /// Whether it waits for a lock of fcntl(2) that it cannot have yet.
    pub fn is_blocked(&self) -> bool {
        !self.lock.flock && !self.has_turn()
    }
}

/// The waiters of one inode.
#[derive(Default)]
pub(super) struct Queue {
    /// By the order in which they came.
    waiters: BTreeMap<u64, Waiter>,
    /// Those whose turn it is.
    turns: BTreeSet<u64>,
    /// How many there are of each session.
    sessions: HashMap<SessionId, usize>,
}

impl Queue {
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &Waiter)> {
        self.waiters.iter().map(|(at, waiter)| (*at, waiter))
    }

    pub fn get(&self, at: u64) -> Option<&Waiter> {
        self.waiters.get(&at)
    }

    /// Those whose turn it is, and that came before this one.
    pub fn turns_before(&self, at: u64) -> impl Iterator<Item = &Waiter> {
        self.turns.range(..at).filter_map(|at| self.waiters.get(at))
    }

    /// Those whose turn it is.
    pub fn turns(&self) -> impl Iterator<Item = &Waiter> {
        self.turns_before(u64::MAX)
    }

    pub fn has_others(&self, than: SessionId) -> bool {
        self.sessions.len() > usize::from(self.sessions.contains_key(&than))
    }
}

/// See the module's documentation. Invariant: no queue is empty.
#[derive(Default)]
pub(super) struct Queues {
    of: HashMap<InodeId, Queue>,
    /// By session, ticket and inode.
    tickets: BTreeMap<(SessionId, u64, InodeId), u64>,
    owners: HashMap<Owner, BTreeSet<(InodeId, u64)>>,
    /// How many there are of each session.
    counts: HashMap<SessionId, usize>,
    /// The place of who comes next.
    next: u64,
}

impl Queues {
    pub fn get(&self, ino: InodeId) -> Option<&Queue> {
        self.of.get(&ino)
    }

    pub fn inodes(&self) -> impl Iterator<Item = InodeId> {
        self.of.keys().copied()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let known = self.tickets.is_empty() && self.owners.is_empty() && self.counts.is_empty();
        known && self.of.is_empty()
    }

    /// How many waiters there are of a session.
    pub fn count(&self, session: SessionId) -> usize {
        self.counts.get(&session).copied().unwrap_or_default()
    }

    /// Where who waits for an inode under a ticket is in its queue.
    pub fn place(&self, session: SessionId, ticket: u64, ino: InodeId) -> Option<u64> {
        self.tickets.get(&(session, ticket, ino)).copied()
    }

    pub fn find_mut(
        &mut self,
        session: SessionId,
        ticket: u64,
        ino: InodeId,
    ) -> Option<&mut Waiter> {
        let at = self.place(session, ticket, ino)?;
        self.of.get_mut(&ino)?.waiters.get_mut(&at)
    }

    /// Where the waiters of a session are, or of one ticket of it.
    pub fn of_session(&self, session: SessionId, ticket: Option<u64>) -> Vec<(InodeId, u64)> {
        let (first, last) = ticket.map_or((0, u64::MAX), |ticket| (ticket, ticket));
        let (from, to) = ((session, first, InodeId(0)), (session, last, InodeId(u64::MAX)));
        self.tickets.range(from..=to).map(|((.., ino), at)| (*ino, *at)).collect()
    }

    /// What an owner waits for and cannot have yet.
    pub fn blocked_of(&self, owner: Owner) -> impl Iterator<Item = &Waiter> {
        let all = self.owners.get(&owner).into_iter().flatten();
        let all = all.filter_map(|(ino, at)| self.of.get(ino)?.waiters.get(at));
        all.filter(|waiter| waiter.is_blocked())
    }

    /// Every waiter may be changed, but for what it waits for.
    pub fn all_mut(&mut self) -> impl Iterator<Item = (InodeId, u64, &mut Waiter)> {
        self.of.iter_mut().flat_map(|(ino, queue)| {
            queue.waiters.iter_mut().map(move |(at, waiter)| (*ino, *at, waiter))
        })
    }

    /// One more waits, behind all others.
    pub fn push(&mut self, waiter: Waiter) {
        let (at, ino) = (self.next, InodeId(waiter.lock.ino));
        self.next += 1;
        self.tickets.insert((waiter.session, waiter.ticket, ino), at);
        self.owners.entry(waiter.owner()).or_default().insert((ino, at));
        *self.counts.entry(waiter.session).or_default() += 1;
        let queue = self.of.entry(ino).or_default();
        *queue.sessions.entry(waiter.session).or_default() += 1;
        queue.waiters.insert(at, waiter);
    }

    pub fn remove(&mut self, ino: InodeId, at: u64) -> Option<Waiter> {
        let queue = self.of.get_mut(&ino)?;
        let waiter = queue.waiters.remove(&at)?;
        queue.turns.remove(&at);
        uncount(&mut queue.sessions, waiter.session);
        if queue.waiters.is_empty() {
            self.of.remove(&ino);
        }
        uncount(&mut self.counts, waiter.session);
        self.tickets.remove(&(waiter.session, waiter.ticket, ino));
        if let Entry::Occupied(mut of) = self.owners.entry(waiter.owner()) {
            of.get_mut().remove(&(ino, at));
            if of.get().is_empty() {
                of.remove();
            }
        }
        Some(waiter)
    }

    /// It is its turn now.
    pub fn give_turn(&mut self, now: Instant, ino: InodeId, at: u64) {
        let Some(queue) = self.of.get_mut(&ino) else { return };
        if let Some(waiter) = queue.waiters.get_mut(&at) {
            waiter.since = Some(now);
            waiter.turn.send_replace(Turn::Now);
            queue.turns.insert(at);
        }
    }

    /// It keeps its place, and waits for another turn.
    pub fn take_turn_back(&mut self, ino: InodeId, at: u64) {
        let Some(queue) = self.of.get_mut(&ino) else { return };
        if let Some(waiter) = queue.waiters.get_mut(&at) {
            waiter.turn.send_replace(Turn::NotYet);
            waiter.since = None;
            queue.turns.remove(&at);
        }
    }
}

/// One of a session less.
fn uncount(counts: &mut HashMap<SessionId, usize>, session: SessionId) {
    if let Entry::Occupied(mut count) = counts.entry(session) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}
