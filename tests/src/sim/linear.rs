//! Linearizability of a register's history: the search of Wing and Gong ("Testing and verifying
//! concurrent objects", 1993) with Lowe's memory of visited states (2017).

use std::collections::HashSet;

/// What one call did. Values are unique per write; 0 is the register before any write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Write(u64),
    Read(u64),
}

/// One call on the register. A write that got no answer has `end = u64::MAX`: it may take effect at
/// any time after its start, or never. A read that got no answer is left out of the history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    pub op: Op,
    pub start: u64,
    pub end: u64,
    /// Of a write that was answered, and lost before it was durable: when it was answered. It never
    /// takes effect, or did so before any write that began later: what others have written since
    /// is not overwritten.
    pub lost: Option<u64>,
}

impl Call {
    pub fn new(op: Op, start: u64, end: u64) -> Self {
        Self { op, start, end, lost: None }
    }
}

/// Most calls in a history that [`is_linearizable`] takes.
pub const MAX_CALLS: usize = 128;

/// Whether some order of the calls explains all answers and respects real time.
pub fn is_linearizable(calls: &[Call]) -> bool {
    assert!(calls.len() <= MAX_CALLS, "{} calls are too many", calls.len());
    let mut calls = calls.to_vec();
    calls.sort_by_key(|c| c.start);
    let all = if calls.len() == MAX_CALLS { u128::MAX } else { (1 << calls.len()) - 1 };
    let must = (0..calls.len()).filter(|&i| calls[i].end != u64::MAX).fold(0, |m, i| m | 1 << i);
    search(&calls, all & must, 0, 0, &mut HashSet::new())
}

/// `done` calls have taken effect, in some order that leaves the register at `value`.
fn search(
    calls: &[Call],
    must: u128,
    done: u128,
    value: u64,
    seen: &mut HashSet<(u128, u64)>,
) -> bool {
    if done & must == must {
        return true;
    }
    if !seen.insert((done, value)) {
        return false;
    }
    // Only a call that starts before every other open call ends can be next.
    let open = || (0..calls.len()).filter(|i| done & 1 << i == 0);
    let first_end = open().map(|i| calls[i].end).min().unwrap_or(u64::MAX);
    let writes = |i: &usize| done & 1 << i != 0 && matches!(calls[*i].op, Op::Write(_));
    let newest = (0..calls.len()).filter(writes).map(|i| calls[i].start).max().unwrap_or(0);
    let too_late = |i: usize| calls[i].lost.is_some_and(|answered| answered < newest);
    let candidates: Vec<usize> =
        open().filter(|&i| calls[i].start <= first_end && !too_late(i)).collect();
    candidates.into_iter().any(|i| match calls[i].op {
        Op::Write(new) => search(calls, must, done | 1 << i, new, seen),
        Op::Read(got) => got == value && search(calls, must, done | 1 << i, value, seen),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn w(v: u64, start: u64, end: u64) -> Call {
        Call::new(Op::Write(v), start, end)
    }

    fn r(v: u64, start: u64, end: u64) -> Call {
        Call::new(Op::Read(v), start, end)
    }

    /// Answered, and lost.
    fn l(v: u64, start: u64, answered: u64) -> Call {
        Call { lost: Some(answered), ..w(v, start, u64::MAX) }
    }

    #[test]
    fn right_histories_pass() {
        for calls in [
            &[][..],
            &[w(1, 0, 10), r(0, 1, 2), r(1, 3, 4)],
            &[w(1, 0, 10), w(2, 0, 10), r(2, 11, 12), r(2, 13, 14)],
            &[w(1, 0, u64::MAX), r(0, 5, 6), r(1, 7, 8)],
            &[w(1, 0, u64::MAX), w(2, 1, 2), r(2, 3, 4), r(1, 5, 6)],
            &[l(1, 0, 1), r(0, 5, 6), r(1, 7, 8), w(2, 9, 10), r(2, 11, 12)],
            &[l(1, 0, 3), w(2, 2, 5), r(2, 6, 7), r(1, 8, 9)],
        ] {
            assert!(is_linearizable(calls), "{calls:?}");
        }
    }

    #[test]
    fn wrong_histories_are_caught() {
        for calls in [
            &[r(1, 0, 1)][..],
            &[w(1, 0, 1), r(0, 2, 3)],
            &[w(1, 0, 10), r(1, 1, 2), r(0, 3, 4)],
            &[w(1, 0, 1), w(2, 2, 3), r(1, 4, 5)],
            &[w(1, 5, u64::MAX), r(1, 0, 1)],
            &[w(1, 0, 10), w(2, 0, 10), r(1, 11, 12), r(2, 13, 14)],
            &[l(1, 0, 1), w(2, 2, 3), r(2, 4, 5), r(1, 6, 7)],
        ] {
            assert!(!is_linearizable(calls), "{calls:?}");
        }
    }
}
