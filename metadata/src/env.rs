//! What a node takes from the world besides the network: wall time, randomness, threads.
//!
//! Invariant: nothing else in this crate asks for wall time, entropy or a thread, and monotonic
//! time is `tokio::time`. So one seed and one simulated network replay a run exactly.

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use weft_proto::{Error, ErrorKind, Result};

/// Wall time.
pub trait Clock: Send + Sync + 'static {
    /// Nanoseconds since 1970.
    fn now_ns(&self) -> i64;
}

/// The machine's clock.
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods)] // This is the clock that others are told to use.
    fn now_ns(&self) -> i64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
    }
}

/// The seams of one node.
#[derive(Clone)]
pub struct Env {
    pub clock: Arc<dyn Clock>,
    /// Where the node's randomness (election timeouts, the cluster's identity) starts.
    pub seed: u64,
    /// Whether disk work runs on threads of its own. A simulation runs it in place, in order.
    pub threads: bool,
}

impl Env {
    /// The real world: the machine's clock, entropy, threads.
    pub fn real() -> Self {
        Self { clock: Arc::new(SystemClock), seed: rand::rng().next_u64(), threads: true }
    }

    /// A generator for one purpose, independent of the others of this node.
    pub fn rng(&self, purpose: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// What nobody outside can guess.
    pub fn secret(&self) -> [u8; 32] {
        let mut secret = [0; 32];
        match self.threads {
            true => rand::rng().fill_bytes(&mut secret),
            false => self.rng(0x7177).fill_bytes(&mut secret),
        }
        secret
    }

    /// Runs blocking work without holding up the runtime.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if !self.threads {
            return work();
        }
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|e| Error::new(ErrorKind::Internal, format!("disk work ended early: {e}")))?
    }
}
