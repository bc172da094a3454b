//! Streams of programs, whose work comes before a transfer.

use crate::context::Context;
use crate::driver::RawStream;
use crate::event::Event;
use std::sync::Arc;
use weft_proto::{Error, ErrorKind, Result};

/// A stream of the program (`CUstream`), of the context that memory belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream(usize);

impl Stream {
    /// The default stream of the context that the memory belongs to, which comes after all others
    /// but those that say otherwise (`CU_STREAM_LEGACY`).
    pub const DEFAULT: Self = Self(1);
    /// The default stream of the thread that asks (`CU_STREAM_PER_THREAD`).
    pub const PER_THREAD: Self = Self(2);

    /// The one with this handle; 0 is [`Self::DEFAULT`].
    ///
    /// # Safety
    /// It is a stream when it is used ([`crate::Slice::after`]).
    pub unsafe fn new(handle: usize) -> Self {
        if handle == 0 { Self::DEFAULT } else { Self(handle) }
    }

    /// The place that it has come to. Errors: `Invalid` while it is captured; `Io`.
    pub(crate) fn mark(self, context: &Arc<Context>) -> Result<Mark> {
        let raw: RawStream = std::ptr::with_exposed_provenance_mut(self.0);
        let scope = context.scope();
        let driver = scope.driver;
        let event = context.within(|| {
            let mut captured = 0;
            // SAFETY: it is a stream, as [`Self::new`] says; a number is filled.
            let code = unsafe { (driver.functions.stream_captured)(raw, &raw mut captured) };
            driver.check("a stream of the program", code)?;
            if captured != 0 {
                let what = "the stream is captured into a graph: no transfer can come after it";
                return Err(Error::new(ErrorKind::Invalid, what));
            }
            Event::record(scope, raw)
        });
        event.map(|event| Mark(Arc::new(event)))
    }
}

/// What a stream was asked for until a moment.
#[derive(Clone)]
pub(crate) struct Mark(Arc<Event>);

impl Mark {
    /// Waits for it. Errors: `Io`.
    pub async fn reached(&self) -> Result<()> {
        if self.0.is_over()? {
            return Ok(());
        }
        // The event is ours: the program may destroy the stream when the call was given up.
        let event = self.0.clone();
        let stopped = |_| Error::new(ErrorKind::Disconnected, "it was disconnected");
        tokio::task::spawn_blocking(move || event.wait()).await.map_err(stopped)?
    }
}
