//! Who waits for which lock: a queue for each inode, and whose turn it is.
//!
//! Soft state of the leader; the locks themselves are replicated ([`crate::ops`]), and clients ask a
//! new leader again. A turn is no lock: it says that the waiter may set it now, and nobody who came
//! later gets ahead of it meanwhile ([`Waits::in_the_way`]). Turns are given in the order of arrival to
//! all whose locks are free. A waiter whose lock is not free keeps nobody from one that is, as on
//! Linux: else waiting in line could itself be a deadlock.
//!
//! Whoever would wait for itself, over any number of waiters of fcntl(2)'s locks and wherever they
//! run, is told so instead ([`Turn::Deadlock`]); whoever came last to the circle is. Those of flock(2)
//! take no part, as on Linux.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use v1::lock::Kind;
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, v1};

/// A waiter whose turn it is has so long to set its lock, and one that does not ask on to ask again,
/// before others go first.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most waiters of one session.
const MOST: usize = 1 << 16;

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
            unsettled: BTreeSet::new(),
            news: Arc::default(),
            changed: watch::Sender::new(0),
        }
    }
}

impl Waits {
    /// A session waits for a lock, or goes on to do so under the ticket that it had.
    pub fn wait(
        &mut self,
        session: SessionId,
        ticket: u64,
        lock: &v1::Lock,
    ) -> Result<watch::Receiver<Turn>> {
        let ino = InodeId(lock.ino);
        let queue = self.queues.entry(ino).or_default();
        let known = queue.iter().position(|w| (w.session, w.ticket) == (session, ticket));
        let turn = match known {
            Some(at) => {
                let waiter = &mut queue[at];
                if !waiter.has_turn() {
                    waiter.since = None;
                }
                waiter.turn.subscribe()
            }
            None if queue.iter().filter(|w| w.session == session).count() >= MOST => {
                let what = format!("over {MOST} requests of one client wait for locks of one file");
                return Err(Error::new(ErrorKind::NoLocks, what));
            }
            None => {
                let (turn, answer) = watch::channel(Turn::NotYet);
                let lock = v1::Lock { session: session.0, ..*lock };
                queue.push(Waiter { session, ticket, lock, turn, since: None });
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
            let before = queue.len();
            queue.retain(|waiter| !which(ino, waiter));
            if queue.len() < before {
                self.unsettled.insert(ino);
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        self.note();
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

    /// Is it somebody else's turn to set a lock that stands against this one? Then wait for what this
    /// answers, and look again.
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
        self.remove(|_, w| w.since.is_some_and(|since| now.duration_since(since) > PATIENCE));
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
        for flock in [false, true] {
            let Some(queue) = self.queues.get_mut(&ino) else { return Ok(()) };
            if !queue.iter().any(|w| w.lock.flock == flock) {
                continue;
            }
            let mut taken = held(ino, flock)?;
            taken.extend(queue.iter().filter(|w| w.has_turn()).map(|w| w.lock));
            for waiter in queue.iter_mut().filter(|w| w.lock.flock == flock && !w.has_turn()) {
                if !taken.iter().any(|lock| conflict(lock, &waiter.lock)) {
                    taken.push(waiter.lock);
                    waiter.since = Some(now);
                    waiter.turn.send_replace(Turn::Now);
                }
            }
        }
        Ok(())
    }

    /// Tells those who wait here, the last first, if they wait for themselves.
    fn break_circles(&mut self, ino: InodeId, held: &mut Held<'_>) -> Result<()> {
        let mut known: HashMap<InodeId, Vec<v1::Lock>> = HashMap::new();
        let mut at = self.queues.get(&ino).map_or(0, Vec::len);
        while at > 0 {
            at -= 1;
            let waits = |w: &&Waiter| !w.lock.flock && !w.has_turn();
            let Some(waiter) = self.queues.get(&ino).and_then(|q| q.get(at)).filter(waits) else {
                continue;
            };
            if self.waits_for_itself(waiter, &mut known, held)?
                && let Some(queue) = self.queues.get_mut(&ino)
            {
                queue.remove(at).turn.send_replace(Turn::Deadlock);
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        Ok(())
    }

    fn waits_for_itself(
        &self,
        waiter: &Waiter,
        known: &mut HashMap<InodeId, Vec<v1::Lock>>,
        held: &mut Held<'_>,
    ) -> Result<bool> {
        let (mut seen, mut todo) = (HashSet::new(), vec![waiter]);
        let mut by_owner: Option<HashMap<Owner, Vec<&Waiter>>> = None;
        while let Some(next) = todo.pop() {
            let ino = InodeId(next.lock.ino);
            let mut taken = match known.get(&ino) {
                Some(taken) => taken.clone(),
                None => {
                    let taken = held(ino, false)?;
                    known.insert(ino, taken.clone());
                    taken
                }
            };
            let queue = self.queues.get(&ino).into_iter().flatten();
            taken.extend(queue.filter(|w| w.has_turn()).map(|w| w.lock));
            for lock in taken.iter().filter(|lock| conflict(lock, &next.lock)) {
                let holder = owner_of(lock);
                if holder == waiter.owner() {
                    return Ok(true);
                }
                if seen.insert(holder) {
                    let by_owner = by_owner.get_or_insert_with(|| self.by_owner());
                    todo.extend(by_owner.get(&holder).into_iter().flatten());
                }
            }
        }
        Ok(false)
    }

    /// Who waits for a lock of fcntl(2).
    fn by_owner(&self) -> HashMap<Owner, Vec<&Waiter>> {
        let mut all: HashMap<Owner, Vec<&Waiter>> = HashMap::new();
        let waiting = self.queues.values().flatten().filter(|w| !w.lock.flock && !w.has_turn());
        waiting.for_each(|w| all.entry(w.owner()).or_default().push(w));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: u64 = 100;
    const Y: u64 = 200;
    const Z: u64 = 300;

    fn lock(session: u64, ino: u64, kind: Kind) -> v1::Lock {
        v1::Lock { ino, owner: 7, kind: kind.into(), end: 9, session, ..Default::default() }
    }

    fn write(session: u64, ino: u64) -> v1::Lock {
        lock(session, ino, Kind::Write)
    }

    /// Waiters, and what is held; tickets are numbers of sessions.
    #[derive(Default)]
    struct Rig {
        waits: Waits,
        held: Vec<v1::Lock>,
    }

    impl Rig {
        fn holding(held: &[v1::Lock]) -> Self {
            Self { held: held.to_vec(), ..Self::default() }
        }

        fn wait(&mut self, lock: v1::Lock) -> watch::Receiver<Turn> {
            let turn = self.waits.wait(SessionId(lock.session), lock.session, &lock).unwrap();
            self.settle();
            turn
        }

        fn settle(&mut self) {
            let held = &self.held;
            let mut of = |ino: InodeId, flock| {
                let on = |l: &&v1::Lock| l.ino == ino.0 && l.flock == flock;
                Ok(held.iter().filter(on).copied().collect())
            };
            self.waits.settle(Instant::now(), &mut of).unwrap();
        }

        /// What `session` held of `ino` is free.
        fn free(&mut self, session: u64, ino: u64) {
            self.held.retain(|l| (l.session, l.ino) != (session, ino));
            self.waits.was_set(SessionId(session), InodeId(ino), 0, true);
            self.settle();
        }

        /// Who has its turn sets its lock.
        fn take(&mut self, lock: v1::Lock) {
            self.held.push(lock);
            self.waits.was_set(SessionId(lock.session), InodeId(lock.ino), lock.session, true);
            self.settle();
        }
    }

    fn now(turn: &watch::Receiver<Turn>) -> Turn {
        *turn.borrow()
    }

    #[test]
    fn turns_go_round_in_the_order_of_arrival() {
        let mut rig = Rig::holding(&[write(1, X)]);
        let turns: Vec<_> = (2..6).map(|s| rig.wait(write(s, X))).collect();
        for (turn, holder) in turns.iter().zip(1..) {
            assert_eq!(now(turn), Turn::NotYet);
            rig.free(holder, X);
            assert_eq!(now(turn), Turn::Now);
            // Who has not waited does not get ahead, and who has its turn does.
            let (next, late) = (holder + 1, write(99, X));
            assert!(rig.waits.in_the_way(SessionId(99), 0, &late).is_some());
            assert!(rig.waits.in_the_way(SessionId(next), next, &write(next, X)).is_none());
            rig.take(write(next, X));
            assert!(rig.waits.in_the_way(SessionId(99), 0, &late).is_none());
        }
    }

    #[test]
    fn readers_share_a_turn_and_do_not_wait_for_who_cannot_go() {
        let mut rig = Rig::holding(&[lock(1, X, Kind::Read)]);
        let writer = rig.wait(write(2, X));
        let reader = rig.wait(lock(3, X, Kind::Read));
        assert_eq!((now(&writer), now(&reader)), (Turn::NotYet, Turn::Now));
        rig.take(lock(3, X, Kind::Read));
        rig.free(1, X);
        assert_eq!(now(&writer), Turn::NotYet);
        rig.free(3, X);
        assert_eq!(now(&writer), Turn::Now);
    }

    #[test]
    fn a_turn_that_was_lost_is_waited_for_again_and_one_not_used_ends() {
        let mut rig = Rig::default();
        let (first, second) = (rig.wait(write(1, X)), rig.wait(write(2, X)));
        assert_eq!((now(&first), now(&second)), (Turn::Now, Turn::NotYet));
        rig.held.push(write(3, X));
        rig.waits.was_set(SessionId(1), InodeId(X), 1, false);
        rig.settle();
        assert_eq!(now(&first), Turn::NotYet);
        rig.free(3, X);
        assert_eq!((now(&first), now(&second)), (Turn::Now, Turn::NotYet));
        let later = Instant::now() + PATIENCE + Duration::from_secs(1);
        rig.waits.look_around(later);
        rig.settle();
        assert_eq!(now(&second), Turn::Now);
        // Nobody asks for it any more.
        drop(second);
        rig.waits.ended(SessionId(2));
        assert!(rig.waits.queues.is_empty());
    }

    #[test]
    fn who_asks_on_keeps_its_place_and_who_does_not_loses_it() {
        let mut rig = Rig::holding(&[write(1, X)]);
        drop(rig.wait(write(2, X)));
        let third = rig.wait(write(3, X));
        let start = Instant::now();
        rig.waits.look_around(start);
        let second = rig.wait(write(2, X));
        rig.waits.look_around(start + 2 * PATIENCE);
        assert_eq!(rig.waits.queues[&InodeId(X)].len(), 2);
        drop(second);
        rig.waits.look_around(start + 2 * PATIENCE);
        rig.waits.look_around(start + 4 * PATIENCE);
        rig.free(1, X);
        assert_eq!(now(&third), Turn::Now);
        rig.waits.cancel(SessionId(3), 3);
        assert!(rig.waits.queues.is_empty());
    }

    #[test]
    fn the_last_to_close_a_circle_is_told() {
        let mut rig = Rig::holding(&[write(1, X), write(2, Y), write(3, Z)]);
        let first = rig.wait(write(1, Y));
        let second = rig.wait(write(2, Z));
        assert_eq!((now(&first), now(&second)), (Turn::NotYet, Turn::NotYet));
        let third = rig.wait(write(3, X));
        let told = (now(&first), now(&second), now(&third));
        assert_eq!(told, (Turn::NotYet, Turn::NotYet, Turn::Deadlock));
        // It gives up what it holds, and the others go on.
        rig.free(3, Z);
        assert_eq!(now(&second), Turn::Now);
    }

    #[test]
    fn two_who_would_both_upgrade_are_a_circle() {
        let mut rig = Rig::holding(&[lock(1, X, Kind::Read), lock(2, X, Kind::Read)]);
        let first = rig.wait(write(1, X));
        let second = rig.wait(write(2, X));
        assert_eq!((now(&first), now(&second)), (Turn::NotYet, Turn::Deadlock));
    }

    #[test]
    fn a_circle_that_closes_behind_a_waiter_is_found() {
        // 1 waits for Y; 2 holds Y. 3 holds nothing yet, waits for X of 1 and then gets Y itself.
        let mut rig = Rig::holding(&[write(1, X), write(2, Y)]);
        let first = rig.wait(write(1, Y));
        let third = rig.wait(write(3, X));
        assert_eq!((now(&first), now(&third)), (Turn::NotYet, Turn::NotYet));
        rig.held.push(write(3, Y));
        rig.free(2, Y);
        assert_eq!(now(&first), Turn::Deadlock);
    }

    #[test]
    fn locks_of_flock_close_no_circle() {
        let flock = |session, ino| v1::Lock { flock: true, ..write(session, ino) };
        let mut rig = Rig::holding(&[flock(1, X), flock(2, Y)]);
        let (a, b) = (rig.wait(flock(1, Y)), rig.wait(flock(2, X)));
        assert_eq!((now(&a), now(&b)), (Turn::NotYet, Turn::NotYet));
        // Nor do they stand in the way of the other sort.
        assert_eq!(now(&rig.wait(write(3, X))), Turn::Now);
    }
}
