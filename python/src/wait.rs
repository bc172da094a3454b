//! Waits for the filesystem without the interpreter's lock.

use crate::errors::Failure;
use pyo3::ffi::Py_IsInitialized;
use pyo3::prelude::*;
use std::pin::{Pin, pin};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;
use weft_client::blocking::{ConnectOptions, Connection};
use weft_proto::{Error, ErrorKind, Result};

/// Signal handlers run no later than this after their signal.
const SIGNALS: Duration = Duration::from_millis(100);

/// Waits for a call in this thread, without the interpreter's lock. If a signal handler raises
/// something, the call is given up, as a system call that a signal interrupts.
pub fn wait<T: Send, F: Future<Output = Result<T>> + Send>(
    py: Python<'_>,
    connection: &Connection,
    call: impl FnOnce() -> F + Send,
) -> Result<T, Failure> {
    detached(py, |signals| {
        let mut call = pin!(call());
        loop {
            let turn = async { Ok(tokio::time::timeout(SIGNALS, &mut call).await) };
            if let Ok(done) = connection.run(turn)? {
                return done.map_err(Failure::Weft);
            }
            if let Some(done) = check_signals_beside(signals, connection, call.as_mut())? {
                return done.map_err(Failure::Weft);
            }
        }
    })
}

/// Lets signal handlers run, and the collector of garbage, neither of them inside of the runtime:
/// both may call the filesystem. Meanwhile another thread goes on with the call, or else one of
/// theirs could wait for ever for what this one holds. The answer of the call, if it is done.
fn check_signals_beside<T: Send, F: Future<Output = Result<T>> + Send>(
    signals: Signals,
    connection: &Connection,
    call: Pin<&mut F>,
) -> Result<Option<Result<T>>, Failure> {
    thread::scope(|scope| {
        let (checked, stop) = oneshot::channel::<()>();
        let go_on = move || {
            connection.run(async {
                tokio::select! {
                    biased;
                    done = call => Ok(Some(done)),
                    _ = stop => Ok(None),
                }
            })
        };
        // If there can be no thread, the call stands still.
        let beside = thread::Builder::new().name("weft-wait".into()).spawn_scoped(scope, go_on);
        let raised = signals.check();
        drop(checked);
        let done = beside.ok().map(thread::ScopedJoinHandle::join);
        raised?;
        match done {
            Some(Ok(done)) => Ok(done?),
            Some(Err(_)) => Err(Error::new(ErrorKind::Internal, "a call has panicked").into()),
            None => Ok(None),
        }
    })
}

/// Connects, without the interpreter's lock, in a thread that is given up if a signal handler
/// raises something: what it connects is then disconnected again.
pub fn connect(py: Python<'_>, options: ConnectOptions) -> Result<Connection, Failure> {
    apart(py, "weft-connect", move || Connection::connect(options))
}

/// Waits for what disconnects, in the same way: what a signal handler gives up is the wait.
pub fn disconnect(
    py: Python<'_>,
    end: impl FnOnce() -> Result<()> + Send + 'static,
) -> Result<Result<()>, Failure> {
    apart(py, "weft-disconnect", move || Ok(end()))
}

/// Waits for something that is done in a thread of its own.
fn apart<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let (answer, done) = channel();
    let failed = |e| Error::new(ErrorKind::Io, format!("cannot start a thread: {e}"));
    let work = move || drop(answer.send(work()));
    thread::Builder::new().name(name.into()).spawn(work).map_err(failed)?;
    detached(py, move |signals| received(signals, &done))
}

fn received<T>(signals: Signals, done: &Receiver<Result<T>>) -> Result<T, Failure> {
    loop {
        match done.recv_timeout(SIGNALS) {
            Ok(done) => return done.map_err(Failure::Weft),
            Err(RecvTimeoutError::Timeout) => signals.check()?,
            Err(RecvTimeoutError::Disconnected) => {
                let what = "the thread that was to do it has ended";
                return Err(Error::new(ErrorKind::Internal, what).into());
            }
        }
    }
}

/// Does something without the interpreter's lock.
fn detached<T: Send>(py: Python<'_>, work: impl FnOnce(Signals) -> T + Send) -> T {
    let signals = Signals { ends: is_over() };
    py.detach(|| {
        let done = work(signals);
        signals.stay_if_over();
        done
    })
}

/// Lets signal handlers run in a thread that waits.
#[derive(Clone, Copy)]
struct Signals {
    /// This is the thread that ends the interpreter: no other gets its lock by then.
    ends: bool,
}

impl Signals {
    fn check(self) -> PyResult<()> {
        self.stay_if_over();
        match self.ends {
            true => Ok(()),
            false => Python::attach(|py| py.check_signals()),
        }
    }

    /// A thread that comes back to an interpreter that is no more finds nothing but memory that was
    /// freed. It stays where it is, as those of Python do, until the process has ended.
    fn stay_if_over(self) {
        while !self.ends && is_over() {
            thread::park();
        }
    }
}

/// Whether the interpreter has ended, or is about to.
fn is_over() -> bool {
    // SAFETY: it only reads, and may be called at any time.
    unsafe { Py_IsInitialized() == 0 }
}
