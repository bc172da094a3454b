//! Tests of `lock_waits`.

mod model;

use super::*;
use model::Model;
use proptest::prelude::*;
use settle::MAX_LOOKED_AT;
use v1::lock::Kind;

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
    let later = Instant::now() + TURN_TIMEOUT + Duration::from_secs(1);
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
    rig.waits.look_around(start + 2 * TURN_TIMEOUT);
    assert_eq!(rig.waits.queues.get(InodeId(X)).unwrap().len(), 2);
    drop(second);
    rig.waits.look_around(start + 2 * TURN_TIMEOUT);
    rig.waits.look_around(start + 4 * TURN_TIMEOUT);
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

#[test]
fn it_is_known_whose_locks_others_wait_for() {
    let mut rig = Rig::holding(&[write(X, 1)]);
    let wanted = |rig: &Rig| [X, Y, Z].map(|s| rig.waits.is_wanted_of(SessionId(s)));
    assert_eq!(wanted(&rig), [false; 3]);
    let _y = rig.wait(write(Y, 1));
    assert_eq!(wanted(&rig), [true, false, false]);
    let _z = rig.wait(write(Z, 1));
    rig.free(X, 1);
    assert_eq!(wanted(&rig), [false, true, false], "it has its turn, and is to take it");
    rig.take(write(Y, 1));
    assert_eq!(wanted(&rig), [false, true, false]);
    rig.waits.cancel(SessionId(Z), Z);
    assert_eq!(wanted(&rig), [false; 3]);
    // A process that waits for another of the same session is not waited for by others.
    let mut own = write(Y, 1);
    own.owner = 8;
    let _own = rig.wait(own);
    assert_eq!(wanted(&rig), [false; 3]);
    rig.waits.ended(SessionId(Y));
    assert!(rig.waits.wanted.is_empty());
}

/// Nobody else says that an earlier one waits no more: its connection may be gone.
#[test]
fn one_request_waits_under_a_ticket() {
    let mut rig = Rig::holding(&[write(1, X)]);
    let first = rig.wait(write(2, X));
    let second = rig.wait(write(2, X));
    assert!(first.has_changed().is_err() && second.has_changed().is_ok());
    rig.free(1, X);
    assert_eq!(now(&second), Turn::Now);
    let third = rig.wait(write(2, X));
    assert_eq!((now(&second), now(&third)), (Turn::Now, Turn::Now), "it has its turn");
}

#[test]
fn a_session_waits_for_a_bounded_number_of_locks() {
    let mut waits = Waits::default();
    let mut wait = |session: u64, n: u64| {
        let lock = v1::Lock { owner: n, ..write(session, X + n) };
        waits.wait(SessionId(session), n, &lock).map_err(|e| e.kind)
    };
    let most = MAX_WAITERS as u64;
    let waiting: Vec<_> = (0..most).map(|n| wait(1, n).unwrap()).collect();
    assert_eq!(wait(1, most).err(), Some(ErrorKind::NoLocks));
    assert!(wait(1, 0).is_ok() && wait(2, most).is_ok());
    drop(waiting);
    waits.cancel(SessionId(1), 0);
    let lock = v1::Lock { owner: most, ..write(1, X + most) };
    assert!(waits.wait(SessionId(1), most, &lock).is_ok());
    waits.ended(SessionId(1));
    waits.ended(SessionId(2));
    assert!(waits.queues.is_empty());
}

/// One that is damaged is not answered for, and keeps nobody from the others.
#[test]
fn where_it_cannot_be_told_what_is_held_others_have_their_turns() {
    let mut waits = Waits::default();
    let mut wait = |ino| waits.wait(SessionId(1), ino, &write(1, ino)).unwrap();
    let turns = [wait(X), wait(Y), wait(Z)];
    let bad = Error::new(ErrorKind::Io, "damaged");
    let mut damaged = |ino: InodeId, _: bool| match ino.0 {
        X => Err(bad.clone()),
        _ => Ok(vec![]),
    };
    for _ in 0..2 {
        waits.settle(Instant::now(), &mut damaged).unwrap_err();
        assert_eq!(turns.each_ref().map(now), [Turn::NotYet, Turn::Now, Turn::Now]);
    }
    waits.settle(Instant::now(), &mut |_, _| Ok(vec![])).unwrap();
    assert_eq!(now(&turns[0]), Turn::Now, "it was not forgotten");
}

/// Counts what it is asked: each of these would be asked for thousands of times.
#[test]
fn thousands_who_wait_for_one_file_are_looked_at_in_pieces() {
    let mut waits = Waits::default();
    let turns: Vec<_> = (0..64)
        .flat_map(|session| (0..2048).map(move |owner| (session, owner)))
        .map(|(session, owner)| {
            let lock = v1::Lock { owner, ..write(session, X + session % 4) };
            waits.wait(SessionId(session), owner, &lock).unwrap()
        })
        .collect();
    let (mut asked, mut looks) = (0, 0);
    while !waits.unsettled.is_empty() {
        let mut none = |_: InodeId, _: bool| {
            asked += 1;
            Ok(vec![])
        };
        waits.settle(Instant::now(), &mut none).unwrap();
        looks += 1;
    }
    assert_eq!(looks, 2, "each of four files has half of what one look takes");
    assert!(asked <= 8, "{asked}");
    assert_eq!(turns.iter().filter(|turn| now(turn) == Turn::Now).count(), 4);
}

/// One that is locked and freed without pause takes a whole look each time.
#[test]
fn one_file_that_changes_all_the_time_keeps_no_other_from_its_turn() {
    let mut waits = Waits::default();
    let mut wait = |ino| waits.wait(SessionId(1), ino, &write(1, ino)).unwrap();
    let turns = [wait(X), wait(Y), wait(Z)];
    let part = |n: u64| v1::Lock { owner: n % 16, start: n, end: n, ..write(2, X) };
    let busy: Vec<_> = (0..MAX_LOOKED_AT as u64).map(part).collect();
    let mut held = |ino: InodeId, flock| match (ino.0, flock) {
        (X, false) => Ok(busy.clone()),
        _ => Ok(vec![]),
    };
    for _ in 0..2 {
        waits.settle(Instant::now(), &mut held).unwrap();
        waits.was_set(SessionId(2), InodeId(X), 0, true);
    }
    assert_eq!(turns.each_ref().map(now), [Turn::NotYet, Turn::Now, Turn::Now]);
    // Nor is it kept itself.
    waits.settle(Instant::now(), &mut |_, _| Ok(vec![])).unwrap();
    assert_eq!(now(&turns[0]), Turn::Now);
}

/// Each owner holds a file, and waits for the next.
#[test]
fn a_chain_of_waiters_is_gone_along_once() {
    const LEN: u64 = 4000;
    let mut waits = Waits::default();
    let of = |n| v1::Lock { owner: n, ..write(1, X + n) };
    let turns: Vec<_> = (0..LEN)
        .map(|n| {
            let lock = v1::Lock { owner: n, ..of(n + 1) };
            waits.wait(SessionId(1), n, &lock).unwrap()
        })
        .collect();
    let settle = |waits: &mut Waits, len: u64| {
        let mut asked = 0;
        let mut held = |ino: InodeId, flock: bool| {
            asked += 1;
            Ok((ino.0 - X < len && !flock).then(|| of(ino.0 - X)).into_iter().collect())
        };
        waits.settle(Instant::now(), &mut held).unwrap();
        assert!(waits.unsettled.is_empty());
        asked
    };
    let asked = settle(&mut waits, LEN + 1);
    assert!(asked <= 2 * LEN + 2, "{asked}");
    assert!(turns.iter().all(|turn| now(turn) == Turn::NotYet));
    // It closes: the last owner waits for the first as well.
    let last = v1::Lock { owner: LEN, ..of(0) };
    let last = waits.wait(SessionId(1), LEN, &last).unwrap();
    waits.ended(SessionId(2));
    let asked = settle(&mut waits, LEN + 1);
    assert!(asked <= 2 * LEN + 4, "{asked}");
    // One of all of them is told, and nobody else.
    let told = turns.iter().chain([&last]).filter(|turn| now(turn) == Turn::Deadlock).count();
    assert_eq!(told, 1);
}

/// Each waits for one who waits for a file with very many locks.
#[test]
fn what_is_read_to_find_circles_cuts_a_look() {
    const FILES: u64 = 16;
    const PARTS: u64 = MAX_LOOKED_AT as u64 / 4;
    let mut waits = Waits::default();
    let far = |n| X + 1000 + n;
    for n in 0..FILES {
        for (ticket, owner, ino) in [(n, n, X + n), (FILES + n, FILES + n, far(n))] {
            let lock = v1::Lock { owner, end: u64::MAX, ..write(1, ino) };
            waits.wait(SessionId(1), ticket, &lock).unwrap();
        }
    }
    let read = std::cell::Cell::new(0);
    let mut held = |ino: InodeId, flock: bool| {
        let locks: Vec<_> = match ino.0 - X {
            _ if flock => vec![],
            near @ 0..FILES => vec![v1::Lock { owner: FILES + near, ..write(1, ino.0) }],
            _ => (0..PARTS).map(|n| v1::Lock { start: n, end: n, ..write(2, ino.0) }).collect(),
        };
        read.set(read.get() + locks.len());
        Ok(locks)
    };
    while !waits.unsettled.is_empty() {
        waits.settle(Instant::now(), &mut held).unwrap();
    }
    (0..FILES).for_each(|n| waits.was_set(SessionId(2), InodeId(X + n), 0, true));
    let (mut looks, mut most) = (0, 0);
    while waits.unsettled.iter().any(|ino| ino.0 != X) {
        read.set(0);
        waits.settle(Instant::now(), &mut held).unwrap();
        (looks, most) = (looks + 1, most.max(read.get()));
        // This one changes all the time.
        waits.was_set(SessionId(2), InodeId(X), 0, true);
    }
    assert!((4..=6).contains(&looks), "{looks}");
    assert!(most <= MAX_LOOKED_AT + PARTS as usize, "{most}");
}

#[derive(Clone, Debug)]
enum Step {
    Wait(v1::Lock),
    Cancel(usize),
    /// Who waits under this ticket sets its lock, or fails to.
    Set(usize, bool),
    /// Something is locked without having waited, or freed.
    Hold(v1::Lock),
    Free(usize),
    Ended(u64),
}

fn any_lock() -> impl Strategy<Value = v1::Lock> {
    let kind = prop_oneof![5 => Just(Kind::Write), 4 => Just(Kind::Read), 1 => Just(Kind::None)];
    (1u64..5, 0u64..2, 1u64..4, kind, 0u64..8, 0u64..5, prop::bool::weighted(0.2)).prop_map(
        |(session, owner, ino, kind, start, len, flock)| {
            let (start, end) = if flock { (0, 99) } else { (start, start + len) };
            let kind = kind.into();
            v1::Lock { ino, owner, kind, start, end, session, flock, ..Default::default() }
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => any_lock().prop_map(Step::Wait),
        1 => any::<usize>().prop_map(Step::Cancel),
        6 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(n, ok)| Step::Set(n, ok)),
        3 => any_lock().prop_map(Step::Hold),
        4 => any::<usize>().prop_map(Step::Free),
        1 => (1u64..5).prop_map(Step::Ended),
    ]
}

/// The two, and what is held.
#[derive(Default)]
struct Both {
    waits: Waits,
    model: Model,
    held: Vec<v1::Lock>,
    /// By ticket.
    waiting: Vec<(v1::Lock, watch::Receiver<Turn>, watch::Receiver<Turn>)>,
}

impl Both {
    fn was_set(&mut self, session: u64, ino: u64, ticket: u64, granted: bool) {
        self.waits.was_set(SessionId(session), InodeId(ino), ticket, granted);
        self.model.was_set(SessionId(session), InodeId(ino), ticket, granted);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Wait(lock) => {
                let (session, ticket) = (SessionId(lock.session), self.waiting.len() as u64 + 1);
                let turn = self.waits.wait(session, ticket, &lock).unwrap();
                self.waiting.push((lock, turn, self.model.wait(session, ticket, &lock)));
            }
            Step::Cancel(n) => {
                let ticket = (n % (self.waiting.len() + 1)) as u64;
                let lock = self.waiting.get(ticket as usize).map(|(lock, ..)| *lock);
                let session = SessionId(lock.unwrap_or_default().session);
                self.waits.cancel(session, ticket + 1);
                self.model.cancel(session, ticket + 1);
            }
            Step::Set(n, granted) => {
                let ready = (1..).zip(&self.waiting).filter(|(_, (_, turn, _))| {
                    turn.has_changed().is_ok() && now(turn) == Turn::Now
                });
                let ready: Vec<(u64, v1::Lock)> = ready.map(|(t, (lock, ..))| (t, *lock)).collect();
                if let Some(&(ticket, lock)) = ready.get(n % ready.len().max(1)) {
                    self.held.extend(granted.then_some(lock).filter(|l| l.kind() != Kind::None));
                    self.was_set(lock.session, lock.ino, ticket, granted);
                }
            }
            Step::Hold(lock) if lock.kind() != Kind::None => {
                self.held.push(lock);
                self.was_set(lock.session, lock.ino, 0, true);
            }
            Step::Hold(_) => {}
            Step::Free(n) if !self.held.is_empty() => {
                let lock = self.held.remove(n % self.held.len());
                self.was_set(lock.session, lock.ino, 0, true);
            }
            Step::Free(_) => {}
            Step::Ended(session) => {
                self.held.retain(|lock| lock.session != session);
                self.waits.ended(SessionId(session));
                self.model.ended(SessionId(session));
            }
        }
    }

    /// Settles both, and compares them.
    fn check(&mut self, asks: &v1::Lock) {
        let held = &self.held;
        let mut of = |ino: InodeId, flock| {
            let on = |l: &&v1::Lock| l.ino == ino.0 && l.flock == flock;
            Ok(held.iter().filter(on).copied().collect())
        };
        self.waits.settle(Instant::now(), &mut of).unwrap();
        while !self.waits.unsettled.is_empty() {
            self.waits.settle(Instant::now(), &mut of).unwrap();
        }
        self.model.settle(&mut of).unwrap();
        for (ticket, (lock, turn, model)) in (1..).zip(&self.waiting) {
            let told = |turn: &watch::Receiver<Turn>| (turn.has_changed().is_ok(), now(turn));
            assert_eq!(told(turn), told(model), "{ticket}: {lock:?}");
        }
        let wanted: BTreeSet<SessionId> = self.waits.wanted.values().flatten().copied().collect();
        assert_eq!(wanted, self.model.wanted(&mut of));
        let (session, ino) = (SessionId(asks.session), InodeId(asks.ino));
        for ticket in 0..=self.waiting.len() as u64 {
            let here = self.waits.in_the_way(session, ticket, asks).is_some();
            assert_eq!(here, self.model.in_the_way(session, ticket, asks));
        }
        assert_eq!(self.waits.others_wait(session, ino), self.model.others_wait(session, ino));
    }
}

proptest! {
    #[test]
    fn turns_and_circles_are_those_of_the_model(
        steps in prop::collection::vec((any_step(), any_lock()), 1..60),
    ) {
        let mut both = Both::default();
        for (step, asks) in steps {
            both.step(step);
            both.check(&asks);
        }
    }
}
