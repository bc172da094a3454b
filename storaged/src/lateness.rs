//! How late this process gets to run. Where it waits for a processor or for memory, answers are
//! late whatever the drives do, and nobody else on the machine can tell.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

const EACH: Duration = Duration::from_millis(100);
/// One of so many parts is the newest: the mean is that of about three seconds.
const WEIGHT: u64 = 32;

/// The mean of late, in microseconds.
#[derive(Default)]
pub(crate) struct Lateness(AtomicU64);

impl Lateness {
    /// Measures, and never returns.
    pub async fn measure(&self) {
        loop {
            let due = Instant::now() + EACH;
            sleep_until(due).await;
            self.note(due.elapsed());
        }
    }

    fn note(&self, late: Duration) {
        let late = u64::try_from(late.as_micros()).unwrap_or(u64::MAX / WEIGHT);
        let mean = self.0.load(Ordering::Relaxed);
        // Nobody else writes it.
        self.0.store(mean - mean / WEIGHT + late / WEIGHT, Ordering::Relaxed);
    }

    pub fn ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed) / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_late_again_and_again_is_late_and_one_that_was_once_is_not() {
        let late = Lateness::default();
        late.note(Duration::from_secs(1));
        assert!(late.ms() < 50, "{}", late.ms());
        (0..100).for_each(|_| late.note(Duration::from_millis(200)));
        assert!((180..=210).contains(&late.ms()), "{}", late.ms());
        (0..200).for_each(|_| late.note(Duration::from_millis(1)));
        assert!(late.ms() < 5, "{}", late.ms());
    }
}
