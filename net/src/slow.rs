//! Requests that take long, in the log: who asks for help at night finds there what was slow, and
//! for whom.

use crate::sync::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A request that takes so long is told.
const SLOW: Duration = Duration::from_secs(1);
/// So many of one operation are told in each [`WINDOW`]; the next says how many more there were.
const MOST: u32 = 10;
const WINDOW: Duration = Duration::from_secs(10);

/// What was told of late of each operation, in this process.
static TOLD: Mutex<BTreeMap<&'static str, Told>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct Told {
    since: Option<Instant>,
    told: u32,
    untold: u64,
}

impl Told {
    /// Whether one more is told, and how many were not before it.
    fn one(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) > WINDOW) {
            (self.since, self.told) = (Some(now), 0);
        }
        if self.told == MOST {
            self.untold += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.untold))
    }
}

/// A request that was slow.
#[derive(Clone, Copy, Debug)]
pub struct Slow {
    /// How long it took, in milliseconds.
    pub ms: u64,
    /// How many of the same operation were not told before it.
    pub untold: u64,
}

/// Dropped when the request has its answer, or when nobody waits for that any more.
pub struct Watch<F: Fn(Slow)> {
    op: &'static str,
    begun: Instant,
    tell: F,
}

/// Watches a request from now on: `tell` writes it to the log if it is slow.
pub fn watch<F: Fn(Slow)>(op: &'static str, tell: F) -> Watch<F> {
    Watch { op, begun: Instant::now(), tell }
}

impl<F: Fn(Slow)> Drop for Watch<F> {
    fn drop(&mut self) {
        let (now, took) = (Instant::now(), self.begun.elapsed());
        if took < SLOW {
            return;
        }
        let told = TOLD.lock().entry(self.op).or_default().one(now);
        // Not under the lock: the log may take its time.
        if let Some(untold) = told {
            (self.tell)(Slow { ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX), untold });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_counted_and_not_told() {
        let mut told = Told::default();
        let now = Instant::now();
        for _ in 0..MOST {
            assert_eq!(told.one(now), Some(0));
        }
        assert_eq!((told.one(now), told.one(now + WINDOW)), (None, None));
        let later = now + WINDOW + Duration::from_millis(1);
        assert_eq!(told.one(later), Some(2), "two were not");
        assert_eq!(told.one(later), Some(0));
    }
}
