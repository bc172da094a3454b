//! For how long the drive of the index has kept somebody waiting: it need not be the target's own,
//! and may hang alone.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Who waits now.
#[derive(Default)]
pub(super) struct Waits(Mutex<State>);

#[derive(Default)]
struct State {
    last: u64,
    /// When each began, the first first.
    since: BTreeMap<u64, Instant>,
}

/// Somebody waits until this is dropped.
pub(super) struct Wait {
    waits: Arc<Waits>,
    number: u64,
}

impl Waits {
    pub fn begin(self: &Arc<Self>) -> Wait {
        let mut state = self.0.lock();
        state.last += 1;
        let number = state.last;
        state.since.insert(number, Instant::now());
        Wait { waits: self.clone(), number }
    }

    /// How long the first of them has waited; nothing if nobody waits.
    pub fn longest(&self) -> Duration {
        let first = self.0.lock().since.first_key_value().map(|(_, since)| *since);
        first.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Wait {
    /// It was answered, and waits for the next.
    pub fn goes_on(&mut self) {
        let next = self.waits.begin();
        *self = next;
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.waits.0.lock().since.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::super::start::MAX_LOOKUPS;
    use super::super::{Content, Engine, TargetOptions};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_that_still_waits_counts() {
        let waits = Arc::new(Waits::default());
        assert_eq!(waits.longest(), Duration::ZERO);
        let first = waits.begin();
        tokio::time::advance(Duration::from_secs(3)).await;
        let second = waits.begin();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(waits.longest(), Duration::from_secs(4));
        drop(first);
        assert_eq!(waits.longest(), Duration::from_secs(1));
        drop(second);
        assert_eq!(waits.longest(), Duration::ZERO);
    }

    /// It is told, and takes no more threads than its own of the pool that all targets share.
    #[test]
    fn an_index_that_hangs_keeps_no_other_target_from_its_threads() {
        let dir = tempfile::tempdir().unwrap();
        let options = TargetOptions::new(dir.path().join("target"), Some(64 << 20));
        Engine::format(&options, &Content::Blank).unwrap();
        let engine = Engine::open(&options).unwrap();
        let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        rt.block_on(async {
            let (hold, held) = std::sync::mpsc::channel::<()>();
            let held = Arc::new(Mutex::new(held));
            let look = || {
                let (core, held) = (engine.core.clone(), held.clone());
                let waits = core.index.waits.clone();
                let hangs = move || {
                    let _wait = waits.begin();
                    let _ = held.lock().recv();
                    Ok(())
                };
                tokio::spawn(async move { core.blocking(hangs).await })
            };
            let looks: Vec<_> = (0..MAX_LOOKUPS + 8).map(|_| look()).collect();
            let stalls = async {
                while engine.core.lookups.available_permits() > 0 || engine.stalled().is_zero() {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), stalls).await.expect("nobody waits");
            tokio::task::spawn_blocking(|| ()).await.unwrap();
            drop(hold);
            for look in looks {
                look.await.unwrap().unwrap();
            }
        });
        assert!(engine.stalled().is_zero());
    }
}
