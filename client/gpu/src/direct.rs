//! Memory of a GPU that network cards write into (dma-buf).

use crate::driver::{Driver, INVALID_VALUE, NOT_SUPPORTED};
use crate::shared::Shared;
use libc::c_int;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use weft_net::{Bringing, Buffer, Device, DeviceMemory, DmaBuf};
use weft_proto::{Error, ErrorKind, Result};

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF_FD: c_int = 1;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS`, whose first bit says that the host
/// can wait for what cards have written, and `..._WRITES_ORDERING`: from 100 on (the GPU that owns
/// the memory) nobody has to.
const FLUSH_OPTIONS: c_int = 117;
const FLUSH_BY_HOST: c_int = 1;
const WRITES_ORDERING: c_int = 118;
const ORDERED_FOR_OWNER: c_int = 100;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`, and `..._TO_OWNER`.
const CURRENT_CONTEXT: c_int = 0;
const TO_OWNER: c_int = 100;

/// A GPU's memory as network cards are told of it.
struct Direct {
    shared: Arc<Shared>,
    /// What cards have written has to be waited for.
    flushes: bool,
}

impl Device for Direct {
    fn bring(&self, pieces: Vec<(usize, Buffer)>) -> Bringing<'_> {
        Box::pin(async move {
            if self.flushes {
                self.flush()?;
            }
            self.shared.copy_out(pieces)?.filled().await
        })
    }
}

impl Direct {
    fn flush(&self) -> Result<()> {
        let driver = self.shared.context.scope().driver;
        let Some(flush) = driver.functions.flush_writes else { return Ok(()) };
        self.shared.context.within(|| {
            // SAFETY: it takes numbers.
            let code = unsafe { flush(CURRENT_CONTEXT, TO_OWNER) };
            driver.check("what a network card has written to a GPU", code)
        })
    }
}

/// Exports memory for network cards. Errors: `NotSupported`, the driver or the GPU does not do
/// that, or does not tell when it is written.
pub(crate) fn export(shared: &Arc<Shared>) -> Result<Arc<DeviceMemory>> {
    let driver = shared.context.scope().driver;
    let (flushes, fd) =
        shared.context.within(|| Ok((flushes(driver)?, handle(driver, shared)?)))?;
    let exported =
        DmaBuf { fd, offset: shared.start % page(), address: shared.start, len: shared.len };
    Ok(DeviceMemory::new(Direct { shared: shared.clone(), flushes }, exported))
}

fn unsupported(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::NotSupported, what)
}

/// Bytes of the pages that handles are of.
fn page() -> u64 {
    // SAFETY: it answers a number.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Whether what cards write to the current GPU has to be waited for.
fn flushes(driver: &Driver) -> Result<bool> {
    let mut device = 0;
    // SAFETY: a number is filled.
    let code = unsafe { (driver.functions.context_device)(&raw mut device) };
    driver.check("the GPU of a context", code)?;
    let attribute = |what| {
        let mut value = 0;
        // SAFETY: a number is filled.
        let code = unsafe { (driver.functions.device_attribute)(&raw mut value, what, device) };
        if code == 0 { value } else { 0 }
    };
    if attribute(WRITES_ORDERING) >= ORDERED_FOR_OWNER {
        return Ok(false);
    }
    let can = attribute(FLUSH_OPTIONS) & FLUSH_BY_HOST != 0;
    match can && driver.functions.flush_writes.is_some() {
        true => Ok(true),
        false => Err(unsupported("this GPU does not tell when a network card's writes are there")),
    }
}

/// A handle of the pages that the memory is on.
fn handle(driver: &Driver, shared: &Shared) -> Result<OwnedFd> {
    let Some(export) = driver.functions.export else {
        return Err(unsupported("the CUDA driver exports no memory: that takes 11.7 or later"));
    };
    let first = shared.start - shared.start % page();
    let len = (shared.start + shared.len as u64).next_multiple_of(page()) - first;
    let mut fd: c_int = -1;
    // SAFETY: a descriptor is filled.
    let code = unsafe { export((&raw mut fd).cast(), first, len as usize, DMA_BUF_FD, 0) };
    if code == NOT_SUPPORTED || code == INVALID_VALUE {
        let why = driver.check("exporting a GPU's memory", code).err();
        let why = why.map(|error| error.to_string()).unwrap_or_default();
        return Err(unsupported(format!("{why} (it takes the open kernel modules of NVIDIA)")));
    }
    driver.check("exporting a GPU's memory", code)?;
    // SAFETY: the driver has made it for us.
    let fd = unsafe {
        libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        OwnedFd::from_raw_fd(fd)
    };
    Ok(fd)
}
