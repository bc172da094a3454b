//! Answers that the kernel may not be through with yet.

use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// The kernel is through with an answer after so long, whoever it woke.
pub const LATE_TIMEOUT: Duration = Duration::from_secs(1);

/// What the kernel may not be through with yet.
pub struct Recent<T> {
    of: HashMap<u64, (T, Instant)>,
    /// What is old is dropped when there is so much.
    limit: usize,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self { of: HashMap::new(), limit: 0 }
    }
}

impl<T> Recent<T> {
    pub fn insert(&mut self, key: u64, value: T) {
        const FEW: usize = 1 << 10;
        if self.of.len() >= self.limit {
            self.of.retain(|_, (_, since)| since.elapsed() < LATE_TIMEOUT);
            self.limit = (2 * self.of.len()).max(FEW);
        }
        self.of.insert(key, (value, Instant::now()));
    }

    pub fn remove(&mut self, key: u64) {
        if !self.of.is_empty() {
            self.of.remove(&key);
        }
    }

    /// Since when a key is in it.
    pub fn since(&self, key: u64) -> Option<Instant> {
        let since = self.of.get(&key).map(|(_, since)| *since);
        since.filter(|since| since.elapsed() < LATE_TIMEOUT)
    }

    pub fn all(&self) -> impl Iterator<Item = (u64, &T, Instant)> {
        let all = self.of.iter().map(|(key, (value, since))| (*key, value, *since));
        all.filter(|(.., since)| since.elapsed() < LATE_TIMEOUT)
    }
}
