//! Does what was submitted.

use super::entry::Entry;
use super::queue::{Completion, Ring};
use crate::error::{Answer, Failure, of_this_process};
use libc::ssize_t;
use std::sync::Arc;
use std::thread;

/// Most entries of one ring that are being done at a time.
const DEPTH: usize = 256;

/// Submits what is prepared. Answers how many entries it were.
pub fn submit(ring: &Arc<Ring>) -> Answer<usize> {
    of_this_process(&ring.connection)?;
    let (count, workers) = {
        let queues = &mut *ring.queues.lock();
        let count = queues.prepared.len();
        queues.waiting.extend(queues.prepared.drain(..));
        let workers = queues.waiting.len().min(DEPTH.saturating_sub(queues.workers));
        queues.workers += workers;
        (count, workers)
    };
    for _ in 0..workers {
        let worker = Worker { ring: Arc::clone(ring), counted: true };
        // If it is disconnected, the worker is dropped, and what waits is completed by that.
        let _ = ring.connection.spawn(worker.work());
    }
    Ok(count)
}

/// Takes what waits, one after the other, until there is none.
struct Worker {
    ring: Arc<Ring>,
    /// It is one of those that take what waits.
    counted: bool,
}

impl Worker {
    async fn work(mut self) {
        while let Some(begun) = self.next() {
            let Some(entry) = &begun.entry else { break };
            let result = entry.run().await;
            begun.end(result);
        }
    }

    /// Begins what waits longest. If there is none the worker counts no more, at the same moment:
    /// what is submitted after that gets another one.
    fn next(&mut self) -> Option<Begun<'_>> {
        let queues = &mut *self.ring.queues.lock();
        let Some(entry) = queues.waiting.pop_front() else {
            queues.workers -= 1;
            self.counted = false;
            return None;
        };
        queues.begun.push(entry.user_data);
        Some(Begun { ring: &self.ring, entry: Some(entry) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.counted {
            return;
        }
        let queues = &mut *self.ring.queues.lock();
        queues.workers -= 1;
        // Another one takes what waits, or there are no threads any more.
        while queues.workers == 0
            && let Some(entry) = queues.waiting.pop_front()
        {
            let result = Err(stopped());
            let Entry { user_data, file, .. } = entry;
            drop(file);
            self.ring.complete(queues, Completion { user_data, result });
        }
    }
}

/// An entry that is being done.
pub struct Begun<'a> {
    ring: &'a Ring,
    /// Until it is completed.
    entry: Option<Entry>,
}

impl Begun<'_> {
    fn end(mut self, result: Result<ssize_t, Failure>) {
        self.complete(result);
    }

    fn complete(&mut self, result: Result<ssize_t, Failure>) {
        let Some(Entry { user_data, file, .. }) = self.entry.take() else { return };
        // Whoever is told may close it, and finds that nobody else has it.
        drop(file);
        let queues = &mut *self.ring.queues.lock();
        if let Some(at) = queues.begun.iter().position(|begun| *begun == user_data) {
            queues.begun.swap_remove(at);
        }
        self.ring.complete(queues, Completion { user_data, result });
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let result = match thread::panicking() {
            true => Failure::panicked(&"while an entry of a ring was done"),
            false => stopped(),
        };
        self.complete(Err(result));
    }
}

/// Of an entry that nobody will do.
fn stopped() -> Failure {
    Failure::new(libc::ENOTCONN, "it was disconnected before this was done")
}
