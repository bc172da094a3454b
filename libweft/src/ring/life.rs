//! Makes rings and ends them.

use super::queue::{Queues, Ring};
use crate::connect::weft_fs;
use crate::error::{Answer, call_int, call_unit, failed, of_this_process};
use crate::pointers::{object, out};
use libc::{c_int, c_uint};
use std::fs::File;
use std::mem::forget;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Arc, OnceLock};
use weft_client::sync::{Condvar, Mutex};

/// Most entries that one ring has places for.
const MAX_PLACES: usize = 65_536;

/// A ring of entries and completions. Any number of threads may use it.
#[allow(non_camel_case_types)]
pub struct weft_ring {
    ring: Arc<Ring>,
}

impl weft_ring {
    /// The ring that a call was given. Errors: `EINVAL`; `ENOTCONN` after a fork.
    ///
    /// # Safety
    /// See [`crate`].
    pub(super) unsafe fn of<'a>(ring: *mut Self) -> Answer<&'a Arc<Ring>> {
        // SAFETY: that of the caller.
        let ring = unsafe { object(ring)? };
        of_this_process(&ring.ring.connection)?;
        Ok(&ring.ring)
    }
}

/// Makes a ring with places for so many entries, 1 to 65536, each of which is taken from when it is
/// prepared until its completion is reaped. Files of the same connection may be used with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_ring_create(
    fs: *mut weft_fs,
    entries: c_uint,
    ring: *mut *mut weft_ring,
) -> c_int {
    call_unit("weft_ring_create", || {
        // SAFETY: the caller's pointers, see `crate`.
        let (fs, ring) = unsafe { (object(fs)?, out(ring)?) };
        let connection = fs.user.connection().clone();
        of_this_process(&connection)?;
        let places = entries as usize;
        if !(1..=MAX_PLACES).contains(&places) {
            return failed(libc::EINVAL, format!("{places} entries are not 1 to {MAX_PLACES}"));
        }
        let new = Ring {
            connection,
            places,
            queues: Mutex::new(Queues::default()),
            completed: Condvar::new(),
            event: OnceLock::new(),
        };
        *ring = Box::into_raw(Box::new(weft_ring { ring: Arc::new(new) }));
        Ok(())
    })
}

/// A descriptor that can be read while completions wait, for poll(2) and its kin. It belongs to the
/// ring: do not close it; weft_ring_reap clears it, and it need not be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_ring_eventfd(ring: *mut weft_ring) -> c_int {
    call_int("weft_ring_eventfd", || {
        // SAFETY: the caller's pointer, see `crate`.
        let ring = unsafe { weft_ring::of(ring)? };
        let queues = ring.queues.lock();
        if let Some(event) = ring.event.get() {
            return Ok(event.as_raw_fd());
        }
        // SAFETY: it only makes a descriptor.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            let error = std::io::Error::last_os_error();
            return failed(error.raw_os_error().unwrap_or(libc::EIO), "cannot make an eventfd");
        }
        // SAFETY: it was made above and is nobody else's.
        let event = ring.event.get_or_init(|| unsafe { File::from_raw_fd(fd) });
        if !queues.completions.is_empty() {
            ring.signal();
        }
        Ok(event.as_raw_fd())
    })
}

/// Ends a ring and frees it: entries that have not begun are never done, those that have are waited
/// for, and their results are lost unless they were reaped. No memory of theirs is touched after
/// that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_ring_destroy(ring: *mut weft_ring) -> c_int {
    call_unit("weft_ring_destroy", || {
        // SAFETY: the caller's pointer, see `crate`.
        unsafe { object(ring)? };
        // SAFETY: it was made by `weft_ring_create`, and is not used any more.
        let ring = unsafe { Box::from_raw(ring) }.ring;
        if let Err(failure) = of_this_process(&ring.connection) {
            if let Some(event) = ring.event.get() {
                // SAFETY: this process has a descriptor of its own, which nobody uses any more.
                unsafe { libc::close(event.as_raw_fd()) };
            }
            // Its queues may be locked for ever.
            forget(ring);
            return Err(failure);
        }
        let mut queues = ring.queues.lock();
        let prepared = std::mem::take(&mut queues.prepared);
        let waiting = std::mem::take(&mut queues.waiting);
        while !queues.begun.is_empty() {
            // Woken by whatever completes last.
            queues.wanted = Some(usize::MAX);
            queues = ring.completed.wait(queues);
        }
        drop(queues);
        // Their files, outside of the lock.
        drop((prepared, waiting));
        Ok(())
    })
}
