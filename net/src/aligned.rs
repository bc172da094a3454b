//! Page-aligned buffers, recycled, so that a payload goes from the socket to O_DIRECT I/O as it is.
//!
//! Invariants: the start is aligned to [`ALIGN`] and the capacity is a multiple of it; every byte is
//! initialised; at most [`MAX_CACHED`] bytes are kept for reuse.

use bytes::Bytes;
use parking_lot::Mutex;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Alignment in bytes: a page, and the largest logical block of the drives we know.
const ALIGN: usize = 4096;
/// Size classes are `ALIGN << class`: 4 KiB to 64 MiB. Larger buffers are not recycled.
const CLASSES: usize = 15;
/// Most bytes kept for reuse, in the whole process.
const MAX_CACHED: usize = 256 << 20;

static POOL: [Mutex<Vec<Block>>; CLASSES] = [const { Mutex::new(Vec::new()) }; CLASSES];
static CACHED: AtomicUsize = AtomicUsize::new(0);

/// Owned memory of one class, or of any size above the classes.
struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a block is plain memory with one owner.
unsafe impl Send for Block {}
// SAFETY: shared access only reads.
unsafe impl Sync for Block {}

impl Block {
    fn new(capacity: usize) -> Self {
        let layout = Layout::from_size_align(capacity, ALIGN).expect("capacity fits in isize");
        // SAFETY: the size is not zero: `take` rounds up to at least ALIGN.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => Self { start, layout },
            None => handle_alloc_error(layout),
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and owned.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// A heap buffer whose start is 4096-aligned; it goes back to a pool when dropped.
///
/// A recycled buffer holds old bytes: fill it before showing it to anyone.
pub struct AlignedBuf {
    /// Always there until drop.
    block: Option<Block>,
    len: usize,
}

impl AlignedBuf {
    /// A buffer of `len` bytes with unspecified (initialised) contents.
    pub fn take(len: usize) -> Self {
        let capacity = len.max(ALIGN).checked_next_power_of_two().unwrap_or(len);
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

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `len` <= capacity, all bytes are initialised, and `&mut self` owns the block.
        unsafe { std::slice::from_raw_parts_mut(self.block().start.as_ptr(), self.len) }
    }

    /// The start of the memory, for what does not keep to references: I/O by the kernel.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buffers_are_aligned_and_bytes_share_their_memory(len in 0usize..300_000) {
            let mut buffer = AlignedBuf::take(len);
            prop_assert_eq!(buffer.as_ref().as_ptr() as usize % ALIGN, 0);
            prop_assert_eq!(buffer.capacity() % ALIGN, 0);
            prop_assert!(buffer.capacity() >= len);
            buffer.as_mut_slice().fill(7);
            let start = buffer.as_ref().as_ptr();
            let bytes = Bytes::from(buffer);
            prop_assert_eq!(bytes.len(), len);
            prop_assert_eq!(bytes.as_ptr(), start);
            prop_assert!(bytes.iter().all(|&b| b == 7));
        }
    }

    #[test]
    fn a_dropped_buffer_is_used_again() {
        // A size that no other test uses, so that nobody else takes it meanwhile.
        let buffer = AlignedBuf::take(33 << 20);
        let start = buffer.as_ref().as_ptr();
        drop(Bytes::from(buffer));
        assert_eq!(AlignedBuf::take(40 << 20).as_ref().as_ptr(), start);
        assert_eq!(AlignedBuf::take(65 << 20).capacity(), 128 << 20);
    }
}
