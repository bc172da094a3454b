//! The leader's right to answer reads without asking anyone.
//!
//! A ReadIndex round that a majority confirmed proves that at the moment it was *sent* nobody else
//! led, and each of that majority then refuses to elect another leader for some time
//! ([`Config::least_silence`](crate::config::Config); a restarted server too, see
//! [`super::driver`]). So reads may be answered until sent + a part of that; the rest covers clocks
//! that run at different speed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// The part of that time that a lease lasts.
const PART: f64 = 0.8;

/// Read by all tasks, written by the event loop.
pub struct Lease {
    origin: Instant,
    /// Nanoseconds that it lasts.
    length: AtomicU64,
    /// Nanoseconds after `origin` until which reads may be answered; 0: not at all.
    until: AtomicU64,
    used: AtomicBool,
}

impl Lease {
    pub fn new(least_silence: Duration) -> Self {
        let lease = Self {
            origin: Instant::now(),
            length: AtomicU64::new(0),
            until: AtomicU64::new(0),
            used: AtomicBool::new(false),
        };
        lease.count_on(least_silence);
        lease
    }

    /// Everybody in the group, this server too, elects no other for so long after it has heard of
    /// the leader.
    pub fn count_on(&self, least_silence: Duration) {
        self.length.store(least_silence.mul_f64(PART).as_nanos() as u64, Ordering::Relaxed);
    }

    /// Whether reads may be answered now.
    pub fn holds(&self, now: Instant) -> bool {
        self.used.store(true, Ordering::Relaxed);
        self.nanos(now) < self.until.load(Ordering::Acquire)
    }

    /// A round that was sent at `sent` was confirmed.
    pub fn extend(&self, sent: Instant) {
        let length = Duration::from_nanos(self.length.load(Ordering::Relaxed));
        self.until.fetch_max(self.nanos(sent + length), Ordering::Release);
    }

    /// This server no longer leads.
    pub fn end(&self) {
        self.until.store(0, Ordering::Release);
    }

    /// Whether reads came since the last call.
    pub fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    fn nanos(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.origin).as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_from_the_sending_and_ends_with_the_term() {
        let lease = Lease::new(Duration::from_millis(1000));
        let sent = Instant::now() + Duration::from_millis(10);
        assert!(!lease.holds(sent));
        lease.extend(sent);
        assert!(lease.holds(sent + Duration::from_millis(799)));
        assert!(!lease.holds(sent + Duration::from_millis(801)));
        lease.extend(sent - Duration::from_millis(5));
        assert!(lease.holds(sent + Duration::from_millis(799)), "an older round shortens nothing");
        lease.end();
        assert!(!lease.holds(sent));
        lease.count_on(Duration::from_millis(500));
        lease.extend(sent);
        assert!(lease.holds(sent + Duration::from_millis(399)));
        assert!(!lease.holds(sent + Duration::from_millis(401)));
    }
}
