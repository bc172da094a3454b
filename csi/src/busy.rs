//! One operation at a time on each volume, as the specification wants it.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::Status;

/// Who waits looks so often, and for so long at most.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(5);

/// Volumes that something is being done to.
#[derive(Clone, Default)]
pub struct Busy(Arc<Mutex<HashSet<String>>>);

/// While this is there, nobody else does anything to the volume.
pub struct Taken {
    busy: Busy,
    volume: String,
}

impl Busy {
    /// Errors: `ABORTED` if something is being done to it.
    pub fn take(&self, volume: &str) -> Result<Taken, Status> {
        self.try_take(volume).ok_or_else(|| {
            Status::aborted(format!("another call is at work on volume {volume:?}: try again"))
        })
    }

    /// As [`Self::take`], but waits a moment for who is at work on it. Errors: `ABORTED`.
    pub async fn wait(&self, volume: &str) -> Result<Taken, Status> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.take(volume) {
                Err(_) if Instant::now() < until => sleep(LOOK_INTERVAL).await,
                taken => return taken,
            }
        }
    }

    /// `None` if something is being done to it.
    pub fn try_take(&self, volume: &str) -> Option<Taken> {
        let taken = self.0.lock().insert(volume.to_owned());
        taken.then(|| Taken { busy: self.clone(), volume: volume.to_owned() })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.busy.0.lock().remove(&self.volume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_has_a_volume() {
        let busy = Busy::default();
        let first = busy.take("a").unwrap();
        assert_eq!(busy.take("a").err().map(|e| e.code()), Some(tonic::Code::Aborted));
        let other = busy.take("b").unwrap();
        drop(first);
        assert!(busy.try_take("a").is_some() && busy.try_take("b").is_none());
        drop(other);
    }
}
