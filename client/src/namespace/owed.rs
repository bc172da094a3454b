//! Content whose place in the log went with its session, or was given up: its file has it still,
//! and commits it by itself, in the background.
//!
//! Invariant: what is done or synced later comes after it, as if it had its place still (I2).

use crate::meta::Sessions;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// Who could not commit it tries again so much later.
const AGAIN_INTERVAL: Duration = Duration::from_millis(200);

/// Those who have such content.
pub(crate) trait Owing: Send + Sync {
    /// Commits it, or gives it up. Answers whether nothing is left.
    fn pay(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>>;
}

/// How often content has lost its place; and how many of these times are settled.
#[derive(Clone, Copy, Default)]
struct Count {
    lost: u64,
    paid: u64,
}

pub(super) struct Owed {
    sessions: Arc<Sessions>,
    files: OnceLock<Weak<dyn Owing>>,
    count: watch::Sender<Count>,
    /// Somebody pays.
    pays: AtomicBool,
}

impl Owed {
    pub fn new(sessions: Arc<Sessions>) -> Self {
        let (files, count, pays) = Default::default();
        Self { sessions, files, count, pays }
    }

    /// Tells who has content. Only the first is taken.
    pub fn set_owing(&self, files: Weak<dyn Owing>) {
        let _ = self.files.set(files);
    }

    pub fn owe(self: &Arc<Self>) {
        self.count.send_modify(|count| count.lost += 1);
        let has_files = self.files.get().is_some();
        if has_files && !self.pays.swap(true, Ordering::SeqCst) {
            tokio::spawn(self.clone().pay_behind());
        }
    }

    /// Whether there may be content without a place.
    pub fn owes(&self) -> bool {
        let count = *self.count.borrow();
        count.lost != count.paid
    }

    async fn pay_behind(self: Arc<Self>) {
        loop {
            let Count { lost, paid } = *self.count.borrow();
            if lost == paid {
                self.pays.store(false, Ordering::SeqCst);
                // It may have been lost just before.
                if !self.owes() || self.pays.swap(true, Ordering::SeqCst) {
                    return;
                }
                continue;
            }
            // Without its files the mount is no more, nor without any session to come.
            let files = self.files.get().and_then(Weak::upgrade);
            let Some(files) = files.filter(|_| !self.sessions.have_ended()) else { return };
            let all = files.pay().await;
            drop(files);
            match all {
                true => self.count.send_modify(|count| count.paid = lost),
                false => sleep(AGAIN_INTERVAL).await,
            }
        }
    }

    /// Returns when all that has lost its place by now is committed, or given up.
    pub async fn paid(&self) {
        let lost = self.count.borrow().lost;
        // The sender lives as long as `self`.
        let _ = self.count.subscribe().wait_for(|count| count.paid >= lost).await;
    }
}
