//! Queue pairs of real cards, through libibverbs.

use super::card::{check, domain};
use super::connection::{RECEIVES, SENDS, Side};
use super::id::{Id, last, may_use_cards, named, nonblocking};
use super::memory::Domain;
use super::nic::{Completion, Done, Local, QueuePair};
use super::wire::Piece;
use crate::sync::Mutex;
use rdma_mummy_sys::*;
use std::ffi::{CStr, c_int, c_uint};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::unix::AsyncFd;

/// Completions that are taken at a time.
const BATCH: usize = 16;
/// Reads under way that are asked for.
pub(super) const READS: u8 = 16;

/// Tells of completions.
struct CompletionChannel(*mut ibv_comp_channel);

// SAFETY: libibverbs may be called by any thread.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: it is there until this is dropped.
        unsafe { (*self.0).fd }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        if may_use_cards() {
            // SAFETY: the queue that used it is destroyed before.
            unsafe { ibv_destroy_comp_channel(self.0) };
        }
    }
}

/// A queue pair with a completion queue of its own. Fields are dropped in this order.
struct Verbs {
    cq: *mut ibv_cq,
    reads: usize,
    /// Whether the queue pair is still there.
    there: Mutex<bool>,
    channel: AsyncFd<CompletionChannel>,
    id: Arc<Id>,
}

// SAFETY: libibverbs may be called by any thread.
unsafe impl Send for Verbs {}
// SAFETY: as above.
unsafe impl Sync for Verbs {}

/// Makes a queue pair for a connection that is about to be made.
pub(super) fn queue_pair(
    id: &Arc<Id>,
    side: Side,
    reads: usize,
) -> io::Result<(Box<dyn QueuePair>, Arc<Domain>)> {
    // SAFETY: `id` is bound to a device; what is made is destroyed when it is dropped, in the order
    // that the library wants.
    unsafe {
        let context = (*id.at).verbs;
        if context.is_null() {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let (domain, pd) = domain(context, side)?;
        let channel = ibv_create_comp_channel(context);
        if channel.is_null() {
            return Err(last("a completion channel"));
        }
        let channel = CompletionChannel(channel);
        nonblocking(channel.as_raw_fd())?;
        // The descriptor is the channel's as long as that is there.
        let channel = AsyncFd::register(channel).map_err(io::Error::from)?;
        let entries = (SENDS + RECEIVES) as c_int;
        let cq = ibv_create_cq(context, entries, null_mut(), channel.get_ref().0, 0);
        if cq.is_null() {
            return Err(last("a completion queue"));
        }
        let there = Mutex::new(false);
        let verbs = Verbs { cq, reads, there, channel, id: id.clone() };
        let mut attributes: ibv_qp_init_attr = std::mem::zeroed();
        attributes.send_cq = cq;
        attributes.recv_cq = cq;
        attributes.qp_type = ibv_qp_type::IBV_QPT_RC;
        attributes.cap.max_send_wr = SENDS as u32;
        attributes.cap.max_recv_wr = RECEIVES as u32;
        attributes.cap.max_send_sge = 1;
        attributes.cap.max_recv_sge = 1;
        if rdma_create_qp(id.at, pd, &raw mut attributes) != 0 {
            return Err(last("a queue pair"));
        }
        *verbs.there.lock() = true;
        Ok((Box::new(verbs), domain))
    }
}

/// Reads that a device lets each side have under way, of the sort that it answers.
pub(super) fn reads(id: &Id) -> io::Result<u8> {
    // SAFETY: `id` is bound to a device.
    unsafe {
        let mut attributes: ibv_device_attr = std::mem::zeroed();
        check("a device", ibv_query_device((*id.at).verbs, &raw mut attributes))?;
        let most = attributes.max_qp_rd_atom.min(attributes.max_qp_init_rd_atom);
        Ok(most.clamp(1, READS.into()) as u8)
    }
}

impl Verbs {
    fn post(&self, mut request: ibv_send_wr, at: Local) -> io::Result<()> {
        let mut element = element(at);
        request.sg_list = &raw mut element;
        request.num_sge = 1;
        let mut refused = null_mut();
        // SAFETY: the queue pair is there as long as anything is posted, and the memory, too.
        let answer = unsafe { ibv_post_send((*self.id.at).qp, &raw mut request, &raw mut refused) };
        check("posting a request", answer)
    }
}

fn element(at: Local) -> ibv_sge {
    ibv_sge { addr: at.start.expose_provenance() as u64, length: at.len as u32, lkey: at.key }
}

fn request(id: u64, opcode: ibv_wr_opcode::Type, told: bool) -> ibv_send_wr {
    // SAFETY: all of it is numbers and pointers.
    let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
    request.wr_id = id;
    request.opcode = opcode;
    request.send_flags = if told { ibv_send_flags::IBV_SEND_SIGNALED.0 as c_uint } else { 0 };
    request
}

fn remote(at: Piece) -> wr_t {
    wr_t { rdma: rdma_t { remote_addr: at.address, rkey: at.key } }
}

// SAFETY: `destroy` destroys the queue pair, after which the card uses no memory for it.
unsafe impl QueuePair for Verbs {
    fn send(&self, id: u64, message: Local) -> io::Result<()> {
        self.post(request(id, ibv_wr_opcode::IBV_WR_SEND, true), message)
    }

    fn write(&self, id: u64, from: Local, to: Piece, told: bool) -> io::Result<()> {
        let request = request(id, ibv_wr_opcode::IBV_WR_RDMA_WRITE, told);
        self.post(ibv_send_wr { wr: remote(to), ..request }, from)
    }

    fn read(&self, id: u64, into: Local, from: Piece) -> io::Result<()> {
        let request = request(id, ibv_wr_opcode::IBV_WR_RDMA_READ, true);
        self.post(ibv_send_wr { wr: remote(from), ..request }, into)
    }

    fn receive(&self, id: u64, into: Local) -> io::Result<()> {
        let mut element = element(into);
        let mut request =
            ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &raw mut element, num_sge: 1 };
        let mut refused = null_mut();
        // SAFETY: as in `post`.
        let answer = unsafe { ibv_post_recv((*self.id.at).qp, &raw mut request, &raw mut refused) };
        check("posting memory for a message", answer)
    }

    fn poll(&self, ended: &mut Vec<Completion>) -> io::Result<()> {
        // SAFETY: all of it is numbers; as many are looked at as were filled.
        let mut entries: [ibv_wc; BATCH] = unsafe { std::mem::zeroed() };
        // SAFETY: the completion queue is there until this is dropped.
        let count = unsafe { ibv_poll_cq(self.cq, BATCH as i32, entries.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| last("polling completions"))?;
        for entry in &entries[..count] {
            if entry.status != ibv_wc_status::IBV_WC_SUCCESS {
                return Err(failure(entry.status));
            }
            let done = match entry.opcode {
                ibv_wc_opcode::IBV_WC_SEND => Done::Sent,
                ibv_wc_opcode::IBV_WC_RDMA_WRITE => Done::Written,
                ibv_wc_opcode::IBV_WC_RDMA_READ => Done::Read,
                ibv_wc_opcode::IBV_WC_RECV => Done::Received(entry.byte_len as usize),
                other => return Err(io::Error::other(format!("an unknown completion {other}"))),
            };
            ended.push(Completion { id: entry.wr_id, done });
        }
        Ok(())
    }

    fn arm(&self) -> io::Result<()> {
        // SAFETY: the completion queue is there until this is dropped.
        check("arming a completion queue", unsafe { ibv_req_notify_cq(self.cq, 0) })
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.channel.poll_read_ready(cx))?;
            let (mut cq, mut context) = (null_mut(), null_mut());
            // SAFETY: the channel does not block; its event is told of once.
            let answer = unsafe {
                let channel = self.channel.get_ref().0;
                ibv_get_cq_event(channel, &raw mut cq, &raw mut context)
            };
            if answer == 0 {
                // SAFETY: the queue is ours.
                unsafe { ibv_ack_cq_events(cq, 1) };
                return Poll::Ready(Ok(()));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::WouldBlock {
                return Poll::Ready(Err(named("waiting for completions", error)));
            }
            ready.clear_ready();
        }
    }

    fn reads(&self) -> usize {
        self.reads
    }

    fn disconnect(&self) {
        let there = self.there.lock();
        if *there {
            // SAFETY: the queue pair is there while the lock is held.
            unsafe { rdma_disconnect(self.id.at) };
        }
    }

    fn destroy(&self) {
        let mut there = self.there.lock();
        if std::mem::take(&mut *there) && may_use_cards() {
            // SAFETY: nothing is posted to it any more.
            unsafe {
                rdma_disconnect(self.id.at);
                rdma_destroy_qp(self.id.at);
            }
        }
    }
}

impl Drop for Verbs {
    fn drop(&mut self) {
        self.destroy();
        if may_use_cards() {
            // SAFETY: nothing uses the queue any more, and all its events were told of.
            unsafe { ibv_destroy_cq(self.cq) };
        }
    }
}

fn failure(status: ibv_wc_status::Type) -> io::Error {
    if status == ibv_wc_status::IBV_WC_WR_FLUSH_ERR {
        return io::ErrorKind::ConnectionReset.into();
    }
    // SAFETY: the library answers a constant, or nothing.
    let what = unsafe {
        let text = ibv_wc_status_str(status);
        if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy()) }
    };
    io::Error::other(format!("RDMA: {} ({status})", what.unwrap_or_default()))
}
