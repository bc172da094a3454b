//! How much clients ask of each target, and how long that takes: told with heartbeats, so that the
//! metadata leader sees which drives are busy, and which are slow.

use parking_lot::RwLock;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::v1;

/// Heartbeats over which rates are told: about five seconds.
const BEATS: usize = 10;

/// What a client does with a target.
#[derive(Clone, Copy)]
pub(crate) enum Asked {
    Read,
    Write,
}

/// Counts of one kind of request since the daemon started.
#[derive(Clone, Copy, Default)]
struct Sums {
    requests: u64,
    bytes: u64,
    us: u64,
}

#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    bytes: AtomicU64,
    us: AtomicU64,
}

impl Counts {
    fn sums(&self) -> Sums {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Sums { requests: get(&self.requests), bytes: get(&self.bytes), us: get(&self.us) }
    }
}

#[derive(Default)]
struct OfTarget {
    reads: Counts,
    writes: Counts,
    waiting: AtomicU64,
    past: parking_lot::Mutex<VecDeque<(Instant, Sums, Sums)>>,
}

/// What was asked of the targets of this daemon.
#[derive(Default)]
pub(crate) struct Load(RwLock<BTreeMap<u32, Arc<OfTarget>>>);

/// Reads or writes that are served together. Dropped without [`Serving::done`], they were not.
pub(crate) struct Serving {
    of: Arc<OfTarget>,
    asked: Asked,
    requests: u64,
    begun: Instant,
}

impl Load {
    /// A client asks so much at once of a target that is served here.
    pub fn begin(&self, target: u32, asked: Asked, requests: u64) -> Serving {
        let known = self.0.read().get(&target).cloned();
        let of = known.unwrap_or_else(|| self.0.write().entry(target).or_default().clone());
        of.waiting.fetch_add(requests, Ordering::Relaxed);
        Serving { of, asked, requests, begun: Instant::now() }
    }

    /// What was asked of a target since some heartbeats ago; called once with each of them.
    pub fn tell(&self, target: u32, now: Instant) -> Option<v1::TargetLoad> {
        let of = self.0.read().get(&target).cloned()?;
        let (reads, writes) = (of.reads.sums(), of.writes.sums());
        let mut past = of.past.lock();
        past.push_back((now, reads, writes));
        if past.len() > BEATS + 1 {
            past.pop_front();
        }
        let (begun, read_before, written_before) = *past.front()?;
        let took = now.saturating_duration_since(begun).max(Duration::from_millis(500));
        let a_second = |n: u64| (n as f64 / took.as_secs_f64()).round() as u64;
        let mean = |now: Sums, before: Sums| {
            (now.us - before.us).checked_div(now.requests - before.requests).unwrap_or(0)
        };
        Some(v1::TargetLoad {
            reads_per_s: a_second(reads.requests - read_before.requests),
            writes_per_s: a_second(writes.requests - written_before.requests),
            read_bytes_per_s: a_second(reads.bytes - read_before.bytes),
            written_bytes_per_s: a_second(writes.bytes - written_before.bytes),
            read_us: mean(reads, read_before),
            write_us: mean(writes, written_before),
            waiting: of.waiting.load(Ordering::Relaxed),
        })
    }
}

impl Serving {
    /// They were served, with so many bytes together; each took all that time.
    pub fn done(self, bytes: u64) {
        let counts = match self.asked {
            Asked::Read => &self.of.reads,
            Asked::Write => &self.of.writes,
        };
        let us = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        counts.us.fetch_add(us.saturating_mul(self.requests), Ordering::Relaxed);
        counts.bytes.fetch_add(bytes, Ordering::Relaxed);
        counts.requests.fetch_add(self.requests, Ordering::Relaxed);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.of.waiting.fetch_sub(self.requests, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    #[tokio::test(start_paused = true)]
    async fn rates_are_those_of_late_and_what_waits_is_counted() {
        let load = Load::default();
        assert_eq!(load.tell(1, Instant::now()), None, "nobody asked");
        for _ in 0..20 {
            let one = load.begin(1, Asked::Read, 1);
            sleep(Duration::from_millis(10)).await;
            one.done(1000);
            sleep(Duration::from_millis(490)).await;
            load.tell(1, Instant::now());
        }
        let _waits = load.begin(1, Asked::Write, 1);
        let told = load.tell(1, Instant::now()).unwrap();
        assert_eq!((told.reads_per_s, told.read_bytes_per_s, told.read_us), (2, 2000, 10_000));
        assert_eq!((told.writes_per_s, told.write_us, told.waiting), (0, 0, 1));
        for _ in 0..BEATS {
            sleep(Duration::from_millis(500)).await;
            load.tell(1, Instant::now());
        }
        let told = load.tell(1, Instant::now()).unwrap();
        assert_eq!((told.reads_per_s, told.read_us), (0, 0), "that is past");
    }
}
