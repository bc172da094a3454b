//! What this client knows of targets beyond the map: which failed it lately, which have no room for
//! how long a chunk, which let a read wait, and how long a read takes.
//!
//! Soft state: a target that failed is passed over for a while that doubles with each failure and
//! is trusted again after it, or when it has done what it failed at: one that answers reads may
//! take no writes. The map has the last word on who is down. No read waits for a target
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

/// A target says for so long that it does not know who asks before it has failed: it learns of a
/// new leader's tickets within moments, unless its clock is wrong, or it hears of no leader.
const TICKET_PATIENCE: Duration = Duration::from_secs(5);

/// What is asked of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    Read,
    Put,
}

#[derive(Clone, Copy, Default)]
struct Failures {
    count: u32,
    suspect_until: Option<Instant>,
    /// Since when it has taken no tickets, and when that was noted last.
    no_tickets: Option<(Instant, Instant)>,
}

#[derive(Clone, Copy, Default)]
struct Record {
    reads: Failures,
    puts: Failures,
    /// It let a read wait, and is being probed.
    late: bool,
    /// The longest chunk that it has room for, in bytes, as far as is known until then.
    room: Option<(u64, Instant)>,
}

impl Record {
    fn failures(&mut self, at: Use) -> &mut Failures {
        match at {
            Use::Read => &mut self.reads,
            Use::Put => &mut self.puts,
        }
    }
}

impl Failures {
    fn is_suspect(&self) -> bool {
        self.suspect_until.is_some_and(|until| until > Instant::now())
    }

    fn add(&mut self) {
        if self.is_suspect() {
            return;
        }
        let pause = (FIRST * (1 << self.count.min(5))).min(LONGEST);
        self.count = self.count.saturating_add(1);
        self.suspect_until = Some(Instant::now() + pause);
    }
}

#[derive(Default)]
pub struct Health {
    targets: Mutex<HashMap<TargetId, Record>>,
    latency: Mutex<Latency>,
}

impl Health {
    /// A request to the target failed in a way that another target might not. Those that fail while
    /// it is passed over already were begun before: they are the same failure.
    pub fn failed(&self, target: TargetId, at: Use) {
        self.targets.lock().entry(target).or_default().failures(at).add();
    }

    /// The target took no ticket for a request.
    pub fn took_no_ticket(&self, target: TargetId, at: Use) {
        let mut targets = self.targets.lock();
        let failures = targets.entry(target).or_default().failures(at);
        let now = Instant::now();
        let lasts = failures.no_tickets.filter(|(_, last)| now - *last < 2 * TICKET_PATIENCE);
        let since = lasts.map_or(now, |(since, _)| since);
        failures.no_tickets = Some((since, now));
        if failures.count > 0 || now - since >= TICKET_PATIENCE {
            failures.add();
        }
    }

    pub fn succeeded(&self, target: TargetId, at: Use) {
        if let Some(record) = self.targets.lock().get_mut(&target) {
            *record.failures(at) = Failures::default();
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

    /// Whether it failed lately, at whatever.
    pub fn is_suspect(&self, target: TargetId) -> bool {
        let suspect = |r: &Record| r.reads.is_suspect() || r.puts.is_suspect();
        self.targets.lock().get(&target).is_some_and(suspect)
    }

    /// Whether a read may wait for the target.
    pub fn is_prompt(&self, target: TargetId) -> bool {
        let waits = |r: &Record| r.late || r.reads.is_suspect();
        !self.targets.lock().get(&target).is_some_and(waits)
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
        (0..64).for_each(|_| health.failed(target, Use::Read));
        assert!(health.is_suspect(target));
        tokio::time::advance(FIRST).await;
        assert!(!health.is_suspect(target), "many that fail at once count once");
        health.failed(target, Use::Read);
        tokio::time::advance(FIRST).await;
        assert!(health.is_suspect(target), "a second failure counts for longer");
        health.succeeded(target, Use::Read);
        assert!(!health.is_suspect(target));
        health.failed(target, Use::Put);
        assert!(health.is_suspect(target) && health.is_prompt(target), "it may be read");
        health.succeeded(target, Use::Read);
        assert!(health.is_suspect(target), "that says nothing of writes");
        health.succeeded(target, Use::Put);
        assert!(!health.is_suspect(target));
        assert!(health.lags(target), "the first starts a probe");
        assert!(!health.lags(target));
        health.succeeded(target, Use::Read);
        assert!(!health.is_prompt(target), "an older answer says nothing of the probe");
        assert!(!health.is_suspect(target), "writes need not go round it");
        health.probed(target);
        assert!(health.is_prompt(target));
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_no_tickets_for_long_has_failed() {
        let (health, target) = (Health::default(), TargetId(3));
        for _ in 0..2 {
            health.took_no_ticket(target, Use::Put);
            assert!(!health.is_suspect(target), "there may be a new leader");
            tokio::time::advance(TICKET_PATIENCE).await;
            health.took_no_ticket(target, Use::Put);
            assert!(health.is_suspect(target));
            health.succeeded(target, Use::Put);
        }
        health.took_no_ticket(target, Use::Put);
        tokio::time::advance(3 * TICKET_PATIENCE).await;
        health.took_no_ticket(target, Use::Put);
        assert!(!health.is_suspect(target), "nobody had asked meanwhile");
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
