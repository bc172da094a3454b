//! The connection as the objects of Python share it.

use crate::errors::Failure;
use crate::wait;
use pyo3::prelude::*;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_client::blocking::Connection;
use weft_client::sync::Mutex;
use weft_proto::Result;

/// A connection that is disconnected when the last object of Python that needs it is gone, if the
/// program has not done so: without the interpreter's lock, and with a word of what was lost.
#[derive(Clone)]
pub struct Link(Arc<Last>);

struct Last {
    connection: Connection,
    /// The program has disconnected, or given up waiting for that: who drops this does not wait.
    ended: AtomicBool,
    /// What came of disconnecting. Locked until that is known.
    outcome: Arc<Mutex<Option<Result<()>>>>,
    /// Somebody was told that.
    told: AtomicBool,
}

impl Link {
    /// Of a connection that nobody else ends.
    pub fn new(connection: Connection) -> Self {
        let (ended, told) = (AtomicBool::new(false), AtomicBool::new(false));
        Self(Arc::new(Last { connection, ended, outcome: Arc::default(), told }))
    }

    /// Disconnects. If that is under way, also because a wait for it was given up, it is waited
    /// for, and what comes of it is told. After that nothing happens.
    pub fn disconnect(&self, py: Python<'_>) -> Result<(), Failure> {
        self.0.ended.store(true, Ordering::Release);
        self.0.disconnect(py)
    }

    /// Whether it has disconnected, and somebody was told what came of that.
    pub fn is_disconnected(&self) -> bool {
        self.0.told.load(Ordering::Acquire)
    }
}

impl Deref for Link {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.0.connection
    }
}

impl Last {
    fn disconnect(&self, py: Python<'_>) -> Result<(), Failure> {
        if !self.connection.is_of_this_process() || self.told.load(Ordering::Acquire) {
            return Ok(());
        }
        let (connection, outcome) = (self.connection.clone(), Arc::clone(&self.outcome));
        let end = move || outcome.lock().get_or_insert_with(|| connection.disconnect()).clone();
        let ended = wait::disconnect(py, end)?;
        self.told.store(true, Ordering::Release);
        ended.map_err(Failure::Weft)
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        if *self.ended.get_mut() {
            return;
        }
        // Objects are dropped where the lock is held. An interpreter that ends gives it to nobody:
        // the connection itself disconnects then.
        Python::try_attach(|py| {
            if let Err(failure) = self.disconnect(py) {
                failure.raise(None).write_unraisable(py, None);
            }
        });
    }
}
