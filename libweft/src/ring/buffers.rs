//! Buffers that a ring knows by number.

use super::life::weft_ring;
use super::queue::Queues;
use crate::error::{Answer, Failure, call_unit, failed};
use crate::memory::{Buffer, Buffers};
use libc::{c_int, c_uint, iovec};

impl Queues {
    /// A part of one. Errors: `EFAULT`.
    pub fn registered(&self, index: c_uint, off: usize, len: usize) -> Answer<Buffers> {
        let buffer = self.buffers.get(index as usize).copied().ok_or_else(|| {
            let what = format!("{} buffers are registered, none as {index}", self.buffers.len());
            Failure::new(libc::EFAULT, what)
        })?;
        buffer.part(off, len).map(Buffers::One)
    }
}

/// Errors: `EBUSY` while entries may use them.
fn idle(queues: &Queues) -> Answer<()> {
    match queues.prepared.len() + queues.under_way() {
        0 => Ok(()),
        n => failed(libc::EBUSY, format!("{n} entries are under way: reap them first")),
    }
}

/// Registers 1 to 1024 buffers, which entries name by index. They stay as they are until they are
/// unregistered or the ring is destroyed. -EBUSY if there are some already, or while entries are
/// under way. On TCP this saves nothing; networks that move bytes by themselves prepare them here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_ring_register_buffers(
    ring: *mut weft_ring,
    iov: *const iovec,
    n: c_int,
) -> c_int {
    call_unit("weft_ring_register_buffers", || {
        // SAFETY: the caller's pointers, see `crate`.
        let (ring, buffers) = unsafe { (weft_ring::of(ring)?, Buffers::read(iov, n)?) };
        let buffers: Vec<Buffer> = buffers.as_slice().to_vec();
        if buffers.is_empty() {
            return failed(libc::EINVAL, "there are no buffers");
        }
        let mut queues = ring.queues.lock();
        idle(&queues)?;
        if !queues.buffers.is_empty() {
            return failed(libc::EBUSY, "there are registered buffers: unregister them first");
        }
        queues.buffers = buffers;
        Ok(())
    })
}

/// Forgets the registered buffers. -EBUSY while entries are under way, -ENXIO if there are none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_ring_unregister_buffers(ring: *mut weft_ring) -> c_int {
    call_unit("weft_ring_unregister_buffers", || {
        // SAFETY: the caller's pointer, see `crate`.
        let ring = unsafe { weft_ring::of(ring)? };
        let mut queues = ring.queues.lock();
        idle(&queues)?;
        match std::mem::take(&mut queues.buffers).is_empty() {
            false => Ok(()),
            true => failed(libc::ENXIO, "no buffers are registered"),
        }
    })
}
