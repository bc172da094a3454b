//! Memory of GPUs, and what of this process's is pinned.
//!
//! The bytes lie in a file without a name, of which other devices get a descriptor (dma-buf).

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Memory of one allocation: its addresses lead nowhere; the bytes are elsewhere.
struct Allocation {
    len: usize,
    device: i32,
    bytes: usize,
    file: File,
    /// Copies that are under way.
    used: usize,
}

static ALLOCATIONS: Mutex<BTreeMap<u64, Allocation>> = Mutex::new(BTreeMap::new());
/// Starts and lengths.
static PINNED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What freed memory holds, where others have its descriptor still.
pub(crate) const POISON: u8 = 0xDB;

/// A new mapping, of a file or of nothing.
fn map(len: usize, access: i32, of: Option<&File>) -> Option<usize> {
    let (flags, fd) = match of {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1),
    };
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(null_mut(), len, access, flags, fd, 0) };
    (start != libc::MAP_FAILED).then(|| start.expose_provenance())
}

/// What the file of an allocation is called in `/proc/self/maps`.
fn named(start: u64) -> String {
    format!("weft-gpu-{start:x}-")
}

fn file(start: u64, len: usize) -> Option<File> {
    let name = std::ffi::CString::new(named(start)).ok()?;
    // SAFETY: it reads a string, and answers a descriptor of our own.
    let file = unsafe {
        match libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) {
            -1 => return None,
            fd => File::from_raw_fd(fd),
        }
    };
    file.set_len(len as u64).ok()?;
    Some(file)
}

/// Who else has the memory mapped, as cards have that know it.
fn mapped_by_others(start: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter(|line| line.contains(&named(start))).count() > 1
}

pub(crate) fn alloc(device: i32, len: usize) -> Option<u64> {
    if len == 0 {
        return None;
    }
    let start = map(len, libc::PROT_NONE, None)? as u64;
    let file = file(start, len)?;
    let bytes = map(len, libc::PROT_READ | libc::PROT_WRITE, Some(&file))?;
    locked(&ALLOCATIONS).insert(start, Allocation { len, device, bytes, file, used: 0 });
    Some(start)
}

/// A descriptor of whole pages from the start of an allocation on. `None`: it is not that.
pub(crate) fn export(at: u64, len: usize) -> Option<RawFd> {
    const PAGE: usize = 4096;
    let allocations = locked(&ALLOCATIONS);
    let allocation = allocations.get(&at)?;
    if !len.is_multiple_of(PAGE) || len > allocation.len.next_multiple_of(PAGE) {
        return None;
    }
    allocation.file.try_clone().ok().map(IntoRawFd::into_raw_fd)
}

pub(crate) fn free(start: u64) -> bool {
    let mut allocations = locked(&ALLOCATIONS);
    let Some(allocation) = allocations.remove(&start) else { return false };
    if allocation.used > 0 {
        eprintln!("memory of a GPU at {start:#x} is freed while {} copies use it", allocation.used);
        std::process::abort();
    }
    if mapped_by_others(start) {
        eprintln!("memory of a GPU at {start:#x} is freed while a card knows it");
        std::process::abort();
    }
    // SAFETY: both were mapped by `alloc`. The addresses are not given to others: who uses them
    // late is to be seen.
    unsafe {
        std::ptr::with_exposed_provenance_mut::<u8>(allocation.bytes)
            .write_bytes(POISON, allocation.len);
        libc::munmap(std::ptr::with_exposed_provenance_mut(allocation.bytes), allocation.len)
    };
    true
}

/// The device that an address is of.
pub(crate) fn device_of(at: u64) -> Option<i32> {
    let allocations = locked(&ALLOCATIONS);
    let (start, allocation) = allocations.range(..=at).next_back()?;
    (at < start + allocation.len as u64).then_some(allocation.device)
}

/// Bytes of a GPU, kept while this is there.
pub(crate) struct Used {
    start: u64,
    pub bytes: *mut u8,
}

// SAFETY: it only says where memory is.
unsafe impl Send for Used {}

impl Used {
    pub fn new(at: u64, len: usize) -> Option<Self> {
        let mut allocations = locked(&ALLOCATIONS);
        let (&start, allocation) = allocations.range_mut(..=at).next_back()?;
        let off = (at - start) as usize;
        if off.checked_add(len)? > allocation.len {
            return None;
        }
        allocation.used += 1;
        let bytes = std::ptr::with_exposed_provenance_mut(allocation.bytes + off);
        Some(Self { start, bytes })
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        if let Some(allocation) = locked(&ALLOCATIONS).get_mut(&self.start) {
            allocation.used -= 1;
        }
    }
}

/// Copies that are under way.
pub(crate) fn under_way() -> usize {
    locked(&ALLOCATIONS).values().map(|allocation| allocation.used).sum()
}

pub(crate) fn pin(start: usize, len: usize) -> bool {
    locked(&PINNED).insert(start, len).is_none()
}

pub(crate) fn is_pinned(at: usize, len: usize) -> bool {
    let pinned = locked(&PINNED);
    let run = pinned.range(..=at).next_back();
    run.is_some_and(|(start, all)| at + len <= start + all)
}
