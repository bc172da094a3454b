//! How far the leader has purged inodes without names: who needs what they take waits for that.

use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};

/// How long a request waits for a purge.
const PATIENCE: Duration = Duration::from_secs(2);

/// What was on the list of orphans when so many had ever been put there
/// ([`crate::state::StateMachine::orphaned`]) is gone, but for those that somebody has open.
pub struct Purged {
    /// Nothing is known yet without.
    until: watch::Sender<Option<u64>>,
    wanted: Notify,
}

impl Default for Purged {
    fn default() -> Self {
        Self { until: watch::Sender::new(None), wanted: Notify::new() }
    }
}

impl Purged {
    /// The list was gone through from its beginning, after so many had been put there.
    pub fn tell(&self, put: u64) {
        self.until.send_modify(|until| *until = Some(put).max(*until));
    }

    /// Sleeps until somebody waits, or for so long.
    pub async fn sleep(&self, interval: Duration) {
        let _ = timeout(interval, self.wanted.notified()).await;
    }

    /// Waits for the list to be gone through that so many had been put on, if that does not take
    /// long.
    pub async fn wait(&self, put: u64, deadline: Instant) {
        let mut until = self.until.subscribe();
        if *until.borrow_and_update() < Some(put) {
            self.wanted.notify_one();
            let deadline = deadline.min(Instant::now() + PATIENCE);
            let _ = timeout_at(deadline, until.wait_for(|until| *until >= Some(put))).await;
        }
    }
}
