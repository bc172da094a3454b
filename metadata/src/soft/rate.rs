//! How much was done of late.

use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// What ended within the last so many seconds.
#[derive(Default)]
pub struct Rate<const WINDOW_S: u64>(VecDeque<Done>);

struct Done {
    begun: Instant,
    ended: Instant,
    done: u64,
}

impl<const WINDOW_S: u64> Rate<WINDOW_S> {
    /// So much was done from `begun` until now, evenly.
    pub fn note(&mut self, begun: Instant, now: Instant, done: u64) {
        self.forget(now);
        self.0.push_back(Done { begun, ended: now, done });
    }

    /// What is done in this time, as it went within the window, or since the first of it began.
    pub fn per(&mut self, time: Duration, now: Instant) -> u64 {
        self.forget(now);
        let window = Duration::from_secs(WINDOW_S);
        let ago = |then: Instant| now.saturating_duration_since(then).min(window).as_secs_f64();
        let within = |d: &Done| {
            let took = d.ended.saturating_duration_since(d.begun).as_secs_f64();
            // What took no time is within it whole.
            let part = if took > 0.0 { (ago(d.begun) - ago(d.ended)) / took } else { 1.0 };
            d.done as f64 * part
        };
        let done: f64 = self.0.iter().map(within).sum();
        // What is done in a moment says little of what comes.
        let took = self.0.iter().map(|d| ago(d.begun)).fold(1.0, f64::max);
        (done * time.as_secs_f64() / took).round() as u64
    }

    fn forget(&mut self, now: Instant) {
        let window = Duration::from_secs(WINDOW_S);
        while self.0.front().is_some_and(|d| now.saturating_duration_since(d.ended) > window) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_past_counts_no_more_and_what_took_long_as_far_as_it_is_of_late() {
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let at = |n: u32| begun + n * second;
        let mut rate = Rate::<10>::default();
        assert_eq!(rate.per(second, begun), 0);
        rate.note(begun, begun, 6);
        assert_eq!(rate.per(second, begun), 6, "no more than if it took a second");
        rate.note(at(1), at(2), 6);
        assert_eq!(rate.per(second, at(4)), 3);
        assert_eq!(rate.per(60 * second, at(4)), 180);
        assert_eq!(rate.per(60 * second, at(11)), 36);
        assert_eq!(rate.per(60 * second, at(13)), 0);
        // A sixth of it was done within the last ten seconds, and a hundred besides.
        rate.note(at(14), at(74), 60);
        assert_eq!(rate.per(60 * second, at(74)), 60, "it took a minute");
        rate.note(at(73), at(74), 100);
        assert_eq!(rate.per(10 * second, at(74)), 110);
        rate.note(at(75), at(75), u64::MAX);
        assert_eq!(rate.per(3600 * second, at(75)), u64::MAX);
    }
}
