//! What this client knows of targets beyond the map: which failed it lately, which have no room for
//! how long a chunk, which let a read wait, and how long a read takes.
//!
//! Soft state: a target that failed is passed over for a while that doubles with each failure and
//! is trusted again after it. The map has the last word on who is down. No read waits for a target
//! that let another wait and has not answered since, so that a drive that hangs costs one hedge
//! deadline, and not one for every read.

use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;
use weft_net::sync::Mutex;
use weft_proto::TargetId;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);
const FEW_SAMPLES: u32 = 16;
const FULL: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Default)]
struct Record {
    failures: u32,
    /// It let a read wait, and is being probed.
    late: bool,
    suspect_until: Option<Instant>,
    /// The longest chunk that it has room for, in bytes, as far as is known until then.
    room: Option<(u64, Instant)>,
}

#[derive(Default)]
pub struct Health {
    targets: Mutex<HashMap<TargetId, Record>>,
    latency: Mutex<Latency>,
}

impl Health {
    /// A request to the target failed in a way that another target might not. Those that fail while
    /// it is passed over already were begun before: they are the same failure.
    pub fn failed(&self, target: TargetId) {
        let mut targets = self.targets.lock();
        let record = targets.entry(target).or_default();
        if record.suspect_until.is_some_and(|until| until > Instant::now()) {
            return;
        }
        let pause = (FIRST * (1 << record.failures.min(5))).min(LONGEST);
        record.failures = record.failures.saturating_add(1);
        record.suspect_until = Some(Instant::now() + pause);
    }

    pub fn succeeded(&self, target: TargetId) {
        if let Some(record) = self.targets.lock().get_mut(&target) {
            record.failures = 0;
            record.suspect_until = None;
        }
    }

    /// The target let a read wait: no other read does until [`Self::probed`]. Answers whether a
    /// probe is to be started, which is so once.
    pub fn lags(&self, target: TargetId) -> bool {
        let mut targets = self.targets.lock();
        !std::mem::replace(&mut targets.entry(target).or_default().late, true)
    }

    /// The probe of a late target has ended, in whatever way; what it found is noted besides.
    pub fn probed(&self, target: TargetId) {
        self.targets.lock().entry(target).or_default().late = false;
    }

    /// The target had no room for chunks of more than `longest` bytes.
    pub fn filled(&self, target: TargetId, longest: u64) {
        let mut targets = self.targets.lock();
        let (record, now) = (targets.entry(target).or_default(), Instant::now());
        let known = record.room.filter(|(_, until)| *until > now);
        record.room = Some((known.map_or(longest, |(room, _)| room.min(longest)), now + FULL));
    }

    pub fn is_suspect(&self, target: TargetId) -> bool {
        let until = self.targets.lock().get(&target).and_then(|r| r.suspect_until);
        until.is_some_and(|t| t > Instant::now())
    }

    /// Whether a read may wait for the target.
    pub fn is_prompt(&self, target: TargetId) -> bool {
        !self.targets.lock().get(&target).is_some_and(|r| r.late) && !self.is_suspect(target)
    }

    /// Whether the target may have room for a chunk of so many bytes.
    pub fn has_room(&self, target: TargetId, chunk: u64) -> bool {
        let room = self.targets.lock().get(&target).and_then(|r| r.room);
        room.is_none_or(|(longest, until)| chunk <= longest || until <= Instant::now())
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
        (0..64).for_each(|_| health.failed(target));
        assert!(health.is_suspect(target));
        tokio::time::advance(FIRST).await;
        assert!(!health.is_suspect(target), "many that fail at once count once");
        health.failed(target);
        tokio::time::advance(FIRST).await;
        assert!(health.is_suspect(target), "a second failure counts for longer");
        health.succeeded(target);
        assert!(!health.is_suspect(target));
        assert!(health.lags(target), "the first starts a probe");
        assert!(!health.lags(target));
        health.succeeded(target);
        assert!(!health.is_prompt(target), "an older answer says nothing of the probe");
        assert!(!health.is_suspect(target), "writes need not go round it");
        health.probed(target);
        assert!(health.is_prompt(target));
    }

    #[tokio::test(start_paused = true)]
    async fn a_target_is_passed_over_for_chunks_that_it_had_no_room_for() {
        let (health, target) = (Health::default(), TargetId(3));
        health.filled(target, 8192);
        health.filled(target, 65_536);
        assert!(health.has_room(target, 8192) && !health.has_room(target, 8193));
        assert!(!health.is_suspect(target));
        tokio::time::advance(FULL).await;
        assert!(health.has_room(target, 8193), "it may have been emptied");
        health.filled(target, 65_536);
        assert!(health.has_room(target, 65_536), "what was long ago does not count");
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
