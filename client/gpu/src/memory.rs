//! Memory of GPUs that programs own.

use crate::Way;
use crate::context::Context;
use crate::direct::export;
use crate::driver::{Address, Driver, INVALID_VALUE, driver};
use crate::pinned::is_pinned;
use crate::shared::{Copies, CopyOut, Shared};
use crate::stream::{Mark, Stream};
use bytes::Bytes;
use libc::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use weft_client::Placed;
use weft_net::{Buffer, DeviceMemory};
use weft_proto::{Error, ErrorKind, Result};

/// `CUpointer_attribute`.
const CONTEXT: c_int = 1;
const MEMORY_TYPE: c_int = 2;
const DEVICE_ORDINAL: c_int = 9;
/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE: c_uint = 2;

/// A run of memory of a GPU that content is read into and written from.
///
/// When it is dropped no copy to or from it is under way any more, and no network card knows it:
/// that is waited for.
pub struct Memory {
    shared: Arc<Shared>,
    /// It is freed with this.
    ours: bool,
    /// Where network cards may write, if that was asked for.
    direct: Option<Arc<DeviceMemory>>,
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
        Self { shared: Shared::new(context, start, len), ours, direct: None }
    }

    /// From now on reads of files whose servers are reached over RDMA are written to it by those,
    /// where the network card and the GPU can do that; else all goes on as before
    /// ([`Self::why_not_direct`]). Errors: `NotSupported`, its memory cannot be exported.
    pub fn make_direct(&mut self) -> Result<()> {
        if self.direct.is_none() {
            self.direct = Some(export(&self.shared)?);
        }
        Ok(())
    }

    /// The same, if `WEFT_GPU_DIRECT=1` asks for it; where it cannot be, the log says so.
    pub fn make_direct_if_asked(&mut self) {
        let asked = std::env::var_os("WEFT_GPU_DIRECT").is_some_and(|value| value == "1");
        if asked && let Err(why) = self.make_direct() {
            tracing::warn!(%why, "network cards do not write to the memory of this GPU");
        }
    }

    /// Why nothing was written to it by network cards until now, though that was asked for.
    pub fn why_not_direct(&self) -> Option<String> {
        let direct = self.direct.as_ref().filter(|direct| direct.landed() == 0)?;
        let nothing = || "nothing was read over RDMA yet".to_owned();
        Some(direct.refused().unwrap_or_else(nothing))
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
        if self.direct.is_some() && self.why_not_direct().is_none() {
            return Way::Direct;
        }
        match is_pinned(&self.shared.context, Buffer::take(1).memory()) {
            true => Way::Pinned,
            false => Way::Pageable,
        }
    }

    /// Returns when nothing is written to it any more for calls that were given up: cards and
    /// copies know no order among each other. Errors: `Io`.
    async fn quiet(&self) -> Result<()> {
        let Some(direct) = &self.direct else { return Ok(()) };
        direct.quiet().await;
        self.shared.copies_in_are_over().await
    }

    fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // In a process that was forked it is the parent's.
        if !self.shared.is_ours() {
            return std::mem::forget(self.direct.take());
        }
        if let Some(direct) = &self.direct {
            direct.close();
        }
        self.shared.landed();
        let Shared { context, start, .. } = &*self.shared;
        if self.ours {
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

    /// Waits for that, and for what calls that were given up still write to the memory. Errors:
    /// `Io`.
    pub(crate) async fn ready(&self) -> Result<()> {
        if let Some(mark) = &self.after {
            mark.reached().await?;
        }
        self.memory.quiet().await
    }

    /// `len` bytes of it from `at` on, or as many as there are.
    pub(crate) fn part(&self, at: usize, len: usize) -> Self {
        let at = at.min(self.len);
        Slice { at: self.at + at, len: len.min(self.len - at), ..self.clone() }
    }

    /// Fills the start of it; what finds no room is left out. Errors: `Io`.
    pub async fn put(&self, bytes: impl Into<Bytes>) -> Result<()> {
        self.memory.quiet().await?;
        let parts = vec![Placed { bytes: bytes.into(), is_there: false }];
        self.copy_in(parts, ())?.over().await
    }

    /// What it holds. Errors: `Io`.
    pub async fn get(&self) -> Result<Bytes> {
        self.memory.quiet().await?;
        self.copy_out()?.filled().await.map(|filled| Buffer::join(filled).into())
    }

    /// Begins to copy these bytes to the start of it, but those that are there; what finds no room
    /// is left out. `room` is what they take up here.
    pub(crate) fn copy_in(&self, parts: Vec<Placed>, room: impl Send + 'static) -> Result<Copies> {
        let (shared, kept) = (&self.memory.shared, parts.clone());
        shared.copy_in(self.at, self.len, &parts, (kept, room))
    }

    /// Begins to copy all of it to this host.
    pub(crate) fn copy_out(&self) -> Result<CopyOut> {
        self.memory.shared.copy_out(vec![(self.at, Buffer::take(self.len))])
    }

    /// Where network cards may write by themselves, if that was asked for.
    pub(crate) fn direct(&self) -> Option<(&Arc<DeviceMemory>, usize)> {
        self.memory.direct.as_ref().map(|direct| (direct, self.at))
    }
}
