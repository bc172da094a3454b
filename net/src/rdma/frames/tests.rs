//! Tests of frames.

mod freed;

use super::super::arrive::MAX_LANDINGS;
use super::super::connection::RECEIVES;
use super::super::script::Script;
use super::super::wire::FRAGMENT;
use super::*;
use crate::frame::{Broken, Kind};
use proptest::prelude::*;
use proptest::sample::Index;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, advance};

/// Who queues it counts off what could not be queued, and so nothing else.
#[test]
fn the_cost_of_an_answer_that_cannot_be_posted_is_told_once() {
    let script = Script::new(RECEIVES);
    let connection = script.connection(Side::Server).unwrap();
    script.refuse();
    let answer = || {
        let head = Head::Bytes(Bytes::new());
        Frame::new(Header::new(Kind::Answer, 1, 5), head, vec![Bytes::from(vec![7; 1000])])
    };
    // Its payload is to be written, which is refused.
    connection.land_at(5, vec![Piece { address: 4096, len: 1000, key: 1 }]);
    assert!(connection.push(answer(), &[], Some(1000)), "it was queued");
    assert_eq!(connection.take_left(), (1, 1000));
    assert!(!connection.push(answer(), &[], Some(1000)), "the connection is over");
    assert_eq!(connection.take_left(), (0, 0));
}

/// A payload of which is known whether anybody still has it.
struct Counted {
    buffer: AlignedBuf,
    _held: Arc<()>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_ref()
    }
}

/// Memory that a request shows the other side, and what tells whether it is kept.
fn counted(len: usize) -> (Vec<Bytes>, Arc<()>) {
    let held = Arc::new(());
    let payload = Counted { buffer: AlignedBuf::take(len), _held: held.clone() };
    (vec![Bytes::from_owner(payload)], held)
}

fn is_free(held: &Arc<()>) -> bool {
    Arc::strong_count(held) == 1
}

fn ask(
    connection: &Connection,
    (id, head): (u64, usize),
    payload: Vec<Bytes>,
    into: &[Buffer],
    patience: Duration,
) {
    let (header, now) = (Header::new(Kind::Request, 100, id), Instant::now());
    let head = Head::Bytes(Bytes::from(vec![1; head]));
    let frame = Frame::asked(header, head, payload, (now, now + patience));
    assert!(connection.push(frame, into, None));
}

/// Whether there was anything to give back, or is anything still to leave.
fn give_credits(connection: &Connection, script: &Script) -> bool {
    let given = script.give_credits(7) > 0;
    connection.advance().unwrap();
    given || !connection.is_idle()
}

/// Everything leaves.
fn settle(connection: &Connection, script: &Script) {
    let all_left = (0..100_000).any(|_| !give_credits(connection, script));
    assert!(all_left, "something does not leave");
}

#[derive(Clone, Debug)]
enum Step {
    Ask { head: usize, payload: usize, into: usize },
    GiveUp(Index),
    Answer(Index),
    Credits,
}

fn step() -> impl Strategy<Value = Step> {
    let ask = (0..3 * FRAGMENT, 0usize..2000, 0usize..2000);
    prop_oneof![
        4 => ask.prop_map(|(head, payload, into)| Step::Ask { head, payload, into }),
        3 => any::<Index>().prop_map(Step::GiveUp),
        1 => any::<Index>().prop_map(Step::Answer),
        1 => Just(Step::Credits),
    ]
}

#[derive(Default)]
struct Asked {
    into: usize,
    held: Arc<()>,
    /// The other side has it.
    seen: bool,
    answered: bool,
    /// Nobody waits for it; and nobody writes to its memory.
    given_up: bool,
    taken_back: bool,
}

/// What the other side has seen must be what was not taken back.
fn look(script: &Script, asked: &mut [Asked]) {
    for seen in script.seen() {
        let asked = &mut asked[seen.header.id as usize - 1];
        assert!(!asked.taken_back, "{seen:?} was taken back");
        assert_eq!(seen.landings.iter().map(|p| p.len as usize).sum::<usize>(), asked.into);
        asked.seen = true;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_request_that_is_given_up_leaves_whole_or_not_at_all(
        steps in prop::collection::vec(step(), 1..100),
    ) {
        let script = Script::new(RECEIVES);
        let connection = script.connection(Side::Caller).unwrap();
        let mut asked: Vec<Asked> = Vec::new();
        for step in steps {
            match step {
                Step::Ask { head, payload, into } => {
                    let (payload, held) = counted(payload);
                    let id = asked.len() as u64 + 1;
                    let hour = Duration::from_secs(3600);
                    ask(&connection, (id, head), payload, &[Buffer::take(into)], hour);
                    asked.push(Asked { into, held, ..Asked::default() });
                }
                Step::GiveUp(_) | Step::Answer(_) if asked.is_empty() => {}
                Step::GiveUp(index) => {
                    let at = index.index(asked.len());
                    let call = &mut asked[at];
                    if call.given_up {
                        continue;
                    }
                    call.given_up = true;
                    let writes = connection.give_up(at as u64 + 1);
                    prop_assert!(!(writes && call.answered), "{at} was answered");
                    prop_assert!(writes || call.answered || !call.seen, "{at} may be written to");
                    call.taken_back = !writes && !call.answered;
                    prop_assert!(writes || is_free(&call.held), "memory of {at} is kept");
                }
                Step::Answer(index) => {
                    let at = index.index(asked.len());
                    let call = &mut asked[at];
                    if call.seen {
                        call.answered = true;
                        prop_assert!(connection.answered(at as u64 + 1).is_ok());
                        prop_assert!(is_free(&call.held), "memory of {at} is kept");
                    }
                }
                Step::Credits => {
                    give_credits(&connection, &script);
                }
            }
            look(&script, &mut asked);
        }
        settle(&connection, &script);
        look(&script, &mut asked);
        for (at, call) in asked.iter().enumerate() {
            prop_assert!(call.seen != call.taken_back, "{at}");
        }
        let kept = asked.iter().filter(|call| call.seen && !call.answered).count();
        prop_assert_eq!(connection.state.lock().exposed.len(), kept);
        drop(connection);
        prop_assert!(asked.iter().all(|call| is_free(&call.held)));
        prop_assert!(script.known().is_empty(), "each was forgotten, and once");
    }
}

/// They would be carried out for nobody, and perhaps after what undoes them.
#[tokio::test(start_paused = true)]
async fn requests_that_are_over_do_not_leave_late_and_others_say_what_is_left() {
    let script = Script::new(RECEIVES);
    let connection = script.connection(Side::Caller).unwrap();
    let second = Duration::from_secs(1);
    // More than the other side takes at first.
    ask(&connection, (1, 20 * FRAGMENT), vec![], &[], second);
    let (payload, held) = counted(1000);
    ask(&connection, (2, 0), payload, &[Buffer::take(1000)], 2 * second);
    for (id, patience) in [(3, 60), (4, 3), (5, 61), (6, 2)] {
        ask(&connection, (id, 10), vec![], &[], patience * second);
    }
    advance(3 * second).await;
    assert!(connection.state.lock().exposed.contains_key(&2));
    settle(&connection, &script);
    let seen =
        script.seen().iter().map(|s| (s.header.id, s.header.deadline_ms)).collect::<Vec<_>>();
    assert_eq!(seen, [(1, 1000), (3, 57_000), (5, 58_000)]);
    assert!(is_free(&held) && connection.is_idle());
    // Nobody would answer what did not leave.
    let written_to: Vec<u64> = (1..=6).filter(|&id| connection.give_up(id)).collect();
    assert_eq!(written_to, [1, 3, 5]);
}

#[test]
fn memory_of_its_own_is_forgotten_once_when_its_request_is_taken_back() {
    // Not in a region, and of no size that is kept for others.
    const LEN: usize = 70 << 20;
    let script = Script::new(RECEIVES);
    let connection = script.connection(Side::Caller).unwrap();
    let known = || script.known().into_iter().filter(|&len| len == LEN).count();
    let minute = Duration::from_secs(60);
    ask(&connection, (1, 20 * FRAGMENT), vec![], &[], minute);
    ask(&connection, (2, 0), vec![], &[Buffer::take(LEN)], minute);
    assert_eq!(known(), 1);
    assert!(!connection.give_up(2));
    assert_eq!(known(), 0);
    assert!(!connection.give_up(2) && !connection.give_up(99), "nobody knows it");
    assert!(connection.give_up(1), "some of it has left");
    settle(&connection, &script);
    assert_eq!(script.seen().len(), 1);
    connection.end("over");
    drop(connection);
    assert!(script.known().is_empty());
}

/// Else it would be told of this memory when that is somebody else's.
#[test]
fn an_answer_to_what_has_not_left_is_garbage() {
    let script = Script::new(RECEIVES);
    let connection = script.connection(Side::Caller).unwrap();
    let minute = Duration::from_secs(60);
    ask(&connection, (1, 20 * FRAGMENT), vec![], &[], minute);
    ask(&connection, (2, 0), vec![], &[Buffer::take(100)], minute);
    for id in [1, 2] {
        assert!(matches!(connection.answered(id), Err(Broken::Garbage(_))), "{id}");
    }
    assert!(matches!(connection.answered(3), Ok(None)), "it may have been left");
}

#[test]
fn what_requests_say_of_memory_is_bounded() {
    const LEN: usize = 1000 * MAX_PIECES;
    let script = Script::new(RECEIVES);
    let connection = script.connection(Side::Server).unwrap();
    let pieces = |len| vec![Piece { address: 4096, len, key: 1 }; MAX_PIECES];
    let most = (MAX_LANDINGS / MAX_PIECES) as u64;
    for id in (1..=2 * most).chain(1..=2 * most) {
        connection.land_at(id, pieces(1000));
        let state = connection.state.lock();
        assert!(state.landing_pieces <= MAX_LANDINGS);
        assert_eq!(state.landing_pieces, state.landings.values().map(Vec::len).sum::<usize>());
    }
    let mut written = 0;
    for id in 1..=2 * most {
        let head = Head::Bytes(Bytes::new());
        let payload = vec![AlignedBuf::take(LEN).into()];
        let answer = Frame::new(Header::new(Kind::Answer, 100, id), head, payload);
        assert!(connection.push(answer, &[], Some(LEN)));
        settle(&connection, &script);
        for seen in script.seen() {
            assert_eq!(seen.header.id, id);
            written += u64::from(seen.payload == Payload::Written);
        }
    }
    assert_eq!(written, most, "the others follow their heads");
    assert_eq!(connection.take_left(), (2 * most as usize, 2 * most as usize * LEN));
    assert_eq!(connection.state.lock().landing_pieces, 0);
}

#[test]
fn a_queue_pair_that_takes_too_little_memory_is_destroyed_before_that_is_given_back() {
    let script = Script::new(3);
    assert!(script.connection(Side::Server).is_err());
    assert!(script.is_destroyed() && script.known().is_empty());
}
