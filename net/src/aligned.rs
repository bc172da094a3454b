//! Page-aligned buffers, recycled, so that a payload goes from the socket to O_DIRECT I/O as it is.
//! They lie in a few large regions, which whoever does the I/O can make known to the kernel once
//! ([`regions`]), so that it need not look up the pages of every request.
//!
//! Invariants: the start is aligned to [`ALIGN`] and the capacity is a multiple of it; every byte
//! is initialised; at most [`MAX_CACHED`] bytes are kept in the size classes for reuse; a region
//! stays where it is to the end of the process, and a buffer lies in one region or in none.

use crate::metrics;
use crate::sync::{Mutex, MutexGuard};
use buddy_system_allocator::FrameAllocator;
use bytes::Bytes;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Alignment in bytes: a page, and the largest logical block of the drives we know.
const ALIGN: usize = 4096;
/// Size classes are `ALIGN << class`: 4 KiB to 64 MiB. Larger buffers are not recycled.
const CLASSES: usize = 15;
/// Most bytes kept for reuse, in the whole process.
const MAX_CACHED: usize = 256 << 20;
/// Most bytes of one buffer in a region; larger ones come from the heap, as do all when the regions
/// are full.
const MAX_IN_REGION: usize = 16 << 20;
/// Most regions.
pub(crate) const REGIONS: usize = 8;

static POOL: [Mutex<Vec<Block>>; CLASSES] = [const { Mutex::new(Vec::new()) }; CLASSES];
static CACHED: AtomicUsize = AtomicUsize::new(0);
static MAPPED: [OnceLock<Region>; REGIONS] = [const { OnceLock::new() }; REGIONS];
/// What is free in the regions, by page numbers in the address space.
static FREE: Mutex<FrameAllocator> = Mutex::new(FrameAllocator::new());

/// All locks of this file, and that of what is counted, held.
struct Held {
    _classes: [MutexGuard<'static, Vec<Block>>; CLASSES],
    _free: MutexGuard<'static, FrameAllocator>,
    _metrics: MutexGuard<'static, ()>,
}

thread_local! {
    /// What a thread holds that forks.
    static HELD: Cell<Option<Held>> = const { Cell::new(None) };
}

/// Called before a process forks: no other thread is in the middle of taking or giving back memory
/// then, so that the child finds all of it whole and free to use.
pub fn before_fork() {
    // First: it may wait for who makes them.
    let metrics = metrics::hold();
    let classes = std::array::from_fn(|class| POOL[class].lock());
    let held = Held { _classes: classes, _free: FREE.lock(), _metrics: metrics };
    // A thread that ends can keep nothing.
    let _ = HELD.try_with(|place| place.set(Some(held)));
}

/// Called after a fork, by parent and child, in the thread that forked.
pub fn after_fork() {
    let _ = HELD.try_with(Cell::take);
}

/// Memory that buffers lie in. Huge pages are asked for.
#[derive(Debug)]
pub struct Region {
    start: usize,
}

/// The regions that there are; more may come, in the order in which they are made.
pub fn regions() -> impl Iterator<Item = &'static Region> {
    MAPPED.iter().map_while(OnceLock::get)
}

impl Region {
    /// Bytes of every region.
    pub const LEN: usize = 64 << 20;

    /// The address of its first byte.
    pub fn start(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.start)
    }

    /// Whether it holds the byte at this address.
    pub fn holds(&self, address: *const u8) -> bool {
        (self.start..self.start + Self::LEN).contains(&address.addr())
    }

    /// Memory that is zero. `None`: there is none.
    fn map() -> Option<Self> {
        // Twice as much as needed has an aligned region in it; what is around that is given back.
        let (flags, access) =
            (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping, of which only the parts outside the region are unmapped again.
        unsafe {
            let all = libc::mmap(std::ptr::null_mut(), 2 * Self::LEN, access, flags, -1, 0);
            if all == libc::MAP_FAILED {
                return None;
            }
            let before = all.addr().next_multiple_of(Self::LEN) - all.addr();
            let start = all.byte_add(before);
            if before > 0 {
                libc::munmap(all, before);
            }
            libc::munmap(start.byte_add(Self::LEN), Self::LEN - before);
            // Without huge pages it is only slower.
            libc::madvise(start, Self::LEN, libc::MADV_HUGEPAGE);
            Some(Self { start: start.expose_provenance() })
        }
    }
}

/// Owned memory of one class, or of any size above the classes.
struct Block {
    start: NonNull<u8>,
    layout: Layout,
    in_region: bool,
}

// SAFETY: a block is plain memory with one owner.
unsafe impl Send for Block {}
// SAFETY: shared access only reads.
unsafe impl Sync for Block {}

impl Block {
    fn new(capacity: usize) -> Self {
        let layout = Layout::from_size_align(capacity, ALIGN).expect("capacity fits in isize");
        if let Some(start) = Self::in_region(capacity) {
            return Self { start, layout, in_region: true };
        }
        // SAFETY: the size is not zero: `take` rounds up to at least ALIGN.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => Self { start, layout, in_region: false },
            None => handle_alloc_error(layout),
        }
    }

    fn in_region(capacity: usize) -> Option<NonNull<u8>> {
        if capacity > MAX_IN_REGION {
            return None;
        }
        let mut free = FREE.lock();
        let page = match free.alloc(capacity / ALIGN) {
            Some(page) => page,
            None => {
                let next = MAPPED.iter().find(|place| place.get().is_none())?;
                let region = Region::map()?;
                let region = next.get_or_init(|| region);
                let first = region.start / ALIGN;
                free.add_frame(first, first + Region::LEN / ALIGN);
                free.alloc(capacity / ALIGN)?
            }
        };
        NonNull::new(std::ptr::with_exposed_provenance_mut(page * ALIGN))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.in_region {
            let page = self.start.as_ptr().addr() / ALIGN;
            return FREE.lock().dealloc(page, self.layout.size() / ALIGN);
        }
        // SAFETY: allocated in `new` with this layout, and owned.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// A buffer whose start is 4096-aligned; it goes back to a pool when dropped.
///
/// A recycled buffer holds old bytes: fill it before showing it to anyone.
pub struct AlignedBuf {
    /// Always there until drop.
    block: Option<Block>,
    len: usize,
}

impl AlignedBuf {
    /// Bytes of memory that a buffer of `len` bytes takes.
    pub(crate) fn footprint(len: usize) -> usize {
        len.max(ALIGN).checked_next_power_of_two().unwrap_or(len)
    }

    /// A buffer of `len` bytes with unspecified (initialised) contents.
    pub fn take(len: usize) -> Self {
        let capacity = Self::footprint(len);
        let recycled = class(capacity).and_then(|c| POOL[c].lock().pop());
        let block = match recycled {
            Some(block) => {
                CACHED.fetch_sub(capacity, Ordering::Relaxed);
                block
            }
            None => Block::new(capacity),
        };
        Self { block: Some(block), len }
    }

    /// Bytes that the buffer could hold, a multiple of 4096.
    pub fn capacity(&self) -> usize {
        self.block().layout.size()
    }

    /// Changes the length, up to the capacity (panics above): the tail up to a whole block can be
    /// padded for O_DIRECT.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} bytes in a buffer of {}", self.capacity());
        self.len = len;
    }

    /// The bytes, up to the length.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `len` <= capacity, all bytes are initialised, and `&mut self` owns the block.
        unsafe { std::slice::from_raw_parts_mut(self.block().start.as_ptr(), self.len) }
    }

    /// The start of the memory, for what does not keep to references: I/O by the kernel.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.block().start.as_ptr()
    }

    /// The start of the memory, for whoever shares it out ([`crate::Buffer`]).
    pub(crate) fn memory(&self) -> *mut u8 {
        self.block().start.as_ptr()
    }

    fn block(&self) -> &Block {
        self.block.as_ref().expect("the block is taken only on drop")
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as in `as_mut_slice`, with shared access.
        unsafe { std::slice::from_raw_parts(self.block().start.as_ptr(), self.len) }
    }
}

impl From<AlignedBuf> for Bytes {
    /// Without a copy; the buffer is recycled when the last clone is dropped.
    fn from(buffer: AlignedBuf) -> Self {
        Bytes::from_owner(buffer)
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else { return };
        let capacity = block.layout.size();
        let Some(class) = class(capacity) else { return };
        if CACHED.fetch_add(capacity, Ordering::Relaxed) + capacity <= MAX_CACHED {
            POOL[class].lock().push(block);
        } else {
            CACHED.fetch_sub(capacity, Ordering::Relaxed);
        }
    }
}

/// The class of a power of two, or `None` above the classes.
fn class(capacity: usize) -> Option<usize> {
    let class = (capacity / ALIGN).trailing_zeros() as usize;
    (class < CLASSES && capacity == ALIGN << class).then_some(class)
}

#[cfg(test)]
mod tests;
