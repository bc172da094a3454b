//! How far the leader has purged inodes without names: who needs what they take waits for that.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};

/// How long a request waits for a purge.
const PATIENCE: Duration = Duration::from_secs(2);

/// A close that its caller has seen the end of is heard of within this: the kernel tells a mount
/// later, and the mount its server later still.
const CLOSE_IN_FLIGHT: Duration = Duration::from_millis(400);

/// What was on the list of orphans when so many had ever been put there
/// ([`crate::state::StateMachine::orphaned`]) is gone, but for those that somebody has open.
pub struct Purged {
    /// Nothing is known yet without.
    until: watch::Sender<Option<u64>>,
    wanted: Notify,
    /// Requests that wait.
    waiting: AtomicUsize,
}

/// A request that waits, until this is dropped.
struct Waiting<'a>(&'a Purged);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for Purged {
    fn default() -> Self {
        let waiting = AtomicUsize::new(0);
        Self { until: watch::Sender::new(None), wanted: Notify::new(), waiting }
    }
}

impl Purged {
    fn tell(&self, put: u64) {
        self.until.send_modify(|until| *until = Some(put).max(*until));
    }

    /// Whether somebody waits for what inodes without names take.
    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
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
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let _waiting = Waiting(self);
            self.wanted.notify_one();
            let deadline = deadline.min(Instant::now() + PATIENCE);
            let _ = timeout_at(deadline, until.wait_for(|until| *until >= Some(put))).await;
        }
    }
}

/// How one leader looks through the list, again and again.
#[derive(Default)]
pub struct Looks {
    /// The one that begins the time which closes have: so many had been put on the list when it
    /// began, and at what time. Something was left of them.
    first: Option<(u64, Instant)>,
}

impl Looks {
    /// The list was gone through from its beginning. When that began, at `begun`, so many had been
    /// put there; so many are left, which somebody has open. One that was closed just before is
    /// left by mistake: open is what still is after a while, however often it is looked at.
    pub fn ended(&mut self, purged: &Purged, (put, begun): (u64, Instant), left: usize) {
        match self.first {
            _ if left == 0 => {
                purged.tell(put);
                self.first = None;
            }
            Some((_, since)) if begun < since + CLOSE_IN_FLIGHT => {}
            first => {
                if let Some((put, _)) = first {
                    purged.tell(put);
                }
                self.first = Some((put, begun));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_close_has_its_time_however_many_ask() {
        let (purged, mut looks) = (Purged::default(), Looks::default());
        let mut look = |put, left| {
            looks.ended(&purged, (put, Instant::now()), left);
            *purged.until.borrow()
        };
        for _ in 0..9 {
            assert_eq!(look(1, 1), None, "many ask, and no time has gone by");
        }
        advance(CLOSE_IN_FLIGHT / 2).await;
        assert_eq!(look(2, 2), None);
        advance(CLOSE_IN_FLIGHT / 2).await;
        assert_eq!(look(2, 2), Some(1), "the second was seen open for half the time");
        advance(CLOSE_IN_FLIGHT).await;
        assert_eq!(look(2, 2), Some(2));
        assert_eq!(look(3, 0), Some(3), "nothing is left");
        advance(CLOSE_IN_FLIGHT * 2).await;
        assert_eq!(look(4, 1), Some(3), "nobody had looked at the fourth before");
        advance(CLOSE_IN_FLIGHT).await;
        assert_eq!(look(4, 1), Some(4));
    }
}
