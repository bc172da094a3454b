//! The connection as the objects of Python share it.

use crate::errors::Failure;
use crate::wait;
use pyo3::prelude::*;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_client::blocking::Connection;

/// A connection that is disconnected when the last object of Python that needs it is gone, if the
/// program has not done so: without the interpreter's lock, and with a word of what was lost.
#[derive(Clone)]
pub struct Link(Arc<Last>);

struct Last {
    connection: Connection,
    /// The program has disconnected, or given up waiting for that: nobody waits once more.
    ended: AtomicBool,
}

impl Link {
    /// Of a connection that nobody else ends.
    pub fn new(connection: Connection) -> Self {
        Self(Arc::new(Last { connection, ended: AtomicBool::new(false) }))
    }

    /// Disconnects. A second time nothing happens.
    pub fn disconnect(&self, py: Python<'_>) -> Result<(), Failure> {
        self.0.disconnect(py)
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
        if !self.connection.is_of_this_process() || self.ended.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        wait::disconnect(py, &self.connection)
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        // Objects are dropped where the lock is held. An interpreter that ends gives it to nobody:
        // the connection itself disconnects then.
        Python::try_attach(|py| {
            if let Err(failure) = self.disconnect(py) {
                failure.raise(None).write_unraisable(py, None);
            }
        });
    }
}
