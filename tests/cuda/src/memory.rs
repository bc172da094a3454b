//! Memory of GPUs, and what of this process's is pinned.

use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Memory of one allocation: its addresses lead nowhere; the bytes are elsewhere.
#[derive(Clone, Copy)]
struct Allocation {
    len: usize,
    device: i32,
    bytes: usize,
    /// Copies that are under way.
    used: usize,
}

static ALLOCATIONS: Mutex<BTreeMap<u64, Allocation>> = Mutex::new(BTreeMap::new());
/// Starts and lengths.
static PINNED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn map(len: usize, access: i32) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(null_mut(), len, access, flags, -1, 0) };
    (start != libc::MAP_FAILED).then(|| start.expose_provenance())
}

pub(crate) fn alloc(device: i32, len: usize) -> Option<u64> {
    if len == 0 {
        return None;
    }
    let start = map(len, libc::PROT_NONE)? as u64;
    let bytes = map(len, libc::PROT_READ | libc::PROT_WRITE)?;
    locked(&ALLOCATIONS).insert(start, Allocation { len, device, bytes, used: 0 });
    Some(start)
}

pub(crate) fn free(start: u64) -> bool {
    let mut allocations = locked(&ALLOCATIONS);
    let Some(allocation) = allocations.remove(&start) else { return false };
    if allocation.used > 0 {
        eprintln!("memory of a GPU at {start:#x} is freed while {} copies use it", allocation.used);
        std::process::abort();
    }
    // SAFETY: both were mapped by `alloc`. The addresses are not given to others: who uses them
    // late is to be seen.
    unsafe {
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
