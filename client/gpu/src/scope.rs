//! Where calls of the driver are made.

use crate::driver::Driver;
use libc::c_int;
use std::ptr::null_mut;
use weft_proto::Result;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

/// A context, by its handle.
#[derive(Clone, Copy)]
pub(crate) struct Scope {
    pub driver: &'static Driver,
    raw: usize,
}

/// A thread that is within a context, until this is dropped.
pub(crate) struct Entered {
    driver: &'static Driver,
    /// How it took what other threads capture before, if that could be changed.
    mode: Option<c_int>,
}

impl Scope {
    pub fn new(driver: &'static Driver, raw: usize) -> Self {
        Self { driver, raw }
    }

    pub fn raw(self) -> usize {
        self.raw
    }

    /// Does something in it. Calls that are made so are no part of what other threads capture, and
    /// do not disturb that. Errors: `Io` if there is no such context any more.
    pub fn within<T>(self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let _entered = self.enter()?;
        act()
    }

    /// The same, until what it answers is dropped.
    pub fn enter(self) -> Result<Entered> {
        let functions = &self.driver.functions;
        let raw = std::ptr::with_exposed_provenance_mut(self.raw);
        // SAFETY: a handle of the driver's, which finds out if it is none any more.
        let code = unsafe { (functions.context_push)(raw) };
        self.driver.check("the context of a GPU", code)?;
        let mut mode = RELAXED;
        // SAFETY: a number is exchanged.
        let exchanged = unsafe { (functions.capture_mode)(&raw mut mode) } == 0;
        Ok(Entered { driver: self.driver, mode: exchanged.then_some(mode) })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut popped = null_mut();
        // SAFETY: what was exchanged and pushed when this was made.
        unsafe {
            if let Some(mode) = &mut self.mode {
                (self.driver.functions.capture_mode)(mode);
            }
            (self.driver.functions.context_pop)(&raw mut popped);
        }
    }
}
