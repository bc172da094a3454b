//! Slows down who writes to a target that is almost full, the more the less room it has: what was
//! deleted is given back meanwhile, and programs get slower before they are told that there is no
//! space.
//!
//! One who writes fills what is left in no less than about [`FILL_TIME`] for each factor of three
//! that it shrinks by. Nobody waits longer than [`MAX_PAUSE`], so many at once fill it faster; nor
//! where more than a twentieth of the target is left; nor if what waits takes much of the daemon's
//! memory, in which reads have to find room, too.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

const FILL_TIME: Duration = Duration::from_secs(20);
/// Nobody is slowed down while more than one part in so many of a target is left.
const PART: u64 = 20;
/// Bytes that may be written in a second in any case.
const MIN_RATE: u64 = 4 << 20;
/// No request waits longer, and one that is smaller than this not for as long.
const MAX_PAUSE: Duration = Duration::from_secs(1);
const WHOLE: u64 = 1 << 20;
/// Most bytes that wait.
const MAX_WAITING: u64 = 128 << 20;

/// What a target can hold, and what it holds, in bytes.
pub(crate) type Space = (u64, u64);

/// Of one daemon.
#[derive(Default)]
pub(crate) struct Backpressure {
    /// From how much used on a target takes nothing new, in percent of its capacity; 0: not told.
    full_percent: AtomicU64,
    /// Some target has little room left.
    slows: AtomicBool,
    /// When each target has taken what it was sent, at the rate that it had then.
    taken: Mutex<HashMap<u32, Instant>>,
    /// Bytes of requests that wait.
    waiting: AtomicU64,
}

impl Backpressure {
    /// The leader says from how much used on a target is full; all targets of the daemon are such.
    pub fn learn(&self, full_percent: u32, targets: impl Iterator<Item = Space>) {
        self.full_percent.store(full_percent.into(), Ordering::Relaxed);
        let mut little = false;
        for (capacity, used) in targets {
            // Where a tenth is left, it may be little before the next heartbeat.
            little |= self.room((capacity, used)).is_some_and(|room| room < capacity / (PART / 2));
        }
        self.slows.store(little, Ordering::Relaxed);
    }

    /// Whether any request may have to wait.
    pub fn slows(&self) -> bool {
        self.slows.load(Ordering::Relaxed)
    }

    /// Bytes until a target takes nothing new, if that was told.
    fn room(&self, (capacity, used): Space) -> Option<u64> {
        let percent = self.full_percent.load(Ordering::Relaxed);
        let full = (u128::from(capacity) * u128::from(percent) / 100) as u64;
        (percent > 0).then(|| full.saturating_sub(used))
    }

    /// Waits before a request to store so many bytes, until this time at most.
    pub async fn wait(&self, target: u32, space: Space, bytes: u64, until: Instant) {
        let now = Instant::now();
        let pause = self.pause(now, target, space, bytes);
        if pause.is_zero() || self.waiting.load(Ordering::Relaxed) + bytes > MAX_WAITING {
            return;
        }
        let _waits = Waiting::new(&self.waiting, bytes);
        sleep_until((now + pause).min(until)).await;
    }

    fn pause(&self, now: Instant, target: u32, space: Space, bytes: u64) -> Duration {
        let (capacity, used) = space;
        let mut taken = self.taken.lock();
        let room = self.room(space).filter(|&room| room <= capacity / PART);
        // What does not fit is refused at once.
        let Some(room) = room.filter(|_| used.saturating_add(bytes) <= capacity) else {
            taken.remove(&target);
            return Duration::ZERO;
        };
        let rate = (room / FILL_TIME.as_secs()).max(MIN_RATE);
        let due = taken.get(&target).map_or(now, |at| (*at).max(now));
        let longest = MAX_PAUSE.mul_f64((bytes as f64 / WHOLE as f64).min(1.0));
        let wait = (due - now).min(longest);
        // Who has waited for so long is taken as it comes.
        let due = due.min(now + MAX_PAUSE);
        taken.insert(target, due + Duration::from_secs_f64(bytes as f64 / rate as f64));
        wait
    }
}

/// So many bytes wait until this is dropped.
struct Waiting<'a>(&'a AtomicU64, u64);

impl<'a> Waiting<'a> {
    fn new(of: &'a AtomicU64, bytes: u64) -> Self {
        of.fetch_add(bytes, Ordering::Relaxed);
        Self(of, bytes)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;

    fn told(full_percent: u32) -> Backpressure {
        let backpressure = Backpressure::default();
        backpressure.learn(full_percent, [(GIB, GIB)].into_iter());
        backpressure
    }

    /// Writes until a target is full, one request after the other; how long that took, and how long
    /// each request waited.
    fn fill(capacity: u64, from: u64) -> (Duration, Vec<Duration>) {
        let backpressure = told(95);
        let (begun, mut used, mut pauses) = (Instant::now(), from, Vec::new());
        let mut now = begun;
        while used < capacity / 100 * 95 {
            let pause = backpressure.pause(now, 1, (capacity, used), 4 * MIB);
            // The drive takes 1 GiB a second.
            now += pause + Duration::from_millis(4);
            used += 4 * MIB;
            pauses.push(pause);
        }
        (now - begun, pauses)
    }

    #[tokio::test(start_paused = true)]
    async fn a_writer_is_slowed_down_smoothly_and_never_stopped() {
        let (took, pauses) = fill(100 * GIB, 85 * GIB);
        assert!(took > FILL_TIME * 3 && took < FILL_TIME * 8, "{took:?}");
        assert!(pauses.iter().all(|pause| *pause <= MAX_PAUSE));
        let mean = |part: &[Duration]| part.iter().sum::<Duration>() / part.len() as u32;
        let slowed: Vec<_> = pauses.chunks(100).map(mean).collect();
        // Half of the way nobody notices, then it takes longer each time.
        assert_eq!(slowed[10], Duration::ZERO);
        let steps =
            slowed.windows(2).filter(|w| w[1] > w[0] * 4 && w[0] > Duration::from_millis(5));
        assert_eq!(steps.count(), 0, "{slowed:?}");
        assert!(slowed.last() > Some(&Duration::from_millis(200)), "{slowed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_not_told_when_a_target_is_full_slows_nobody_down() {
        let backpressure = told(0);
        let pause = |of: &Backpressure, room| of.pause(Instant::now(), 1, (GIB, GIB - room), room);
        assert!(!backpressure.slows());
        assert_eq!((pause(&backpressure, 0), pause(&backpressure, 0)), Default::default());
        let backpressure = told(100);
        assert!(backpressure.slows());
        assert_eq!(
            (pause(&backpressure, GIB / 2), pause(&backpressure, GIB / 2)),
            Default::default()
        );
        let twice = (pause(&backpressure, 40 * MIB), pause(&backpressure, 40 * MIB));
        assert_eq!(twice, (Duration::ZERO, MAX_PAUSE));
        // There is room again.
        let again = (pause(&backpressure, GIB / 2), pause(&backpressure, 40 * MIB));
        assert_eq!(again, Default::default());
    }

    #[tokio::test(start_paused = true)]
    async fn little_waits_little_and_what_does_not_fit_not_at_all() {
        let backpressure = told(100);
        let pause = |bytes| backpressure.pause(Instant::now(), 1, (GIB, GIB - 40 * MIB), bytes);
        assert_eq!((pause(40 * MIB), pause(WHOLE / 4)), (Duration::ZERO, MAX_PAUSE / 4));
        assert_eq!(pause(41 * MIB), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_past_a_deadline_or_with_much_of_the_memory() {
        let backpressure = told(100);
        let space = (GIB, GIB - 40 * MIB);
        let took = async |bytes, longest: Duration| {
            let begun = Instant::now();
            backpressure.wait(1, space, bytes, begun + longest).await;
            begun.elapsed()
        };
        assert_eq!(took(40 * MIB, MAX_PAUSE).await, Duration::ZERO);
        assert_eq!(took(40 * MIB, MAX_PAUSE / 4).await, MAX_PAUSE / 4);
        let waits = Waiting::new(&backpressure.waiting, MAX_WAITING);
        assert_eq!(took(MIB, MAX_PAUSE).await, Duration::ZERO);
        drop(waits);
        assert_eq!(took(40 * MIB, 2 * MAX_PAUSE).await, MAX_PAUSE);
        assert_eq!(backpressure.waiting.load(Ordering::Relaxed), 0);
    }
}
