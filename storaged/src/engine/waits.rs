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
    use std::path::Path;
    use std::sync::mpsc::{Receiver, channel};
    use tokio::task::JoinHandle;

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

    fn engine(dir: &Path) -> Engine {
        let options = TargetOptions::new(dir.join("target"), Some(64 << 20));
        Engine::format(&options, &Content::Blank).unwrap();
        Engine::open(&options).unwrap()
    }

    /// Looks into an index that hang until the channel is closed.
    async fn hang(engine: &Engine, looks: usize, held: Receiver<()>) -> Vec<JoinHandle<()>> {
        let held = Arc::new(Mutex::new(held));
        let look = || {
            let (core, held) = (engine.core.clone(), held.clone());
            let waits = core.index.waits.clone();
            let hangs = move || {
                let _wait = waits.begin();
                let _ = held.lock().recv();
                Ok(())
            };
            tokio::spawn(async move { core.blocking(hangs).await.unwrap() })
        };
        let looks: Vec<_> = (0..looks).map(|_| look()).collect();
        soon(|| engine.core.lookups.available_permits() == 0 && stalls(engine)).await;
        looks
    }

    fn stalls(engine: &Engine) -> bool {
        !engine.stalled().is_zero()
    }

    async fn soon(is: impl Fn() -> bool) {
        let comes = async {
            while !is() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), comes).await.expect("it is not so");
    }

    /// It is told, and takes no more threads than its own of the pool that all targets share.
    #[test]
    fn an_index_that_hangs_keeps_no_other_target_from_its_threads() {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(dir.path());
        let rt = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(MAX_LOOKUPS + 1)
            .enable_all()
            .build()
            .unwrap();
        rt.block_on(async {
            let (hold, held) = channel();
            let looks = hang(&engine, MAX_LOOKUPS + 8, held).await;
            let other = tokio::task::spawn_blocking(|| ());
            tokio::time::timeout(Duration::from_secs(60), other).await.unwrap().unwrap();
            drop(hold);
            for look in looks {
                look.await.unwrap();
            }
        });
        assert!(!stalls(&engine));
    }

    /// More than there are threads for: who gets none is told like who has them, and all of them
    /// can be closed.
    #[test]
    fn indexes_that_have_taken_all_threads_are_told_and_closed() {
        let dirs: [_; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        let engines = dirs.each_ref().map(|dir| engine(dir.path()));
        let rt = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(2 * MAX_LOOKUPS)
            .enable_all()
            .build()
            .unwrap();
        rt.block_on(async {
            let [first, second, third] = &engines;
            let ((hold, held), (hold_too, held_too)) = (channel(), channel());
            let mut looks = hang(first, MAX_LOOKUPS, held).await;
            looks.extend(hang(second, MAX_LOOKUPS, held_too).await);
            let core = third.core.clone();
            looks.push(tokio::spawn(async move { core.blocking(|| Ok(())).await.unwrap() }));
            soon(|| stalls(third)).await;
            for engine in &engines {
                let closed = tokio::time::timeout(Duration::from_secs(60), engine.close()).await;
                closed.expect("it is not closed").unwrap();
            }
            drop((hold, hold_too));
            for look in looks {
                look.await.unwrap();
            }
        });
    }
}
