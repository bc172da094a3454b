//! One request buffer that is shared with the kernel.

use super::ring_queue::Outbox;
use crate::abi::{self, Encoded, MAX_REQUEST, Malformed, Request};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// Parts of the header, as in `struct fuse_uring_req_header`: the header of a request or reply, the
/// record of the operation, and what io_uring adds.
const RECORD_AT: usize = 128;
const ENTRY_AT: usize = 256;
const HEADER_LEN: usize = 288;
const COMMIT_ID_AT: usize = ENTRY_AT + 8;
const PAYLOAD_LEN_AT: usize = ENTRY_AT + 16;
/// The payload begins on a page of its own.
const PAYLOAD_AT: usize = 4096;
const LEN: usize = PAYLOAD_AT + MAX_REQUEST as usize;

/// A buffer with its place in a queue.
///
/// The kernel and this process own it in turns. From the completion that brings a request until the
/// commit of its answer it is ours: the ring's thread reads the request, then whoever answers
/// writes the answer, once, and hands it to the ring's thread. Between, nobody here touches it.
pub struct RingEntry {
    memory: NonNull<u8>,
    /// Of the queue in the kernel.
    pub queue: u16,
    /// Among the entries of its ring.
    pub index: usize,
    outbox: Arc<Outbox>,
    /// What REGISTER is given; must not move.
    parts: [libc::iovec; 2],
}

// SAFETY: `memory` is owned by the entry and passed on as told above; the outbox's lock orders the
// writer before the thread that commits. `parts` only repeats addresses and is never written.
unsafe impl Send for RingEntry {}
// SAFETY: as above.
unsafe impl Sync for RingEntry {}

impl RingEntry {
    /// Memory is taken when it is used: a queue that gets no long requests stays small.
    pub fn new(queue: u16, index: usize, outbox: Arc<Outbox>) -> io::Result<Self> {
        // SAFETY: a new anonymous mapping; nothing else is at its address.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                LEN,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory =
            NonNull::<u8>::new(memory.cast()).ok_or_else(|| io::Error::other("mmap at 0"))?;
        let part = |at: usize, len| libc::iovec {
            // SAFETY: both offsets lie within the mapping.
            iov_base: unsafe { memory.as_ptr().add(at) }.cast(),
            iov_len: len,
        };
        let parts = [part(0, HEADER_LEN), part(PAYLOAD_AT, MAX_REQUEST as usize)];
        Ok(Self { memory, queue, index, outbox, parts })
    }

    /// Address of the two parts, for REGISTER.
    pub fn parts(&self) -> u64 {
        self.parts.as_ptr() as u64
    }

    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        assert!(at + len <= LEN);
        // SAFETY: within the mapping, which is initialised; owned by this side, see the type.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(at), len) }
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= LEN);
        // SAFETY: within the mapping, which `bytes` cannot be part of: answers own their data; no
        // other reference is alive, see the type.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.memory.as_ptr().add(at),
                bytes.len(),
            );
        }
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.bytes(at, 4).try_into().expect("four bytes"))
    }

    /// What a commit names the request by.
    pub fn commit_id(&self) -> u64 {
        u64::from_ne_bytes(self.bytes(COMMIT_ID_AT, 8).try_into().expect("eight bytes"))
    }

    pub fn header(&self) -> &[u8] {
        self.bytes(0, abi::IN_HEADER)
    }

    /// As the kernel puts a request there.
    #[cfg(test)]
    pub fn receive(&self, header: &[u8], record: &[u8]) {
        self.put(0, header);
        self.put(RECORD_AT, record);
        self.put(PAYLOAD_LEN_AT, &0u32.to_ne_bytes());
    }

    /// The request that a completion brought.
    pub fn request(&self) -> Result<Request<'_>, Malformed> {
        let len = self.u32(PAYLOAD_LEN_AT);
        if len > MAX_REQUEST {
            return Err(Malformed::Length);
        }
        let (record, payload) = (self.bytes(RECORD_AT, 128), self.bytes(PAYLOAD_AT, len as usize));
        abi::decode_parts(self.header(), record, payload)
    }

    /// Writes the answer and has it committed by the thread of the ring.
    pub fn answer(self: &Arc<Self>, reply: &Encoded<'_>) {
        let len = reply.record().len() + reply.data().iter().map(|d| d.len()).sum::<usize>();
        assert!(len <= MAX_REQUEST as usize, "an answer of {len} bytes");
        let mut at = PAYLOAD_AT;
        for part in std::iter::once(reply.record()).chain(reply.data().iter().map(|d| &d[..])) {
            self.put(at, part);
            at += part.len();
        }
        self.put(0, reply.header());
        self.put(PAYLOAD_LEN_AT, &((at - PAYLOAD_AT) as u32).to_ne_bytes());
        self.outbox.commit(self.index);
    }
}

impl Drop for RingEntry {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`. The kernel does not use it any more: the ring's thread
        // drops entries after the ring.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), LEN) };
    }
}
