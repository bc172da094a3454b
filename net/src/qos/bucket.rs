//! A rate that is kept by waiting: a bucket of tokens, told by when it is full again.
//!
//! Requests are given their times in the order in which they ask. Invariant: what is asked for at a
//! time when less than [`BURST`] is owed does not wait.

use std::time::Duration;
use tokio::time::Instant;

/// So much may be had at once, of who had nothing before.
pub(super) const BURST: Duration = Duration::from_millis(100);
/// Nobody owes more: whoever waited as long as it could is served, and a rate that was far too low
/// is not to be paid for long after.
const MAX_DEBT: Duration = Duration::from_secs(20);

#[derive(Default)]
pub(super) struct Bucket {
    /// In tokens a second.
    rate: Option<u64>,
    /// When all that was had is paid.
    due: Option<Instant>,
}

impl Bucket {
    /// Another rate; what is owed at the old one is forgiven.
    pub fn set(&mut self, rate: Option<u64>) {
        if self.rate != rate {
            (self.rate, self.due) = (rate.map(|rate| rate.max(1)), None);
        }
    }

    /// Takes tokens. Answers when they may be used; nothing: now, at any rate.
    pub fn take(&mut self, now: Instant, tokens: u64) -> Option<Instant> {
        let rate = self.rate?;
        let due = self.due.map_or(now, |due| due.clamp(now, now + MAX_DEBT));
        self.due = Some(due + time(rate, tokens));
        Some(due.checked_sub(BURST).unwrap_or(due)).filter(|at| *at > now)
    }

    /// Tokens that were taken are not used.
    pub fn give(&mut self, tokens: u64) {
        if let (Some(rate), Some(due)) = (self.rate, self.due) {
            self.due = due.checked_sub(time(rate, tokens));
        }
    }
}

fn time(rate: u64, tokens: u64) -> Duration {
    Duration::from_secs_f64((tokens as f64 / rate as f64).min(MAX_DEBT.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_however_it_is_asked_for() {
        let begun = Instant::now();
        for (each, count) in [(1u64, 10_000u64), (1000, 10), (5000, 2)] {
            let mut bucket = Bucket::default();
            assert_eq!(bucket.take(begun, each), None, "no rate");
            bucket.set(Some(1000));
            let mut now = begun;
            for _ in 0..count {
                now = bucket.take(now, each).unwrap_or(now).max(now);
            }
            let took = now - begun;
            let least = Duration::from_secs_f64((each * (count - 1)) as f64 / 1000.0) - BURST;
            assert!(took >= least && took <= least + BURST, "{each}: {took:?}");
        }
    }

    #[test]
    fn idle_time_saves_up_a_burst_and_no_more_and_what_is_given_back_is_not_owed() {
        let begun = Instant::now();
        let mut bucket = Bucket::default();
        bucket.set(Some(1000));
        let at = |s| begun + Duration::from_secs(s);
        let free = (0..1000).take_while(|_| bucket.take(at(50), 1).is_none()).count();
        assert!((100..=102).contains(&free), "{free}");
        let before = bucket.take(at(50), 1).unwrap();
        bucket.take(at(50), 500);
        bucket.give(500);
        let after = bucket.take(at(50), 1).unwrap();
        assert!(after - before < Duration::from_millis(3), "{:?}", after - before);
        bucket.take(at(50), u64::MAX);
        assert!(bucket.take(at(50), 1).unwrap() <= at(50) + MAX_DEBT);
        bucket.set(Some(2000));
        assert_eq!(bucket.take(at(50), 1), None, "nothing is owed at another rate");
        bucket.set(Some(0));
        bucket.take(at(50), 1);
        assert!(bucket.take(at(50), 1).is_some(), "the least rate is 1");
    }
}
