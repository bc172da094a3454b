//! What was asked of a stream until now.

use crate::driver::{RawEvent, RawStream};
use crate::scope::Scope;
use std::ptr::null_mut;
use weft_proto::Result;

/// `CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING`: who waits sleeps.
const FLAGS: u32 = 1 | 2;

/// A place in a stream; the driver's, until this is dropped.
pub(crate) struct Event {
    scope: Scope,
    raw: RawEvent,
}

// SAFETY: the driver's calls may be made by any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Behind all that was asked of this stream; within its context. Errors: `Io`.
    pub fn record(scope: Scope, stream: RawStream) -> Result<Self> {
        let (driver, mut raw) = (scope.driver, null_mut());
        // SAFETY: a handle is filled.
        let code = unsafe { (driver.functions.event_create)(&raw mut raw, FLAGS) };
        driver.check("an event", code)?;
        let event = Self { scope, raw };
        // SAFETY: both are there.
        driver.check("an event", unsafe { (driver.functions.event_record)(raw, stream) })?;
        Ok(event)
    }

    /// Whether all that is over. Errors: `Io`.
    pub fn is_over(&self) -> Result<bool> {
        let driver = self.scope.driver;
        self.scope.within(|| {
            // SAFETY: it is there.
            driver.is_over("an event", unsafe { (driver.functions.event_query)(self.raw) })
        })
    }

    /// Waits for it, in this thread. Errors: `Io`, also of what came before it.
    pub fn wait(&self) -> Result<()> {
        let driver = self.scope.driver;
        self.scope.within(|| {
            // SAFETY: it is there.
            driver.check("copies", unsafe { (driver.functions.event_wait)(self.raw) })
        })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let driver = self.scope.driver;
        let _ = self.scope.within(|| {
            // SAFETY: it is there, and not used again.
            driver.check("an event", unsafe { (driver.functions.event_destroy)(self.raw) })
        });
    }
}
