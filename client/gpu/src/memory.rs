//! Memory of GPUs that programs own.

use crate::Way;
use crate::context::Context;
use crate::driver::{Address, Driver, INVALID_VALUE, driver};
use crate::lane::{Direction, Run};
use crate::pinned::is_pinned;
use crate::stream::{Mark, Stream};
use bytes::Bytes;
use libc::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use tokio::sync::oneshot;
use weft_client::sync::{Condvar, Mutex};
use weft_client::{ReadData, Room};
use weft_net::Buffer;
use weft_proto::{Error, ErrorKind, Result};

/// `CUpointer_attribute`.
const CONTEXT: c_int = 1;
const MEMORY_TYPE: c_int = 2;
const DEVICE_ORDINAL: c_int = 9;
/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE: c_uint = 2;

/// A run of memory of a GPU that content is read into and written from.
///
/// When it is dropped no copy to or from it is under way any more: that is waited for.
pub struct Memory {
    shared: Arc<Shared>,
}

struct Shared {
    context: Arc<Context>,
    start: Address,
    len: usize,
    /// It is freed with this.
    ours: bool,
    /// The process that it is of.
    process: u32,
    /// Copies that are under way.
    flights: Mutex<usize>,
    landed: Condvar,
}

/// A copy that is under way, until this is dropped.
struct Flight(Arc<Shared>);

impl Drop for Flight {
    fn drop(&mut self) {
        let mut flights = self.0.flights.lock();
        *flights -= 1;
        if *flights == 0 {
            self.0.landed.notify_all();
        }
    }
}

impl Memory {
    /// The memory at this address of the GPU. Errors: `NotSupported` without a driver; `Invalid` if
    /// it is not of a GPU, or not of one.
    ///
    /// # Safety
    /// It stays as long as this is there, and is used by nobody else while calls write to it.
    pub unsafe fn new(start: u64, len: usize) -> Result<Self> {
        let driver = driver()?;
        let wrong = || {
            let what = format!("{len} bytes at {start:#x} are not in the memory of one GPU");
            Error::new(ErrorKind::Invalid, what)
        };
        let last = start.checked_add(len.max(1) as u64 - 1).ok_or_else(wrong)?;
        let (device, raw) = device_of(driver, start)?.ok_or_else(wrong)?;
        if device_of(driver, last)?.is_none_or(|(of_last, _)| of_last != device) {
            return Err(wrong());
        }
        Ok(Self::of(Context::of(driver, raw, device)?, start, len, false))
    }

    /// New memory of a GPU, which is freed with this. Errors: `NotSupported` without a driver;
    /// `Io`, if there is no such GPU, or no room.
    pub fn alloc(gpu: i32, len: usize) -> Result<Self> {
        let driver = driver()?;
        let context = Context::of(driver, null_mut(), gpu)?;
        let mut start = 0;
        context.within(|| {
            // SAFETY: a number is filled.
            let code = unsafe { (driver.functions.alloc)(&raw mut start, len) };
            driver.check(&format!("{len} bytes of GPU {gpu}"), code)
        })?;
        Ok(Self::of(context, start, len, true))
    }

    fn of(context: Arc<Context>, start: Address, len: usize, ours: bool) -> Self {
        let (flights, landed, process) = (Mutex::new(0), Condvar::new(), std::process::id());
        Self { shared: Arc::new(Shared { context, start, len, ours, process, flights, landed }) }
    }

    /// Bytes that it has.
    pub fn len(&self) -> usize {
        self.shared.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part of it. Errors: `Invalid` if it is not within.
    pub fn slice(&self, at: usize, len: usize) -> Result<Slice<'_>> {
        if at.checked_add(len).is_none_or(|end| end > self.len()) {
            let what = format!("{len} bytes from {at} on are not in memory of {}", self.len());
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        Ok(Slice { memory: self, at, len, after: None })
    }

    /// All of it.
    pub fn all(&self) -> Slice<'_> {
        Slice { memory: self, at: 0, len: self.len(), after: None }
    }

    /// How bytes come to it: known by an attempt.
    pub fn way(&self) -> Way {
        match is_pinned(&self.shared.context, Buffer::take(1).memory()) {
            true => Way::Pinned,
            false => Way::Pageable,
        }
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // In a process that was forked it is the parent's.
        if self.shared.process != std::process::id() {
            return;
        }
        let mut flights = self.shared.flights.lock();
        while *flights > 0 {
            flights = self.shared.landed.wait(flights);
        }
        let Shared { context, start, ours, .. } = &*self.shared;
        if *ours {
            let free = || {
                // SAFETY: nothing uses it any more.
                let code = unsafe { (context.scope().driver.functions.free)(*start) };
                context.scope().driver.check("freeing memory", code)
            };
            // It is gone with its context in any case.
            let _ = context.within(free);
        }
    }
}

/// Whether an address is in the memory of a GPU; without a driver none is. Errors: `Io`.
pub fn is_of_gpu(address: u64) -> Result<bool> {
    match driver() {
        Ok(driver) => device_of(driver, address).map(|device| device.is_some()),
        Err(_) => Ok(false),
    }
}

/// The GPU that memory is of, and its context if it has one. Errors: `Io` of a driver that does not
/// answer.
fn device_of(driver: &Driver, at: Address) -> Result<Option<(c_int, *mut c_void)>> {
    let (mut kind, mut device, mut context) = (0 as c_uint, 0 as c_int, null_mut::<c_void>());
    let read = driver.functions.pointer_attribute;
    // SAFETY: each is filled with what it is for.
    unsafe {
        match read((&raw mut kind).cast(), MEMORY_TYPE, at) {
            0 if kind == DEVICE => {}
            // Memory of this process that the driver knows, or does not.
            0 | INVALID_VALUE => return Ok(None),
            code => driver.check(&format!("memory at {at:#x}"), code)?,
        }
        let code = read((&raw mut device).cast(), DEVICE_ORDINAL, at);
        driver.check(&format!("memory at {at:#x}"), code)?;
        // Memory that was mapped piece by piece belongs to none.
        if read((&raw mut context).cast(), CONTEXT, at) != 0 {
            context = null_mut();
        }
    }
    Ok(Some((device, context)))
}

/// A part of [`Memory`].
#[derive(Clone)]
pub struct Slice<'a> {
    memory: &'a Memory,
    at: usize,
    len: usize,
    after: Option<Mark>,
}

/// A copy to this host.
pub(crate) struct CopyOut {
    copies: Copies,
    taken: oneshot::Receiver<Buffer>,
}

impl CopyOut {
    /// What it has brought.
    pub async fn filled(self) -> Result<Buffer> {
        self.copies.over().await?;
        let lost = |_| Error::new(ErrorKind::Io, "the thread that waits for copies has ended");
        self.taken.await.map_err(lost)
    }
}

/// [`Slice::after`] for many, most of which come after one stream.
pub fn after_each<'a>(
    slices: impl IntoIterator<Item = (Slice<'a>, Option<Stream>)>,
) -> Result<Vec<Slice<'a>>> {
    let mut marks: Vec<(Stream, *const Context, Mark)> = Vec::new();
    let mut found = Vec::new();
    for (slice, stream) in slices {
        let Some(stream) = stream else {
            found.push(slice);
            continue;
        };
        let context = slice.memory.context();
        let at = Arc::as_ptr(context);
        let known = marks.iter().find(|(of, within, _)| *of == stream && *within == at);
        let mark = match known {
            Some((_, _, mark)) => mark.clone(),
            None => {
                let mark = stream.mark(context)?;
                marks.push((stream, at, mark.clone()));
                mark
            }
        };
        found.push(Slice { after: Some(mark), ..slice });
    }
    Ok(found)
}

/// What says how copies ended.
pub(crate) struct Copies(oneshot::Receiver<Result<()>>);

impl Copies {
    pub async fn over(self) -> Result<()> {
        let stopped = |_| Error::new(ErrorKind::Io, "the thread that waits for copies has ended");
        self.0.await.map_err(stopped)?
    }
}

impl<'a> Slice<'a> {
    /// Bytes that it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Transfers begin after what this stream has been asked for until now. Errors: `Invalid` while
    /// it is captured into a graph; `Io`.
    pub fn after(self, stream: Stream) -> Result<Self> {
        let mark = stream.mark(self.memory.context())?;
        Ok(Self { after: Some(mark), ..self })
    }

    /// Waits for that. Errors: `Io`.
    pub(crate) async fn ready(&self) -> Result<()> {
        match &self.after {
            Some(mark) => mark.reached().await,
            None => Ok(()),
        }
    }

    /// `len` bytes of it from `at` on, or as many as there are.
    pub(crate) fn part(&self, at: usize, len: usize) -> Self {
        let at = at.min(self.len);
        Slice { at: self.at + at, len: len.min(self.len - at), ..self.clone() }
    }

    /// Fills the start of it; what finds no room is left out. Errors: `Io`.
    pub async fn put(&self, bytes: impl Into<Bytes>) -> Result<()> {
        let bytes = bytes.into();
        let parts = [bytes.clone()];
        self.begin(&parts, bytes)?.over().await
    }

    /// What it holds. Errors: `Io`.
    pub async fn get(&self) -> Result<Bytes> {
        self.copy_out()?.filled().await.map(Bytes::from)
    }

    /// Begins to copy what was read to the start of it; what finds no room is left out.
    /// `room` is what it takes up here.
    pub(crate) fn copy_in(&self, data: ReadData, room: Option<Room>) -> Result<Copies> {
        let parts = data.parts().to_vec();
        self.begin(&parts, (data, room))
    }

    fn of_this_process(&self) -> Result<()> {
        if self.memory.shared.process == std::process::id() {
            return Ok(());
        }
        let what = "this process was forked from the one whose GPU it is";
        Err(Error::new(ErrorKind::Disconnected, what))
    }

    fn begin(&self, parts: &[Bytes], kept: impl Send + 'static) -> Result<Copies> {
        self.of_this_process()?;
        let (mut runs, mut filled) = (Vec::with_capacity(parts.len()), 0);
        for part in parts {
            let (host, len) = (part.as_ptr().cast_mut(), part.len().min(self.len - filled));
            // Known to the driver from now on, if it can be.
            is_pinned(self.memory.context(), host);
            runs.push(Run { host, gpu: self.address() + filled as u64, len });
            filled += len;
        }
        self.copy(Direction::In, &runs, kept)
    }

    /// Begins to copy all of it to this host.
    pub(crate) fn copy_out(&self) -> Result<CopyOut> {
        self.of_this_process()?;
        let buffer = Buffer::take(self.len);
        let host = buffer.memory();
        is_pinned(self.memory.context(), host);
        let (give, taken) = oneshot::channel();
        let run = Run { host, gpu: self.address(), len: self.len };
        let copies = self.copy(Direction::Out, &[run], Handed(Some(buffer), Some(give)))?;
        Ok(CopyOut { copies, taken })
    }

    fn address(&self) -> Address {
        self.memory.shared.start + self.at as u64
    }

    fn copy(
        &self,
        direction: Direction,
        runs: &[Run],
        kept: impl Send + 'static,
    ) -> Result<Copies> {
        let context = self.memory.context();
        let lane = context.lane(direction)?;
        *self.memory.shared.flights.lock() += 1;
        let flight = Flight(self.memory.shared.clone());
        // SAFETY: memory of the GPU stays as long as there is a flight, and that of this process is
        // in what is kept. It is nobody else's, as [`Memory::new`] says.
        Ok(Copies(unsafe { lane.begin(runs, (kept, flight)) }))
    }
}

/// Memory that is filled by a copy, handed on when that is over.
struct Handed(Option<Buffer>, Option<oneshot::Sender<Buffer>>);

impl Drop for Handed {
    fn drop(&mut self) {
        if let (Some(buffer), Some(to)) = (self.0.take(), self.1.take()) {
            // Nobody may want it any more.
            let _ = to.send(buffer);
        }
    }
}
