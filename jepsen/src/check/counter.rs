//! Counters that are incremented under a lock: no two increments have the same answer, one that
//! began after another was answered has a larger one, and at the end the counter has counted all
//! that was answered and no more than was tried.

use super::calls::{Ended, calls};
use crate::history::{Answer, Call, Event, Key};
use std::collections::BTreeMap;

#[derive(Default)]
struct Counter {
    /// What was answered, and when that began and ended.
    answered: Vec<(u64, u64, u64)>,
    unknown: u64,
}

pub fn check(events: &[Event]) -> Vec<String> {
    let mut counters = BTreeMap::<Key, Counter>::new();
    for Ended { call, began, answered } in calls(events) {
        let Call::Increment { key } = call else { continue };
        let counter = counters.entry(*key).or_default();
        match answered {
            Some((ended, Some(Answer::Value(value)))) => {
                counter.answered.push((*value, began, ended));
            }
            Some(_) => {}
            None => counter.unknown += 1,
        }
    }
    let mut problems = Vec::new();
    for (key, mut counter) in counters {
        counter.answered.sort_unstable();
        let all = &counter.answered;
        for pair in all.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            problems.push(format!("{key}: {} was answered twice: {pair:?}", pair[0].0));
        }
        // Whoever has a larger answer did not end before one with a smaller began.
        let mut first_end = u64::MAX;
        for (value, began, ended) in all.iter().rev() {
            if first_end < *began {
                problems.push(format!("{key}: {value} was answered after a larger number"));
            }
            first_end = first_end.min(*ended);
        }
        let (count, last) = (all.len() as u64, all.last().map_or(0, |(value, ..)| *value));
        if last > count + counter.unknown {
            problems.push(format!("{key}: counts {last}, and {count} increments were answered"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Kind;

    fn problems(calls: &[(u64, u64, Option<u64>)]) -> Vec<String> {
        let call = Call::Increment { key: Key { kind: "counter", number: 0 } };
        let mut events = Vec::new();
        for (process, (from, to, value)) in (0..).zip(calls) {
            let event = |time_ns, kind| Event { process, time_ns, call: call.clone(), kind };
            let end = value.map_or(Kind::Info(String::new()), |v| Kind::Ok(Answer::Value(v)));
            events.extend([event(*from, Kind::Invoke), event(*to, end)]);
        }
        events.sort_by_key(|event| event.time_ns);
        check(&events)
    }

    #[test]
    fn right_counters_pass() {
        for calls in [
            &[][..],
            &[(0, 1, Some(1)), (2, 3, Some(2))],
            &[(0, 5, Some(2)), (1, 4, Some(1)), (6, 7, None), (8, 9, Some(4))],
        ] {
            assert_eq!(problems(calls), Vec::<String>::new(), "{calls:?}");
        }
    }

    #[test]
    fn wrong_counters_are_caught() {
        for (calls, word) in [
            (&[(0, 1, Some(1)), (2, 3, Some(1))][..], "twice"),
            (&[(0, 1, Some(2)), (2, 3, Some(1))], "after a larger"),
            (&[(0, 1, Some(1)), (2, 3, Some(3))], "counts 3"),
        ] {
            let found = problems(calls);
            assert!(found.iter().any(|p| p.contains(word)), "{word}: {found:?}");
        }
    }
}
