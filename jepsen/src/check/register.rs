//! Registers, locks and elements of sets: is there an order of the calls that explains all answers
//! and respects real time? The search is that of Wing and Gong (1993) with Lowe's memory (2017), by
//! a library.

use super::calls::{Ended, calls};
use crate::history::{Answer, Call, Event, Key};
use std::collections::BTreeMap;
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

/// What one call did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Write(u64),
    Get(u64),
    Swap {
        from: u64,
        to: u64,
    },
    /// It found another value.
    NoSwap {
        from: u64,
    },
    /// A swap of which is not known whether it found the value.
    MaySwap {
        from: u64,
        to: u64,
    },
}

struct Register;

impl Specification for Register {
    type State = u64;
    type Operation = Op;

    fn init() -> u64 {
        0
    }

    fn apply(op: &Op, value: &u64) -> (bool, u64) {
        match *op {
            Op::Write(new) => (true, new),
            Op::Get(got) => (got == *value, *value),
            Op::Swap { from, to } if from == *value => (true, to),
            Op::Swap { .. } => (false, *value),
            Op::NoSwap { from } => (from != *value, *value),
            Op::MaySwap { from, to } => (true, if from == *value { to } else { *value }),
        }
    }
}

/// Of every register's history.
pub fn check(events: &[Event]) -> Vec<String> {
    let all = calls(events);
    let mut registers = BTreeMap::<Key, Vec<&Ended<'_>>>::new();
    for ended in &all {
        if let Call::Write { key, .. } | Call::Get { key } | Call::Swap { key, .. } = ended.call {
            registers.entry(*key).or_default().push(ended);
        }
    }
    let wrong = registers.iter().filter(|(_, calls)| !is_linearizable(calls));
    wrong.map(|(key, calls)| format!("{key}: no order explains{}", told(calls))).collect()
}

/// A call of which is not known whether it took effect takes it after all others, where nobody sees
/// it, or before: its answer is at the end.
fn is_linearizable(calls: &[&Ended<'_>]) -> bool {
    let mut actions = Vec::new();
    for (process, ended) in calls.iter().enumerate() {
        let Some(op) = op(ended) else { continue };
        let end = ended.answered.map_or(u64::MAX, |(at, _)| at);
        actions.push((ended.began, 0, (process, Action::Call(op))));
        actions.push((end, 1, (process, Action::Response(op))));
    }
    if actions.is_empty() {
        return true;
    }
    actions.sort_by_key(|(at, ends, _)| (*at, *ends));
    let actions = actions.into_iter().map(|(.., action)| action).collect();
    WGLChecker::<Register>::is_linearizable(History::from_actions(actions))
}

/// `None`: nobody knows what it saw.
fn op(ended: &Ended<'_>) -> Option<Op> {
    Some(match (ended.call, ended.answered) {
        (Call::Write { .. }, Some((_, None))) => return None,
        (Call::Write { value, .. }, _) => Op::Write(*value),
        (Call::Swap { from, to, .. }, None) => Op::MaySwap { from: *from, to: *to },
        (Call::Swap { from, to, .. }, Some((_, Some(_)))) => Op::Swap { from: *from, to: *to },
        (Call::Swap { from, .. }, Some((_, None))) => Op::NoSwap { from: *from },
        (Call::Get { .. }, Some((_, Some(Answer::Value(value))))) => Op::Get(*value),
        _ => return None,
    })
}

fn told(calls: &[&Ended<'_>]) -> String {
    let ms = |ns: u64| ns / 1_000_000;
    let line = |ended: &&Ended<'_>| {
        let end = ended.answered.map_or("-".to_owned(), |(at, _)| ms(at).to_string());
        format!("\n  {}..{end} ms {:?}", ms(ended.began), op(ended))
    };
    calls.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Kind;
    use rand::{Rng, SeedableRng, rngs::SmallRng};
    use weft_tests::sim::linear;

    const KEY: Key = Key { kind: "test", number: 1 };

    /// When a call begins and ends, what it is and what it answers.
    type Line = (u64, u64, Call, Kind);

    fn w(from: u64, to: u64, value: u64) -> Line {
        (from, to, Call::Write { key: KEY, value }, Kind::Ok(Answer::Done))
    }

    fn g(from: u64, to: u64, value: u64) -> Line {
        (from, to, Call::Get { key: KEY }, Kind::Ok(Answer::Value(value)))
    }

    fn s(at: u64, until: u64, from: u64, to: u64, kind: Kind) -> Line {
        (at, until, Call::Swap { key: KEY, from, to }, kind)
    }

    fn unknown(line: Line) -> Line {
        (line.0, line.1, line.2, Kind::Info(String::new()))
    }

    fn problems(lines: &[Line]) -> Vec<String> {
        let mut events = Vec::new();
        for (process, (from, to, call, kind)) in (0..).zip(lines) {
            let event = |time_ns, kind: &Kind| Event {
                process,
                time_ns,
                call: call.clone(),
                kind: kind.clone(),
            };
            events.extend([event(*from, &Kind::Invoke), event(*to, kind)]);
        }
        events.sort_by_key(|event| event.time_ns);
        check(&events)
    }

    const OK: Kind = Kind::Ok(Answer::Done);

    #[test]
    fn right_histories_pass() {
        for lines in [
            &[][..],
            &[w(0, 10, 1), g(1, 2, 0), g(3, 4, 1)],
            &[w(0, 10, 1), w(1, 11, 2), g(12, 13, 2), g(14, 15, 2)],
            &[unknown(w(0, 1, 1)), g(5, 6, 0), g(7, 8, 1)],
            &[s(0, 1, 0, 1, OK), s(2, 3, 0, 1, Kind::Fail), s(4, 5, 1, 0, OK), g(6, 7, 0)],
            &[unknown(s(0, 1, 0, 1, OK)), s(2, 3, 0, 1, Kind::Fail), g(4, 5, 1)],
            &[unknown(s(0, 1, 0, 1, OK)), s(2, 3, 0, 2, OK), g(4, 5, 2)],
        ] {
            assert_eq!(problems(lines), Vec::<String>::new(), "{lines:?}");
        }
    }

    #[test]
    fn wrong_histories_are_caught() {
        for lines in [
            &[g(0, 1, 1)][..],
            &[w(0, 1, 1), g(2, 3, 0)],
            &[w(0, 10, 1), g(1, 2, 1), g(3, 4, 0)],
            &[w(0, 1, 1), w(2, 3, 2), g(4, 5, 1)],
            &[s(0, 1, 0, 1, OK), s(2, 3, 0, 1, OK)],
            &[s(0, 1, 0, 1, Kind::Fail)],
            &[unknown(s(0, 1, 0, 1, OK)), g(2, 3, 1), s(4, 5, 0, 1, OK)],
        ] {
            assert_eq!(problems(lines).len(), 1, "{lines:?}");
        }
    }

    /// The simulation's own checker and the library's, on histories that are drawn.
    #[test]
    fn two_checkers_agree() {
        let mut rng = SmallRng::seed_from_u64(12);
        let mut right = 0;
        const ROUNDS: usize = 3000;
        for round in 0..ROUNDS {
            let (mut lines, mut others) = (Vec::new(), Vec::new());
            for value in 1..=rng.random_range(2..9) {
                let from = rng.random_range(0..30);
                let to = from + rng.random_range(1..20);
                let write = rng.random_ratio(1, 2);
                let value = if write { value } else { rng.random_range(0..=value.min(4)) };
                let lost = write && rng.random_ratio(1, 5);
                let line = if write { w(from, to, value) } else { g(from, to, value) };
                lines.push(if lost { unknown(line) } else { line });
                let op = if write { linear::Op::Write(value) } else { linear::Op::Read(value) };
                others.push(linear::Call::new(op, from, if lost { u64::MAX } else { to }));
            }
            let (one, other) = (problems(&lines).is_empty(), linear::is_linearizable(&others));
            assert_eq!(one, other, "round {round}: {lines:?}");
            right += usize::from(one);
        }
        assert!((ROUNDS / 10..ROUNDS * 9 / 10).contains(&right), "{right} are right");
    }
}
