//! Prepares entries.

use super::entry::{Entry, What};
use super::life::weft_ring;
use super::queue::{Queues, Ring};
use crate::error::{Answer, call_unit, failed};
use crate::memory::{Buffer, Buffers, offset};
use crate::open::weft_file;
use libc::{c_int, c_uint, c_void, iovec, off_t};
use std::sync::Arc;

/// Whether content is read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Read,
    Write,
}

impl Ring {
    /// Errors: `EXDEV` of a file that was opened through another connection.
    fn takes(&self, file: &weft_file) -> Answer<()> {
        match self.connection.is_same(file.blocking().connection()) {
            true => Ok(()),
            false => failed(libc::EXDEV, "the file was opened through another connection"),
        }
    }

    /// Prepares what `entry` makes, under the lock that keeps registered buffers from being
    /// forgotten. Errors: `EAGAIN` if all places are taken.
    fn prepare(&self, entry: impl FnOnce(&Queues) -> Answer<Entry>) -> Answer<()> {
        let mut queues = self.queues.lock();
        if queues.taken() >= self.places {
            let what = format!("all {} places are taken: submit and reap first", self.places);
            return failed(libc::EAGAIN, what);
        }
        let entry = entry(&queues)?;
        queues.prepared.push(entry);
        Ok(())
    }
}

/// Prepares a transfer of content to or from buffers that are known when the file is.
///
/// # Safety
/// See [`crate`].
unsafe fn transfer(
    name: &str,
    (ring, file): (*mut weft_ring, *mut weft_file),
    way: Way,
    buffers: impl FnOnce(&Queues) -> Answer<Buffers>,
    off: off_t,
    user_data: u64,
) -> c_int {
    call_unit(name, || {
        // SAFETY: those of the caller.
        let (ring, file) = unsafe { (weft_ring::of(ring)?, weft_file::of(file)?) };
        let off = offset(off)?;
        ring.takes(file)?;
        let open = match way {
            Way::Read => file.to_read()?,
            Way::Write => file.to_write()?,
        };
        ring.prepare(|queues| {
            let buffers = buffers(queues)?;
            let what = match way {
                Way::Read => What::Read { off, into: buffers },
                Way::Write => What::Write { off, from: buffers, whole: file.append() },
            };
            Ok(Entry { user_data, file: Arc::clone(open), what })
        })
    })
}

/// Prepares weft_pread. The buffer is the ring's until the completion is reaped. -EAGAIN if all
/// places are taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_ring_prep_pread(
    ring: *mut weft_ring,
    file: *mut weft_file,
    buf: *mut c_void,
    len: usize,
    off: off_t,
    user_data: u64,
) -> c_int {
    let buffers = |_: &Queues| Buffer::new(buf, len).map(Buffers::One);
    // SAFETY: the caller's pointers, see `crate`.
    unsafe { transfer("weft_ring_prep_pread", (ring, file), Way::Read, buffers, off, user_data) }
}

/// Prepares weft_pwrite, as weft_ring_prep_pread does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_ring_prep_pwrite(
    ring: *mut weft_ring,
    file: *mut weft_file,
    buf: *const c_void,
    len: usize,
    off: off_t,
    user_data: u64,
) -> c_int {
    let buffers = |_: &Queues| Buffer::new(buf.cast_mut(), len).map(Buffers::One);
    // SAFETY: the caller's pointers, see `crate`.
    unsafe { transfer("weft_ring_prep_pwrite", (ring, file), Way::Write, buffers, off, user_data) }
}

/// Prepares weft_preadv. The list itself may go at once, its buffers are the ring's until the
/// completion is reaped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_ring_prep_preadv(
    ring: *mut weft_ring,
    file: *mut weft_file,
    iov: *const iovec,
    iovcnt: c_int,
    off: off_t,
    user_data: u64,
) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    unsafe {
        let buffers = |_: &Queues| Buffers::read(iov, iovcnt);
        transfer("weft_ring_prep_preadv", (ring, file), Way::Read, buffers, off, user_data)
    }
}

/// Prepares weft_pwritev, as weft_ring_prep_preadv does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_ring_prep_pwritev(
    ring: *mut weft_ring,
    file: *mut weft_file,
    iov: *const iovec,
    iovcnt: c_int,
    off: off_t,
    user_data: u64,
) -> c_int {
    // SAFETY: the caller's pointers, see `crate`.
    unsafe {
        let buffers = |_: &Queues| Buffers::read(iov, iovcnt);
        transfer("weft_ring_prep_pwritev", (ring, file), Way::Write, buffers, off, user_data)
    }
}

/// Prepares weft_pread into len bytes from buf_off on of the registered buffer with this index;
/// -EFAULT if they are not within it, or there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_ring_prep_pread_fixed(
    ring: *mut weft_ring,
    file: *mut weft_file,
    buf_index: c_uint,
    buf_off: usize,
    len: usize,
    off: off_t,
    user_data: u64,
) -> c_int {
    let buffers = |queues: &Queues| queues.registered(buf_index, buf_off, len);
    // SAFETY: the caller's pointers, see `crate`.
    unsafe {
        transfer("weft_ring_prep_pread_fixed", (ring, file), Way::Read, buffers, off, user_data)
    }
}

/// Prepares weft_pwrite from a registered buffer, as weft_ring_prep_pread_fixed does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_ring_prep_pwrite_fixed(
    ring: *mut weft_ring,
    file: *mut weft_file,
    buf_index: c_uint,
    buf_off: usize,
    len: usize,
    off: off_t,
    user_data: u64,
) -> c_int {
    let buffers = |queues: &Queues| queues.registered(buf_index, buf_off, len);
    // SAFETY: the caller's pointers, see `crate`.
    unsafe {
        transfer("weft_ring_prep_pwrite_fixed", (ring, file), Way::Write, buffers, off, user_data)
    }
}

/// Prepares weft_fsync. It covers the writes whose completions were reaped before it is submitted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_ring_prep_fsync(
    ring: *mut weft_ring,
    file: *mut weft_file,
    user_data: u64,
) -> c_int {
    call_unit("weft_ring_prep_fsync", || {
        // SAFETY: the caller's pointers, see `crate`.
        let (ring, file) = unsafe { (weft_ring::of(ring)?, weft_file::of(file)?) };
        ring.takes(file)?;
        let file = Arc::clone(file.open());
        ring.prepare(|_| Ok(Entry { user_data, file, what: What::Sync }))
    })
}
