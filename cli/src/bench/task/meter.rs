//! The clock of a task, and what it counts.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What was done, and how long it took.
#[derive(Serialize, Deserialize, Clone, Default, Debug)]
pub struct Outcome {
    pub bytes: u64,
    pub operations: u64,
    pub seconds: f64,
    /// Of each operation, where operations are what counts.
    pub latencies_us: Vec<f32>,
    /// Bytes that were copied in the memory of the client, where that is this process.
    pub copied: Option<u64>,
}

/// Starts the clock, once everything is ready.
pub type Begin<'a> = &'a mut dyn FnMut() -> Result<Meter>;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes every task of this process stop soon.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// False when the time since then is over, or the user has had enough.
pub fn goes_on(begun: Instant, limit: Duration) -> bool {
    begun.elapsed() < limit && !interrupted()
}

/// The clock of a running task.
pub struct Meter {
    begun: Instant,
    limit: Duration,
    pub outcome: Outcome,
}

impl Meter {
    pub fn new(limit: Duration) -> Self {
        Self { begun: Instant::now(), limit, outcome: Outcome::default() }
    }

    /// See [`goes_on`].
    pub fn goes_on(&self) -> bool {
        goes_on(self.begun, self.limit)
    }

    /// Counts one operation, which answers the bytes that it moved.
    pub fn operation(&mut self, act: impl FnOnce() -> Result<usize>) -> Result<()> {
        let start = Instant::now();
        let bytes = act()?;
        self.outcome.latencies_us.push(start.elapsed().as_secs_f32() * 1e6);
        self.outcome.operations += 1;
        self.outcome.bytes += bytes as u64;
        Ok(())
    }

    pub fn end(mut self) -> Outcome {
        self.outcome.seconds = self.begun.elapsed().as_secs_f64();
        self.outcome
    }
}

/// Adds the path to an I/O error.
pub fn at<T>(result: std::io::Result<T>, what: &str, path: &std::path::Path) -> Result<T> {
    result.with_context(|| format!("cannot {what} {}", path.display()))
}
