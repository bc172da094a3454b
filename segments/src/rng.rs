//! All random choices of a mount, from one seed.

use rand::rngs::StdRng;
use rand::{Rng as _, RngCore, SeedableRng};
use std::time::Duration;
use weft_net::sync::Mutex;

/// A generator that a whole process shares.
pub struct Rng(Mutex<StdRng>);

impl Rng {
    /// Begins with `seed`; `None`: from the operating system.
    pub fn new(seed: Option<u64>) -> Self {
        Self(Mutex::new(seed.map_or_else(StdRng::from_os_rng, StdRng::seed_from_u64)))
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&self, n: usize) -> usize {
        if n < 2 { 0 } else { self.0.lock().random_range(0..n) }
    }

    /// 16 random bytes.
    pub fn nonce(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        self.0.lock().fill_bytes(&mut bytes);
        bytes
    }

    /// How long to wait before attempt `n` (from 0): about 10 ms doubling to about half a second,
    /// spread so that clients that failed together do not come back together.
    pub fn backoff(&self, n: u32) -> Duration {
        let top = 10u64 << n.min(6);
        Duration::from_millis(top / 2 + self.below(top as usize) as u64)
    }
}
