//! Real cards: whether there are any, and what they know of this process's memory.

use super::connection::Side;
use super::id::{last, may_use_cards, named};
use super::memory::Domain;
use super::nic::{Keys, Nic};
use crate::dma_buf::DmaBuf;
use crate::sync::Mutex;
use rdma_mummy_sys::*;
use std::ffi::c_int;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::Arc;

/// What a function of the library that answers an error number says.
pub(super) fn check(what: &str, answer: c_int) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        error => Err(named(what, io::Error::from_raw_os_error(error.abs()))),
    }
}

/// Why this machine has no RDMA, if it has none.
pub(super) fn usable() -> io::Result<()> {
    let unsupported = |what: &str| io::Error::new(io::ErrorKind::Unsupported, what);
    let mut count = 0;
    // SAFETY: the list is given back as it came; none is answered where there is no library.
    unsafe {
        let list = ibv_get_device_list(&raw mut count);
        if list.is_null() {
            return Err(match io::Error::last_os_error().raw_os_error() {
                Some(libc::EOPNOTSUPP) => unsupported("libibverbs.so.1 is not installed"),
                Some(libc::ENOSYS) => unsupported("this kernel has no RDMA"),
                _ => last("listing RDMA devices"),
            });
        }
        ibv_free_device_list(list);
        if count == 0 {
            return Err(unsupported("this machine has no RDMA device"));
        }
        // Pages that a card knows are copied for a child, so that the parent keeps its own.
        if ibv_is_fork_initialized() != IBV_FORK_UNNEEDED {
            return Err(unsupported(
                "RDMA needs Linux 5.12 and rdma-core 35, for programs that fork, and netlink",
            ));
        }
        let channel = rdma_create_event_channel();
        if channel.is_null() {
            return Err(match io::Error::last_os_error().raw_os_error() {
                Some(libc::EOPNOTSUPP) => unsupported("librdmacm.so.1 is not installed"),
                _ => last("the RDMA connection manager"),
            });
        }
        rdma_destroy_event_channel(channel);
    }
    Ok(())
}

/// A protection domain of a device. It stays to the end of the process.
struct Card {
    pd: *mut ibv_pd,
    access: ibv_access_flags,
}

impl Drop for Card {
    fn drop(&mut self) {
        // SAFETY: nothing was made in it that is still there.
        unsafe { ibv_dealloc_pd(self.pd) };
    }
}

// SAFETY: libibverbs may be called by any thread.
unsafe impl Send for Card {}
// SAFETY: as above.
unsafe impl Sync for Card {}

impl Nic for Card {
    fn register(&self, start: *mut u8, len: usize) -> io::Result<Keys> {
        // SAFETY: the memory stays until it is deregistered.
        unsafe {
            let mr = ibv_reg_mr(self.pd, start.cast(), len, self.access.0 as c_int);
            if mr.is_null() {
                let error = last(&format!("registering {len} bytes"));
                let hint = match error.kind() {
                    io::ErrorKind::OutOfMemory => " (raise the limit on locked memory, ulimit -l)",
                    _ => "",
                };
                return Err(io::Error::new(error.kind(), format!("{error}{hint}")));
            }
            Ok(Keys { local: (*mr).lkey, remote: (*mr).rkey, handle: mr.expose_provenance() })
        }
    }

    fn register_device(&self, memory: &DmaBuf) -> io::Result<Keys> {
        let DmaBuf { fd, offset, address, len } = memory;
        // What the other side writes there nobody else reads over the network.
        let access =
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let (fd, access) = (fd.as_raw_fd(), access.0 as c_int);
        // SAFETY: the memory stays until it is deregistered, and the kernel knows whose it is.
        unsafe {
            let mr = ibv_reg_dmabuf_mr(self.pd, *offset, *len, *address, fd, access);
            if mr.is_null() {
                return Err(last(&format!("registering {len} bytes as a dma-buf")));
            }
            Ok(Keys { local: (*mr).lkey, remote: (*mr).rkey, handle: mr.expose_provenance() })
        }
    }

    fn deregister(&self, keys: Keys) {
        if !may_use_cards() {
            return;
        }
        let mr: *mut ibv_mr = std::ptr::with_exposed_provenance_mut(keys.handle);
        // SAFETY: it was registered, and is deregistered once.
        let answer = unsafe { ibv_dereg_mr(mr) };
        if let Err(error) = check("forgetting memory", answer) {
            tracing::warn!(%error, "RDMA");
        }
    }
}

/// What one side uses of a device. Callers let others into their memory; servers do not, and use a
/// domain of their own: what callers show is of no use on a connection that was accepted.
pub(super) fn domain(
    context: *mut ibv_context,
    side: Side,
) -> io::Result<(Arc<Domain>, *mut ibv_pd)> {
    type Known = (usize, Side, Arc<Domain>, usize);
    static DOMAINS: Mutex<Vec<Known>> = Mutex::new(Vec::new());
    let mut domains = DOMAINS.lock();
    let known = domains.iter().find(|(at, of, ..)| (*at, *of) == (context.addr(), side));
    if let Some((_, _, domain, pd)) = known {
        if let Some(why) = domain.failed() {
            return Err(io::Error::other(why.to_owned()));
        }
        return Ok((domain.clone(), std::ptr::with_exposed_provenance_mut(*pd)));
    }
    // SAFETY: the device stays open to the end of the process: the list of them is never given
    // back, so that none gets the address of one that was taken out.
    let (pd, iwarp) = unsafe {
        rdma_get_devices(null_mut());
        let kind = (*(*context).device).transport_type;
        (ibv_alloc_pd(context), kind == ibv_transport_type::IBV_TRANSPORT_IWARP)
    };
    if pd.is_null() {
        return Err(last("a protection domain"));
    }
    let mut access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    if side == Side::Caller {
        access = access
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
    } else if iwarp {
        // There, what a read brings is written by the other side.
        access |= ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
    }
    let domain = Domain::new(Box::new(Card { pd, access }))?;
    domains.push((context.addr(), side, domain.clone(), pd.expose_provenance()));
    Ok((domain, pd))
}
