//! Copies in one direction, one after the other, while others go on.
//!
//! Invariant: what a copy uses is kept until the driver says that it is over, or that it failed.

use crate::driver::{Address, Driver, RawStream, is_fatal};
use crate::event::Event;
use crate::scope::Scope;
use std::any::Any;
use std::ptr::null_mut;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::oneshot;
use weft_proto::{Error, ErrorKind, Result};

/// `CU_STREAM_NON_BLOCKING`: it waits for no stream of the program.
const NON_BLOCKING: u32 = 1;

/// A wait that failed for no reason of the copies is repeated after this.
const AGAIN: Duration = Duration::from_millis(10);

/// From the host to the GPU, or back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    In = 0,
    Out = 1,
}

/// A run of bytes to copy, at an address of this process and at one of the GPU.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub host: *mut u8,
    pub gpu: Address,
    pub len: usize,
}

/// A stream of the driver, and a thread that tells when copies are over.
pub(crate) struct Lane {
    scope: Scope,
    stream: Handle<RawStream>,
    direction: Direction,
    begun: mpsc::Sender<Begun>,
}

/// A handle of the driver, which any thread may use.
#[derive(Clone, Copy)]
struct Handle<T>(T);

impl<T: Copy> Handle<T> {
    fn raw(&self) -> T {
        self.0
    }
}

// SAFETY: the driver's calls may be made by any thread.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

/// Copies that were begun together, and are over with their event.
struct Begun {
    /// `None`: the whole stream is waited for.
    event: Option<Event>,
    begun: Result<()>,
    kept: Box<dyn Any + Send>,
    over: oneshot::Sender<Result<()>>,
}

impl Lane {
    /// `failed` is told of its stream when that is not to be used any more.
    pub fn new(
        scope: Scope,
        direction: Direction,
        failed: impl Fn(RawStream) + Send + 'static,
    ) -> Result<Arc<Self>> {
        let driver = scope.driver;
        let stream = scope.within(|| {
            let mut stream = null_mut();
            // SAFETY: a handle is filled.
            let code = unsafe { (driver.functions.stream_create)(&raw mut stream, NON_BLOCKING) };
            driver.check("a stream for copies", code).map(|()| Handle(stream))
        })?;
        let (begun, waits) = mpsc::channel();
        let thread = std::thread::Builder::new().name("weft-gpu".into());
        thread.spawn(move || wait(scope, stream, &waits, failed)).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot start a thread: {error}"))
        })?;
        Ok(Arc::new(Self { scope, stream, direction, begun }))
    }

    /// Whether its copies are on this stream.
    pub fn is_on(&self, stream: RawStream) -> bool {
        self.stream.0 == stream
    }

    /// Begins copies, and answers what says how they ended; `kept` is what they use.
    ///
    /// # Safety
    /// All memory of them is there until `kept` is dropped, and used by nobody else meanwhile.
    pub unsafe fn begin(
        &self,
        runs: &[Run],
        kept: impl Any + Send,
    ) -> oneshot::Receiver<Result<()>> {
        let scope = self.scope;
        let driver = scope.driver;
        let mut event = None;
        let begun = scope.within(|| {
            for run in runs {
                // SAFETY: that of the caller.
                unsafe { self.copy(driver, *run) }?;
            }
            event = Some(Event::record(scope, self.stream.0)?);
            Ok(())
        });
        let (over, told) = oneshot::channel();
        let begun = Begun { event, begun, kept: Box::new(kept), over };
        // The thread ends with this lane.
        if let Err(mpsc::SendError(begun)) = self.begun.send(begun) {
            // What the copies use must stay: nobody knows when they are over.
            std::mem::forget(begun.kept);
        }
        told
    }

    /// # Safety
    /// As [`Self::begin`].
    unsafe fn copy(&self, driver: &Driver, Run { host, gpu, len }: Run) -> Result<()> {
        // SAFETY: that of the caller.
        unsafe {
            match self.direction {
                Direction::In => {
                    let code = (driver.functions.copy_in)(gpu, host.cast(), len, self.stream.0);
                    driver.check("a copy to the GPU", code)
                }
                Direction::Out => {
                    let code = (driver.functions.copy_out)(host.cast(), gpu, len, self.stream.0);
                    driver.check("a copy from the GPU", code)
                }
            }
        }
    }
}

/// What the thread of a lane does: they are over in the order in which they began.
fn wait(
    scope: Scope,
    stream: Handle<RawStream>,
    begun: &mpsc::Receiver<Begun>,
    failed: impl Fn(RawStream),
) {
    for Begun { event, begun, kept, over } in begun {
        let waited = event.as_ref().map(Event::wait);
        let ended = match waited {
            Some(Ok(())) => Ok(()),
            _ => {
                failed(stream.raw());
                all_over(scope, stream.raw())
            }
        };
        // The memory may go with its context when the copies are gone.
        drop(event);
        drop(kept);
        // A call that was dropped is told nothing.
        let _ = over.send(begun.and(ended));
    }
    let _ = scope.within(|| {
        // SAFETY: it is ours, and nothing is asked of it any more.
        let code = unsafe { (scope.driver.functions.stream_destroy)(stream.raw()) };
        scope.driver.check("a stream", code)
    });
}

/// Waits for all that a stream was asked for, when a wait has failed. Why may be nothing of it, so
/// that what copies use is kept until they are over. Nothing goes on in a context that has failed.
#[allow(clippy::disallowed_methods, reason = "a thread that does nothing else")]
fn all_over(scope: Scope, stream: RawStream) -> Result<()> {
    loop {
        let waited = scope.within(|| {
            // SAFETY: the stream is ours.
            Ok(unsafe { (scope.driver.functions.stream_wait)(stream) })
        });
        match waited {
            Ok(code) if code == 0 || is_fatal(code) => return scope.driver.check("copies", code),
            Ok(_) => std::thread::sleep(AGAIN),
            // There is no such context any more.
            Err(error) => return Err(error),
        }
    }
}
