//! What [`Waits`] was before it had to be quick: every waiter is compared with every lock.

use super::super::{Held, Turn};
use std::collections::hash_map::{Entry, HashMap};
use std::collections::{BTreeSet, HashSet};
use tokio::sync::watch;
use v1::lock::Kind;
use weft_proto::{InodeId, Result, SessionId, v1};

type Owner = (SessionId, u64);

struct Waiter {
    session: SessionId,
    ticket: u64,
    lock: v1::Lock,
    turn: watch::Sender<Turn>,
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

/// All waiters of one term.
#[derive(Default)]
pub struct Model {
    queues: HashMap<InodeId, Vec<Waiter>>,
    unsettled: BTreeSet<InodeId>,
}

impl Model {
    /// A session waits for a lock under a ticket that it did not have before.
    pub fn wait(
        &mut self,
        session: SessionId,
        ticket: u64,
        lock: &v1::Lock,
    ) -> watch::Receiver<Turn> {
        let ino = InodeId(lock.ino);
        let (turn, answer) = watch::channel(Turn::NotYet);
        let lock = v1::Lock { session: session.0, ..*lock };
        self.queues.entry(ino).or_default().push(Waiter { session, ticket, lock, turn });
        self.unsettled.insert(ino);
        answer
    }

    /// Whether another session waits for a lock of this inode.
    pub fn others_wait(&self, session: SessionId, ino: InodeId) -> bool {
        self.queues.get(&ino).into_iter().flatten().any(|w| w.session != session)
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
            // Somebody was quicker after all. It keeps its place.
            Some(waiter) => drop(waiter.turn.send_replace(Turn::NotYet)),
            None => {}
        }
        self.unsettle(ino);
    }

    fn remove(&mut self, which: impl Fn(InodeId, &Waiter) -> bool) {
        for (&ino, queue) in &mut self.queues {
            for _ in queue.extract_if(.., |waiter| which(ino, waiter)) {
                self.unsettled.insert(ino);
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
    }

    fn unsettle(&mut self, ino: InodeId) {
        if self.queues.contains_key(&ino) {
            self.unsettled.insert(ino);
        }
    }

    /// The sessions for which others wait.
    pub fn wanted(&self, held: &mut Held<'_>) -> BTreeSet<SessionId> {
        let mut wanted = BTreeSet::new();
        for (&ino, queue) in &self.queues {
            let mut taken = held(ino, false).unwrap();
            taken.extend(held(ino, true).unwrap());
            taken.extend(queue.iter().filter(|w| w.has_turn()).map(|w| w.lock));
            for waiter in queue.iter().filter(|w| !w.has_turn()) {
                let against = taken.iter().filter(|lock| conflict(lock, &waiter.lock));
                let sessions = against.map(|lock| SessionId(lock.session));
                wanted.extend(sessions.filter(|session| *session != waiter.session));
            }
        }
        wanted
    }

    /// Is it somebody else's turn to set a lock that stands against this one? Then wait for what
    /// this answers, and look again.
    pub fn in_the_way(&self, session: SessionId, ticket: u64, lock: &v1::Lock) -> bool {
        let lock = v1::Lock { session: session.0, ..*lock };
        let Some(queue) = self.queues.get(&InodeId(lock.ino)) else { return false };
        let first = queue.iter().take_while(|w| (w.session, w.ticket) != (session, ticket));
        first.filter(|w| w.has_turn()).any(|w| conflict(&w.lock, &lock))
    }

    /// Gives turns where something changed, and then breaks circles there. `held` must answer what
    /// is locked now.
    pub fn settle(&mut self, held: &mut Held<'_>) -> Result<()> {
        let unsettled = std::mem::take(&mut self.unsettled);
        for &ino in &unsettled {
            self.give_turns(ino, held)?;
        }
        for ino in unsettled {
            self.break_circles(ino, held)?;
        }
        Ok(())
    }

    fn give_turns(&mut self, ino: InodeId, held: &mut Held<'_>) -> Result<()> {
        for flock in [false, true] {
            let Some(queue) = self.queues.get_mut(&ino) else { return Ok(()) };
            let mut taken = held(ino, flock)?;
            taken.extend(queue.iter().filter(|w| w.has_turn()).map(|w| w.lock));
            for waiter in queue.iter_mut().filter(|w| w.lock.flock == flock && !w.has_turn()) {
                if !taken.iter().any(|lock| conflict(lock, &waiter.lock)) {
                    taken.push(waiter.lock);
                    waiter.turn.send_replace(Turn::Now);
                }
            }
        }
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
                look.waiting = None;
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
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

/// What one look for circles needs to know of all waiters, put together once.
#[derive(Default)]
struct Look {
    /// What is locked of an inode, or somebody's turn to be.
    taken: HashMap<InodeId, Vec<v1::Lock>>,
    /// What each owner waits for.
    waiting: Option<HashMap<Owner, Vec<v1::Lock>>>,
}
