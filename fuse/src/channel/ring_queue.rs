//! Answers on their way to the thread that commits them.

use parking_lot::Mutex;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Entries of one ring that are answered and not committed. Only the thread that fetches requests
/// may commit: the kernel brings the next request to the thread that committed the last.
pub struct Outbox {
    answered: Mutex<Vec<usize>>,
    /// The thread waits, or is about to look here for the last time before it does.
    asleep: AtomicBool,
    /// An eventfd that wakes it.
    bell: File,
}

impl Outbox {
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        let bell = unsafe { File::from_raw_fd(fd) };
        Ok(Self { answered: Mutex::default(), asleep: AtomicBool::new(false), bell })
    }

    pub fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Has an answered entry committed.
    pub fn commit(&self, index: usize) {
        self.answered.lock().push(index);
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Err(error) = (&self.bell).write(&1u64.to_ne_bytes())
        {
            tracing::error!("cannot wake a FUSE thread: {error}");
        }
    }

    /// Takes what is to be committed into `out`, which is empty.
    pub fn take(&self, out: &mut Vec<usize>) {
        std::mem::swap(&mut *self.answered.lock(), out);
    }

    /// Says that the thread is going to wait. Answers whether it may: nothing is to be committed.
    pub fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let nothing = self.answered.lock().is_empty();
        if !nothing {
            self.wake_up();
        }
        nothing
    }

    pub fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }
}
