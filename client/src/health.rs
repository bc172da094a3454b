//! What this client knows of targets beyond the map: which failed it lately, which are full, and
//! how long a read takes.
//!
//! Soft state: a target that failed is passed over for a while that doubles with each failure and
//! is trusted again after it. The map has the last word on who is down.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::TargetId;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);
const FEW_SAMPLES: u32 = 16;
const MOST_LAGS: u32 = 3;
const FULL: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Default)]
struct Record {
    failures: u32,
    /// Reads in a row that did not wait for its answer.
    lags: u32,
    suspect_until: Option<Instant>,
    full_until: Option<Instant>,
}

#[derive(Default)]
pub(crate) struct Health {
    targets: Mutex<HashMap<TargetId, Record>>,
    latency: Mutex<Latency>,
}

impl Health {
    /// A request to the target failed in a way that another target might not.
    pub fn failed(&self, target: TargetId) {
        let mut targets = self.targets.lock();
        let record = targets.entry(target).or_default();
        let pause = (FIRST * (1 << record.failures.min(5))).min(LONGEST);
        record.failures = record.failures.saturating_add(1);
        record.suspect_until = Some(Instant::now() + pause);
    }

    pub fn succeeded(&self, target: TargetId) {
        if let Some(record) = self.targets.lock().get_mut(&target) {
            record.failures = 0;
            record.lags = 0;
            record.suspect_until = None;
        }
    }

    /// A read was done before the target answered. One that hangs would make every read wait to be
    /// hedged, so one that lags again and again counts as failed.
    pub fn lagged(&self, target: TargetId) {
        let lags = {
            let mut targets = self.targets.lock();
            let record = targets.entry(target).or_default();
            record.lags = record.lags.saturating_add(1);
            record.lags
        };
        if lags >= MOST_LAGS {
            self.failed(target);
        }
    }

    /// The target had no room.
    pub fn filled(&self, target: TargetId) {
        self.targets.lock().entry(target).or_default().full_until = Some(Instant::now() + FULL);
    }

    pub fn is_suspect(&self, target: TargetId) -> bool {
        let until = self.targets.lock().get(&target).and_then(|r| r.suspect_until);
        until.is_some_and(|t| t > Instant::now())
    }

    pub fn is_full(&self, target: TargetId) -> bool {
        let until = self.targets.lock().get(&target).and_then(|r| r.full_until);
        until.is_some_and(|t| t > Instant::now())
    }

    /// A read of `len` bytes took `time`.
    pub fn took(&self, len: u64, time: Duration) {
        self.latency.lock().add(time.div_f64(size_factor(len)));
    }

    /// When a read of `len` bytes counts as slow: three times what all but one in a hundred take,
    /// at least `floor`, and more while there is little to go by.
    pub fn slow_after(&self, len: u64, floor: Duration) -> Duration {
        let latency = self.latency.lock();
        let floor = if latency.samples < FEW_SAMPLES { floor * 5 } else { floor };
        latency.p99.mul_f64(3.0 * size_factor(len)).max(floor)
    }
}

/// Time grows with size from about this many bytes on.
fn size_factor(len: u64) -> f64 {
    1.0 + len as f64 / f64::from(1 << 20)
}

/// A running estimate of the 99th percentile: up by much when a sample lies above, down by little
/// when it lies below, so that one in a hundred balances.
#[derive(Default)]
struct Latency {
    p99: Duration,
    samples: u32,
}

impl Latency {
    fn add(&mut self, sample: Duration) {
        self.samples = self.samples.saturating_add(1);
        if self.p99.is_zero() {
            self.p99 = sample;
        } else if sample > self.p99 {
            // A reader that waits out one hung target must not teach the others to wait as long.
            self.p99 += (sample - self.p99).min(self.p99).mul_f64(0.5);
        } else {
            self.p99 = self.p99.mul_f64(1.0 - 0.005);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn suspicion_decays_and_doubles() {
        let (health, target) = (Health::default(), TargetId(3));
        assert!(!health.is_suspect(target));
        health.failed(target);
        assert!(health.is_suspect(target));
        tokio::time::advance(FIRST).await;
        assert!(!health.is_suspect(target));
        health.failed(target);
        tokio::time::advance(FIRST).await;
        assert!(health.is_suspect(target), "a second failure counts for longer");
        health.succeeded(target);
        assert!(!health.is_suspect(target));
        (1..MOST_LAGS).for_each(|_| health.lagged(target));
        assert!(!health.is_suspect(target));
        health.lagged(target);
        assert!(health.is_suspect(target));
        health.succeeded(target);
        health.lagged(target);
        assert!(!health.is_suspect(target), "an answer in time starts the count again");
        health.filled(target);
        assert!(health.is_full(target) && !health.is_suspect(target));
    }

    #[test]
    fn the_estimate_settles_near_the_99th_percentile() {
        let health = Health::default();
        for i in 0..20_000u64 {
            let ms = if i % 100 == 99 { 50 } else { 1 + i % 5 };
            health.took(0, Duration::from_millis(ms));
        }
        let slow = health.slow_after(0, Duration::ZERO);
        assert!(slow > Duration::from_millis(9) && slow < Duration::from_millis(90), "{slow:?}");
        assert_eq!(health.slow_after(0, Duration::from_secs(1)), Duration::from_secs(1));
    }
}
