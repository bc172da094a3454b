//! Whether this server stood still between two looks of a duty that acts on silence: suspended, or
//! without a processor. What others sent meanwhile is heard only afterwards, so that their silence
//! means nothing.

use super::propose::LOOK_INTERVAL;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The looks of one duty, which must not wait for anything else between them.
pub struct Looks {
    last: Instant,
}

impl Looks {
    pub fn begin() -> Self {
        Self { last: Instant::now() }
    }

    /// Waits for the next look. Answers when it is, and for how long this server stood still before
    /// it; zero: it did not.
    pub async fn next(&mut self) -> (Instant, Duration) {
        sleep(LOOK_INTERVAL).await;
        let now = Instant::now();
        let stall = now.duration_since(self.last).saturating_sub(2 * LOOK_INTERVAL);
        self.last = now;
        (now, stall)
    }
}
