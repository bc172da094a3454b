//! What cards in memory know: runs of this process's memory, and of that of devices, which they
//! map.

use crate::dma_buf::DmaBuf;
use crate::rdma::{Keys, Nic};
use crate::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that a card was told of, by its key.
#[derive(Clone)]
pub(super) struct Memory(Arc<Mutex<Known>>);

#[derive(Default)]
pub(super) struct Known {
    last: u32,
    runs: HashMap<u32, Run>,
    pub devices: Devices,
}

struct Run {
    start: usize,
    len: usize,
    /// Of a device: where it is here.
    mapped: Option<Mapped>,
}

/// What the cards of a fabric do about memory of devices.
#[derive(Clone, Default)]
pub(super) struct Devices {
    pub refused: bool,
    /// How much of it cards know.
    pub known: Arc<AtomicU64>,
    /// How often cards came for memory of the other side that was not known to its card.
    pub strays: Arc<AtomicU64>,
}

impl Known {
    fn add(&mut self, run: Run) -> Keys {
        self.last += 1;
        self.runs.insert(self.last, run);
        Keys { local: self.last, remote: self.last, handle: 0 }
    }

    /// Where a run of memory is that is known under this key.
    pub fn find(&self, key: u32, start: usize, len: usize) -> Option<*mut u8> {
        let run = self.runs.get(&key)?;
        let within = start >= run.start && start + len <= run.start + run.len;
        within.then(|| match &run.mapped {
            // SAFETY: as much is mapped as the run has.
            Some(mapped) => unsafe { mapped.start().add(start - run.start) },
            None => std::ptr::with_exposed_provenance_mut(start),
        })
    }
}

impl Memory {
    /// A card that knows nothing yet.
    pub fn new(devices: &Devices) -> Self {
        let known = Known { devices: devices.clone(), ..Known::default() };
        Self(Arc::new(Mutex::new(known)))
    }

    /// What it knows, which does not change until this is dropped.
    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }
}

impl Nic for Memory {
    fn register(&self, start: *mut u8, len: usize) -> io::Result<Keys> {
        let run = Run { start: start.expose_provenance(), len, mapped: None };
        Ok(self.0.lock().add(run))
    }

    fn register_device(&self, memory: &DmaBuf) -> io::Result<Keys> {
        let mut known = self.0.lock();
        if known.devices.refused {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let mapped = Some(Mapped::new(memory)?);
        known.devices.known.fetch_add(1, Ordering::SeqCst);
        Ok(known.add(Run { start: memory.address as usize, len: memory.len, mapped }))
    }

    fn deregister(&self, keys: Keys) {
        let mut known = self.0.lock();
        let run = known.runs.remove(&keys.local).expect("memory that was forgotten before");
        if run.mapped.is_some() {
            drop(run);
            known.devices.known.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A run of a device's memory, mapped until this is dropped.
struct Mapped {
    map: usize,
    len: usize,
    /// Where in the map the run begins.
    skip: usize,
}

impl Mapped {
    fn new(memory: &DmaBuf) -> io::Result<Self> {
        const PAGE: u64 = 4096;
        let skip = (memory.offset % PAGE) as usize;
        let (len, from) = (memory.len + skip, memory.offset - skip as u64);
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, memory.fd.as_raw_fd());
        // SAFETY: a new mapping.
        let map = unsafe {
            libc::mmap(null_mut(), len, access, libc::MAP_SHARED, fd, from as libc::off_t)
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { map: map.expose_provenance(), len, skip })
    }

    /// The first byte of the run.
    fn start(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.map + self.skip)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `new`, and whoever uses it has this.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.map), self.len) };
    }
}
