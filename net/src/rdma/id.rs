//! What the connection manager's library hands out, given back when dropped.

use rdma_mummy_sys::{
    rdma_cm_id, rdma_create_event_channel, rdma_destroy_event_channel, rdma_destroy_id,
    rdma_event_channel,
};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::io::unix::AsyncFd;

/// The process that uses the cards of this machine. One that it forked has a copy of what the
/// library knows, but the cards know the memory of its parent: it must not ask them for anything.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Whether this process may use cards: it is the first of those that share this memory, by fork, to
/// ask.
pub(super) fn may_use_cards() -> bool {
    let own = std::process::id();
    let owner = OWNER.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
    owner.is_ok() || owner == Err(own)
}

/// The error that a function of the library left, which answers -1 or nothing.
pub(super) fn last(what: &str) -> io::Error {
    named(what, io::Error::last_os_error())
}

pub(super) fn named(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

pub(super) fn nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: changes nothing but a flag of a descriptor of ours.
    let answer = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Where the manager tells what happens to connections.
pub(super) struct Channel(pub *mut rdma_event_channel);

// SAFETY: librdmacm may be called by any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub fn new() -> io::Result<Self> {
        // SAFETY: it is given back when dropped.
        let channel = unsafe { rdma_create_event_channel() };
        if channel.is_null() {
            return Err(last("a channel of the connection manager"));
        }
        let channel = Self(channel);
        nonblocking(channel.as_raw_fd())?;
        Ok(channel)
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: it is there until this is dropped.
        unsafe { (*self.0).fd }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if may_use_cards() {
            // SAFETY: nobody uses it any more: each that does keeps it.
            unsafe { rdma_destroy_event_channel(self.0) };
        }
    }
}

/// A connection, as the manager knows it.
pub(super) struct Id {
    pub at: *mut rdma_cm_id,
    /// Where it is told of; kept until it is given back.
    pub channel: Arc<AsyncFd<Channel>>,
}

// SAFETY: librdmacm may be called by any thread.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl Drop for Id {
    fn drop(&mut self) {
        if may_use_cards() {
            // SAFETY: its queue pair is destroyed before, all that was told of it was acknowledged,
            // and nobody else has it.
            unsafe { rdma_destroy_id(self.at) };
        }
    }
}
