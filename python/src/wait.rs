//! Waits for the filesystem without the interpreter's lock.

use crate::errors::Failure;
use pyo3::prelude::*;
use std::pin::pin;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use weft_client::blocking::{ConnectOptions, Connection};
use weft_proto::{Error, ErrorKind, Result};

/// Signal handlers run no later than this after their signal.
const SIGNALS: Duration = Duration::from_millis(100);

/// Waits for a call in this thread, without the interpreter's lock. If a signal handler raises
/// something, the call is given up, as a system call that a signal interrupts.
pub fn wait<T: Send, F: Future<Output = Result<T>>>(
    py: Python<'_>,
    connection: &Connection,
    call: impl FnOnce() -> F + Send,
) -> Result<T, Failure> {
    py.detach(|| {
        connection.run(async {
            let mut call = pin!(call());
            loop {
                match tokio::time::timeout(SIGNALS, &mut call).await {
                    Ok(done) => return Ok(done.map_err(Failure::Weft)),
                    Err(_) => {
                        if let Err(raised) = Python::attach(|py| py.check_signals()) {
                            return Ok(Err(Failure::Python(raised)));
                        }
                    }
                }
            }
        })
    })?
}

/// Connects, without the interpreter's lock, in a thread that is given up if a signal handler
/// raises something: what it connects is then disconnected again.
pub fn connect(py: Python<'_>, options: ConnectOptions) -> Result<Connection, Failure> {
    let (answer, connected) = channel();
    let thread = std::thread::Builder::new().name("weft-connect".into());
    let connect = move || drop(answer.send(Connection::connect(options)));
    let failed = |e| Error::new(ErrorKind::Io, format!("cannot start a thread: {e}"));
    thread.spawn(connect).map_err(failed)?;
    py.detach(move || {
        loop {
            match connected.recv_timeout(SIGNALS) {
                Ok(done) => return done.map_err(Failure::Weft),
                Err(RecvTimeoutError::Timeout) => Python::attach(|py| py.check_signals())?,
                Err(RecvTimeoutError::Disconnected) => {
                    let what = "the thread that connects has ended";
                    return Err(Error::new(ErrorKind::Internal, what).into());
                }
            }
        }
    })
}
