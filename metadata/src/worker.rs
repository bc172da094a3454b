//! Ordered disk work beside the event loop: a thread that takes all waiting jobs at once, which is
//! what makes group commit; or, in a simulation, the same function called in place.
//!
//! Invariant: jobs are handled in the order of submission, each exactly once.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A queue of jobs of type `J` with one consumer.
pub struct Worker<J> {
    kind: Kind<J>,
}

enum Kind<J> {
    Thread { jobs: Option<Sender<J>>, thread: Option<JoinHandle<()>> },
    Inline(Box<dyn FnMut(Vec<J>) + Send>),
}

/// Most jobs that are handled in one go.
const BATCH: usize = 256;

impl<J: Send + 'static> Worker<J> {
    /// Starts a worker that calls `handle` with one or more jobs at a time.
    pub fn start(
        name: &str,
        threads: bool,
        handle: impl FnMut(Vec<J>) + Send + 'static,
    ) -> std::io::Result<Self> {
        if !threads {
            return Ok(Self { kind: Kind::Inline(Box::new(handle)) });
        }
        let (jobs, queue) = channel();
        let thread = std::thread::Builder::new()
            .name(name.to_string())
            .spawn(move || consume(queue, handle))?;
        Ok(Self { kind: Kind::Thread { jobs: Some(jobs), thread: Some(thread) } })
    }

    /// Hands over a job. False: the worker has ended (its function panicked).
    #[must_use]
    pub fn submit(&mut self, job: J) -> bool {
        match &mut self.kind {
            Kind::Thread { jobs, .. } => jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok()),
            Kind::Inline(handle) => {
                handle(vec![job]);
                true
            }
        }
    }
}

fn consume<J>(queue: Receiver<J>, mut handle: impl FnMut(Vec<J>)) {
    while let Ok(first) = queue.recv() {
        let mut batch = vec![first];
        batch.extend(queue.try_iter().take(BATCH - 1));
        handle(batch);
    }
}

impl<J> Drop for Worker<J> {
    /// Waits until what was submitted is done, so that the store it uses can be reopened.
    fn drop(&mut self) {
        if let Kind::Thread { jobs, thread } = &mut self.kind {
            jobs.take();
            if let Some(thread) = thread.take()
                && thread.join().is_err()
            {
                tracing::error!("a disk worker panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn jobs_run_in_order_and_are_finished_on_drop() {
        for threads in [true, false] {
            let (done, seen) = mpsc::channel();
            let mut worker = Worker::start("test", threads, move |jobs: Vec<u32>| {
                for job in jobs {
                    done.send(job).unwrap();
                }
            })
            .unwrap();
            assert!((0..1000).all(|i| worker.submit(i)));
            drop(worker);
            assert_eq!(seen.iter().collect::<Vec<_>>(), (0..1000).collect::<Vec<_>>());
        }
    }
}
