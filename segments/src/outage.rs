//! Says what is waited for, where it takes long: operations of a mount wait for the cluster as long
//! as it takes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tracing::{info, warn};
use weft_net::sync::Mutex;

/// What takes no longer is not worth a word.
const LONG: Duration = Duration::from_secs(5);
/// What goes on is told again after this long, whoever waits for it.
const REMIND_INTERVAL: Duration = Duration::from_secs(60);

/// One thing that many may wait for at a time.
#[derive(Default)]
pub struct Outage {
    told: Mutex<Option<Instant>>,
    is_told: AtomicBool,
}

impl Outage {
    /// Somebody has waited `since` then, and goes on to. Answers whether that was worth a line.
    pub fn waits(&self, since: Instant, what: impl FnOnce() -> String) -> bool {
        let now = Instant::now();
        let mut told = self.told.lock();
        let is_due = told.is_none_or(|at| now - at >= REMIND_INTERVAL) && now - since >= LONG;
        if is_due {
            *told = Some(now);
            self.is_told.store(true, Ordering::Relaxed);
            warn!("waiting for {} s: {}", (now - since).as_secs(), what());
        }
        is_due
    }

    /// What was waited for is there.
    pub fn over(&self, what: &str) {
        if self.is_told.load(Ordering::Relaxed) && self.is_told.swap(false, Ordering::Relaxed) {
            *self.told.lock() = None;
            info!("{what}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_is_told_once_a_minute_until_it_is_over() {
        let (outage, since) = (Outage::default(), Instant::now());
        let mut told = Vec::new();
        for second in 0..130 {
            if outage.waits(since, String::new) {
                told.push(second);
            }
            // Another, who has just begun.
            assert!(!outage.waits(Instant::now(), String::new));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(told, [5, 65, 125]);
        outage.over("there");
        assert!(outage.waits(since, String::new));
    }
}
