//! A thread that works for a drive, and is waited for at the end only as long as that can help.

use parking_lot::Mutex;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use tokio::sync::oneshot;

/// A drive that has not answered for this long when a target is closed is not waited for: its
/// threads stay behind with what the kernel may still write to.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);

pub(super) struct Worker {
    ended: Mutex<Receiver<()>>,
}

impl Worker {
    /// Starts a thread. Errors: there are too many.
    pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (end, ended) = channel();
        let work = move || {
            let _end: Sender<()> = end; // dropped when the work is over, also by a panic
            work();
        };
        std::thread::Builder::new().name(name.into()).spawn(work)?;
        Ok(Self { ended: Mutex::new(ended) })
    }

    /// Waits for the end of the thread, unless its drive hangs. `false`: it was left behind.
    pub fn wait(&self, stalled: impl Fn() -> Duration) -> bool {
        answer(&self.ended.lock(), stalled) != Answer::Hangs
    }
}

/// Does this on a thread of its own, for what must get on when drives that hang have all those of
/// the runtime. What the work has is dropped before its answer comes; without one it has panicked.
/// Errors: there are too many threads.
pub(super) fn aside<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<oneshot::Receiver<T>> {
    let (done, answer) = oneshot::channel();
    // Who asked may be gone.
    let work = move || drop(done.send(work()));
    std::thread::Builder::new().name(name.into()).spawn(work)?;
    Ok(answer)
}

/// What came of waiting.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Answer<T> {
    Came(T),
    /// Nobody is left who could answer.
    Gone,
    /// The drive hangs.
    Hangs,
}

/// Waits for an answer that needs the drive. `stalled` says how long that has not answered.
pub(super) fn answer<T>(from: &Receiver<T>, stalled: impl Fn() -> Duration) -> Answer<T> {
    loop {
        match from.recv_timeout(LOOK) {
            Ok(answer) => return Answer::Came(answer),
            Err(RecvTimeoutError::Disconnected) => return Answer::Gone,
            Err(RecvTimeoutError::Timeout) if stalled() >= PATIENCE => return Answer::Hangs,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
