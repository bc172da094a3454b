//! What was begun for an event loop and is done.

use crate::errors::{Failure, os_error};
use crate::link::Link;
use crate::value::Value;
use crate::wait::wait;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;
use weft_client::sync::Mutex;
use weft_proto::{Error, ErrorKind, Result};

/// Calls that are done, with the numbers that they were begun with. The descriptor is readable when
/// there are some; whoever is told takes them by `drain`. Its threads take no lock of Python.
#[pyclass(frozen, module = "weft._weft")]
pub struct Completions {
    connection: Link,
    queue: Arc<Queue>,
}

struct Queue {
    done: Mutex<Vec<(u64, Result<Value>)>>,
    /// An eventfd(2).
    bell: File,
}

/// Where the answer of a call goes if nobody waits for it: a queue, and the number of the call.
pub type Later<'py> = (PyRef<'py, Completions>, u64);

impl Queue {
    fn push(&self, number: u64, outcome: Result<Value>) {
        let mut done = self.done.lock();
        done.push((number, outcome));
        if done.len() == 1 {
            // It can fail only if it has been rung 2^64 times.
            let _ = (&self.bell).write(&1_u64.to_ne_bytes());
        }
    }

    fn take(&self) -> Vec<(u64, Result<Value>)> {
        let mut done = self.done.lock();
        // Nothing to read if nobody has rung.
        let _ = (&self.bell).read(&mut [0; 8]);
        std::mem::take(&mut done)
    }
}

/// The answer that is owed for a call that was begun.
struct Promise {
    queue: Arc<Queue>,
    number: u64,
    kept: bool,
}

impl Promise {
    fn keep(mut self, outcome: Result<Value>) {
        self.kept = true;
        self.queue.push(self.number, outcome);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        // The connection has ended, and dropped the call where it stood.
        if !self.kept {
            let what = "it was disconnected before the call was done";
            self.queue.push(self.number, Err(Error::new(ErrorKind::Disconnected, what)));
        }
    }
}

impl Completions {
    /// For calls through a connection. Errors: `OSError` if there is no descriptor left.
    pub fn of(connection: &Link) -> PyResult<Self> {
        // SAFETY: it takes no memory of ours, and answers a descriptor that is ours alone or -1.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(PyOSError::new_err(std::io::Error::last_os_error().to_string()));
        }
        // SAFETY: the descriptor is open, and nobody else has it.
        let bell = unsafe { File::from_raw_fd(fd) };
        let queue = Queue { done: Mutex::new(Vec::new()), bell };
        Ok(Self { connection: connection.clone(), queue: Arc::new(queue) })
    }
}

#[pymethods]
impl Completions {
    /// The descriptor that becomes readable.
    fn fileno(&self) -> i32 {
        self.queue.bell.as_raw_fd()
    }

    /// What is done since the last time: for each its number, its answer, and its exception.
    fn drain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let all = PyList::empty(py);
        if !self.connection.is_of_this_process() {
            return Ok(all);
        }
        for (number, outcome) in self.queue.take() {
            match outcome.map(|value| value.object(py, &self.connection)) {
                Ok(Ok(object)) => all.append((number, object, py.None()))?,
                Ok(Err(raised)) => all.append((number, py.None(), raised.into_value(py)))?,
                Err(e) => all.append((number, py.None(), os_error(&e, None).into_value(py)))?,
            }
        }
        Ok(all)
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // Files that were opened are the parent's, and its lock may be held for ever.
        if !self.connection.is_of_this_process() {
            std::mem::forget(Arc::clone(&self.queue));
        }
    }
}

/// Waits for a call, or begins it, if its answer is to come later: then `None` is the answer now.
/// What was begun goes on, whoever stops waiting for it.
pub fn call<'py>(
    py: Python<'py>,
    connection: &Link,
    path: Option<&Bound<'py, PyAny>>,
    later: Option<Later<'py>>,
    future: impl Future<Output = Result<Value>> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>> {
    let Some((completions, number)) = later else {
        let value = wait(py, connection, || future).map_err(|e| e.raise(path))?;
        return value.object(py, connection);
    };
    let promise = Promise { queue: Arc::clone(&completions.queue), number, kept: false };
    let task = async move { promise.keep(future.await) };
    connection.spawn(task).map_err(|e| Failure::Weft(e).raise(path))?;
    Ok(py.None().into_bound(py))
}
