//! Threads for work that may wait in the kernel, for a request that waits for other such work, here
//! or on another mount; or for a few milliseconds before.
//!
//! Invariant: no work waits for ever for work before it. [`LANES`] threads do what comes. While
//! more waits and nothing ends for [`STUCK_TIMEOUT`], all of them wait in the kernel, and as many
//! again are begun. So there are at most twice as many threads as there is work that waits in the
//! kernel, or [`LANES`], and never more than [`MAX_LANES`]; each costs a stack of [`STACK`] bytes
//! and the kernel's own. They end when nothing is left to do.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::runtime::Handle;

/// Threads that are begun at once.
const LANES: usize = 64;
/// Threads at most: so many pages that wait at a time are a read of lost data that is taken back
/// again and again, and no mount that waits for another.
const MAX_LANES: usize = 4096;
const STUCK_TIMEOUT: Duration = Duration::from_millis(10);
/// Bytes.
const STACK: usize = 128 << 10;

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    threads: usize,
    /// How much work has ended.
    ended: u64,
    /// Somebody looks whether any ends.
    watched: bool,
    /// That there are no more threads was said.
    told: bool,
}

impl State {
    /// Once, until all of it was done.
    fn tell(&mut self, why: &dyn fmt::Display) {
        if !std::mem::replace(&mut self.told, true) {
            tracing::warn!("{} notices to the kernel wait: {why}", self.waiting.len());
        }
    }
}

pub struct Lanes {
    state: Mutex<State>,
    runtime: Handle,
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes").field("threads", &self.state.lock().threads).finish_non_exhaustive()
    }
}

impl Lanes {
    /// Nothing more is begun after the runtime has ended.
    pub fn new(runtime: Handle) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), runtime })
    }

    /// Has `work` done soon. Does not wait.
    pub fn run(self: &Arc<Self>, work: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.waiting.push_back(Box::new(work));
        if state.threads < LANES {
            state.threads += 1;
            let lanes = self.clone();
            // It is mostly done at once, and the runtime has a thread at hand.
            drop(self.runtime.spawn_blocking(move || lanes.serve()));
        } else if !std::mem::replace(&mut state.watched, true) {
            self.runtime.spawn(self.clone().watch());
        }
    }

    /// Whether nothing is done, nor waits.
    pub fn are_idle(&self) -> bool {
        let state = self.state.lock();
        state.threads == 0 && state.waiting.is_empty()
    }

    /// Does what waits until nothing does.
    fn serve(&self) {
        while let Some(work) = self.next() {
            work();
            self.state.lock().ended += 1;
        }
    }

    fn next(&self) -> Option<Work> {
        let mut state = self.state.lock();
        let next = state.waiting.pop_front();
        state.threads -= usize::from(next.is_none());
        next
    }

    /// Looks after what waits, as long as something does.
    async fn watch(self: Arc<Self>) {
        let mut seen = None;
        loop {
            tokio::time::sleep(STUCK_TIMEOUT).await;
            let state = &mut *self.state.lock();
            if state.waiting.is_empty() {
                (state.watched, state.told) = (false, false);
                return;
            }
            if seen.replace(state.ended) == Some(state.ended) {
                self.grow(state);
            }
        }
    }

    fn grow(self: &Arc<Self>, state: &mut State) {
        let room = MAX_LANES.saturating_sub(state.threads);
        for _ in 0..state.threads.min(state.waiting.len()).min(room) {
            let lanes = self.clone();
            let thread = thread::Builder::new().name("weft-notice".into()).stack_size(STACK);
            if let Err(error) = thread.spawn(move || lanes.serve()) {
                state.tell(&error);
                return;
            }
            state.threads += 1;
        }
        if room == 0 {
            state.tell(&"there are too many threads");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// The first wait for the last, as two mounts do that take pages from each other.
    #[tokio::test]
    async fn no_work_waits_for_work_before_it() {
        const MANY: usize = 5 * LANES;
        let lanes = Lanes::new(Handle::current());
        let (done, all) = mpsc::channel();
        let mut waits: Vec<mpsc::Sender<()>> = Vec::new();
        for _ in 0..MANY {
            let (go, wait) = mpsc::channel();
            let done = done.clone();
            waits.push(go);
            lanes.run(move || {
                // Ends when the sender is dropped.
                let _ = wait.recv();
                let _ = done.send(());
            });
        }
        lanes.run(move || drop(waits));
        let all = tokio::task::spawn_blocking(move || {
            (0..MANY).try_for_each(|_| all.recv_timeout(Duration::from_secs(120)))
        });
        all.await.unwrap().expect("work waits for work behind it");
        while lanes.state.lock().threads > 0 {
            tokio::task::yield_now().await;
        }
    }
}
