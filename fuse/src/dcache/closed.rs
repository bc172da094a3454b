//! What is being taken back from the kernel: inodes whose attributes are, and directories whose
//! names are. Who asks for the attributes of such a directory to walk through it waits.

use crate::proc::walks;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Who asks waits so long before it is looked whether it walks, and twice as long until the next
/// look.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const MAX_LOOK: Duration = Duration::from_millis(100);
/// Who walks waits so long at most: a program can hold the lock of a directory for ever.
const WALK_TIMEOUT: Duration = Duration::from_secs(10);
/// And so long whoever may.
const UNKNOWN_TIMEOUT: Duration = Duration::from_millis(200);

#[derive(Default)]
pub struct Closed {
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    /// Inodes whose attributes are on their way back, and how often.
    leaving: HashMap<u64, usize>,
    /// How often each directory was closed and not opened.
    dirs: HashMap<u64, usize>,
    /// How often any was closed.
    rounds: u64,
}

impl Closed {
    /// The attributes of inodes begin to be taken back.
    pub fn leave(&self, inos: &[u64]) {
        let mut state = self.state.lock();
        inos.iter().for_each(|ino| *state.leaving.entry(*ino).or_default() += 1);
    }

    /// They are not used any more.
    pub fn left(&self, inos: &[u64]) {
        let mut state = self.state.lock();
        for ino in inos {
            if let Some(times) = state.leaving.get_mut(ino) {
                *times -= 1;
                if *times == 0 {
                    state.leaving.remove(ino);
                }
            }
        }
        drop(state);
        self.changes.send_replace(());
    }

    /// All inodes whose attributes are on their way back.
    pub fn leaving(&self) -> Vec<u64> {
        self.state.lock().leaving.keys().copied().collect()
    }

    /// Returns when the attributes of none of these are on their way back.
    pub async fn gone(&self, mut inos: Vec<u64>) {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            {
                let state = self.state.lock();
                inos.retain(|ino| state.leaving.contains_key(ino));
            }
            // The sender lives as long as this.
            if inos.is_empty() || changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// The names of a directory begin to be taken back.
    pub fn close(&self, dir: u64) {
        let mut state = self.state.lock();
        *state.dirs.entry(dir).or_default() += 1;
        state.rounds += 1;
    }

    pub fn open(&self, dir: u64) {
        let mut state = self.state.lock();
        if let Some(times) = state.dirs.get_mut(&dir) {
            *times -= 1;
            if *times == 0 {
                state.dirs.remove(&dir);
            }
        }
        drop(state);
        self.changes.send_replace(());
    }

    /// How often any directory was closed so far, and whether one is.
    pub fn rounds(&self) -> (u64, bool) {
        let state = self.state.lock();
        (state.rounds, !state.dirs.is_empty())
    }

    pub fn has(&self, dir: u64) -> bool {
        self.state.lock().dirs.contains_key(&dir)
    }

    /// Returns when nothing is on its way back.
    pub async fn emptied(&self) {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            // The sender lives as long as this.
            if self.is_empty() || changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Whether nothing is on its way back.
    pub fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.dirs.is_empty() && state.leaving.is_empty()
    }

    /// Waits until a directory is open. Answers whether it is: it need not be for a thread that
    /// walks through no directory, and may hold the lock of this one.
    pub async fn opened(&self, dir: u64, thread: u32) -> bool {
        if !self.has(dir) {
            return true;
        }
        let (begun, mut patience) = (Instant::now(), FIRST_LOOK);
        let mut look_at = begun + patience;
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            if !self.has(dir) {
                return true;
            }
            // The sender lives as long as this.
            if timeout_at(look_at, changes.changed()).await.is_ok() {
                continue;
            }
            patience = (2 * patience).min(MAX_LOOK);
            look_at += patience;
            let limit = match walks(thread).await {
                Some(false) => return false,
                Some(true) => WALK_TIMEOUT,
                None => UNKNOWN_TIMEOUT,
            };
            if begun.elapsed() >= limit {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const DIR: u64 = 7;

    #[tokio::test]
    async fn who_asks_waits_until_it_is_open_as_often_as_it_was_closed() {
        let closed = Arc::<Closed>::default();
        closed.close(DIR);
        closed.close(DIR);
        let of = closed.clone();
        let asks = tokio::spawn(async move { of.opened(DIR, 0).await });
        assert!(closed.opened(DIR + 1, 0).await);
        closed.open(DIR);
        tokio::task::yield_now().await;
        assert!(closed.has(DIR) && !asks.is_finished());
        closed.open(DIR);
        assert!(asks.await.unwrap() && closed.is_empty());
    }

    #[tokio::test]
    async fn who_is_not_known_waits_for_a_while() {
        let closed = Closed::default();
        closed.close(DIR);
        assert!(!closed.opened(DIR, 0).await);
        // No thread has this number.
        assert!(!closed.opened(DIR, u32::MAX).await);
        assert_eq!(closed.rounds(), (1, true));
        closed.open(DIR);
        assert_eq!(closed.rounds(), (1, false));
    }

    #[tokio::test]
    async fn attributes_are_waited_for_until_the_last_notice() {
        let closed = Arc::<Closed>::default();
        closed.leave(&[1, 2]);
        closed.leave(&[2]);
        let of = closed.clone();
        let gone = tokio::spawn(async move { of.gone(vec![2, 3]).await });
        closed.left(&[1, 2]);
        tokio::task::yield_now().await;
        assert!(!gone.is_finished());
        closed.left(&[2]);
        gone.await.unwrap();
        assert!(closed.leaving().is_empty());
    }
}
