//! Room for reads that look at very many records: each keeps a thread and a snapshot.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use weft_proto::{Error, ErrorKind, Result};

/// Of them at a time, at most.
const MOST: usize = 2;
/// As many may wait for their turn: they do so for long, and outlive their connections.
const MOST_WAITING: usize = 64;

pub struct LongReads {
    running: Arc<Semaphore>,
    waiting: Semaphore,
}

impl Default for LongReads {
    fn default() -> Self {
        let (running, waiting) = (Semaphore::new(MOST), Semaphore::new(MOST_WAITING));
        Self { running: Arc::new(running), waiting }
    }
}

impl LongReads {
    /// Waits for room, which is taken for as long as what this answers is kept.
    pub async fn enter(&self, deadline: Instant) -> Result<OwnedSemaphorePermit> {
        let busy = || Error::new(ErrorKind::TimedOut, "other long reads are under way");
        let _place = self.waiting.try_acquire().map_err(|_| busy())?;
        let room = timeout_at(deadline, self.running.clone().acquire_owned()).await;
        room.map_err(|_| busy())?.map_err(|_| busy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::task::JoinSet;

    #[tokio::test]
    async fn few_run_and_few_wait() {
        let reads = Arc::new(LongReads::default());
        let far = Instant::now() + Duration::from_secs(600);
        let mut running = Vec::new();
        for _ in 0..MOST {
            running.push(reads.enter(far).await.unwrap());
        }
        let mut waiting = JoinSet::new();
        for _ in 0..MOST_WAITING {
            let reads = reads.clone();
            waiting.spawn(async move { reads.enter(far).await });
        }
        while reads.waiting.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(reads.enter(far).await.unwrap_err().kind, ErrorKind::TimedOut);
        running.pop();
        let next = waiting.join_next().await.unwrap().unwrap().unwrap();
        assert_eq!(reads.waiting.available_permits(), 1);
        drop((next, running));
        while let Some(entered) = waiting.join_next().await {
            drop(entered.unwrap().unwrap());
        }
    }
}
