//! A drive through io_uring: one thread owns the ring, everybody else hands it requests.
//!
//! Invariants: a request's memory lives in its slot until the kernel has answered; the thread ends
//! only when the device was dropped and nothing is in flight; requests are submitted in batches, one
//! system call for all that wait.

use super::BLOCK;
use super::device::{Device, Done};
use super::file::TargetFile;
use super::worker::Worker;
use super::{DISCARD_RATE, Tuning, kernel};
use bytes::Bytes;
use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use weft_net::AlignedBuf;

/// Most requests in flight at the drive; the rest waits in the queue.
const DEPTH: usize = 128;
const WAKE: u64 = u64::MAX;
/// The only registered file.
const DRIVE: types::Fixed = types::Fixed(0);

pub(super) struct Uring {
    shared: Arc<Shared>,
    /// For what does not go through the ring.
    file: File,
    block_device: bool,
    size: u64,
    /// Whether the drive has a volatile cache.
    flushes: bool,
    discard_rate: u64,
    thread: Worker,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: OwnedFd,
    /// When the oldest request in flight was submitted, as of the thread's last turn.
    oldest: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<Request>,
    /// The thread waits in the kernel and must be woken.
    asleep: bool,
    closed: bool,
}

enum Request {
    Read { off: u64, buffer: AlignedBuf, done: oneshot::Sender<io::Result<AlignedBuf>> },
    Write { off: u64, pieces: Vec<Bytes>, flush: bool, done: oneshot::Sender<io::Result<()>> },
    Flush { done: oneshot::Sender<io::Result<()>> },
}

/// A request at the drive.
struct Slot {
    request: Request,
    /// Bytes moved so far.
    moved: usize,
    iovecs: Vec<libc::iovec>,
    since: Instant,
}

impl Uring {
    /// Takes the file, of `size` usable bytes. Errors: no io_uring, or no thread.
    pub fn new(target: TargetFile, size: u64, name: &str, tuning: Tuning) -> io::Result<Self> {
        let TargetFile { file, block_device, .. } = target;
        // A file always needs the flush: the filesystem keeps records of its own about it.
        let flushes = !block_device || tuning.flush.unwrap_or_else(|| kernel::caches_writes(&file));
        let takes = kernel::discards(&file, block_device);
        let discard_rate = tuning.discard.unwrap_or(if takes { DISCARD_RATE } else { 0 });
        tracing::info!("{name}: flush {flushes}, discard {discard_rate} bytes/s");
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, owned by nobody else.
        let wake = unsafe { OwnedFd::from_raw_fd(fd) };
        let shared = Arc::new(Shared { queue: Mutex::default(), wake, oldest: Mutex::default() });
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        let theirs = shared.clone();
        let kept = file.try_clone()?;
        let work = move || match Ring::new(&file, theirs) {
            Ok(mut ring) => {
                let _ = ready.send(Ok(()));
                if ring.run() {
                    ring.release(&file);
                }
            }
            Err(e) => drop(ready.send(Err(e))),
        };
        let thread = Worker::start(&format!("drive {name}"), work)?;
        started.recv().map_err(|_| io::Error::other("the drive's thread died"))??;
        Ok(Self { shared, file: kept, block_device, size, flushes, discard_rate, thread })
    }

    fn push(&self, request: Request) {
        let mut queue = self.shared.queue.lock();
        queue.requests.push_back(request);
        let wake = std::mem::take(&mut queue.asleep);
        drop(queue);
        if wake {
            self.shared.wake();
        }
    }

    fn write_request(&self, off: u64, pieces: Vec<Bytes>, flush: bool) -> Done<()> {
        let (done, result) = Done::channel();
        debug_assert!(pieces.iter().all(|p| (p.len() as u64).is_multiple_of(BLOCK)));
        self.push(Request::Write { off, pieces, flush, done });
        result
    }
}

impl Device for Uring {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, off: u64, len: usize) -> Done<AlignedBuf> {
        let (done, result) = Done::channel();
        self.push(Request::Read { off, buffer: AlignedBuf::take(len), done });
        result
    }

    fn write(&self, off: u64, pieces: Vec<Bytes>) -> Done<()> {
        self.write_request(off, pieces, false)
    }

    fn commit(&self, off: u64, piece: Bytes) -> Done<()> {
        self.write_request(off, vec![piece], self.flushes)
    }

    fn flush(&self) -> Done<()> {
        let (done, result) = Done::channel();
        if self.flushes {
            self.push(Request::Flush { done });
        } else {
            drop(done.send(Ok(()))); // every write that had completed is durable
        }
        result
    }

    fn discard_rate(&self) -> u64 {
        self.discard_rate
    }

    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        kernel::discard(&self.file, self.block_device, off, len)
    }

    fn stalled(&self) -> Duration {
        self.shared.oldest.lock().map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.wake();
        if !self.thread.wait(|| self.stalled()) {
            tracing::error!("the drive hangs and is left behind; its memory is kept");
        }
    }
}

impl Shared {
    fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the eventfd is open and eight bytes are readable. A full counter also wakes.
        unsafe { libc::write(self.wake.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

/// The thread's side.
struct Ring {
    uring: IoUring,
    shared: Arc<Shared>,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// Slots whose (next) entry has not been pushed yet.
    ready: VecDeque<usize>,
    /// Kept between turns, so that no turn allocates.
    answers: Vec<(u64, i32)>,
    woken: Box<[u8; 8]>,
    wake_armed: bool,
}

impl Ring {
    fn new(file: &File, shared: Arc<Shared>) -> io::Result<Self> {
        let entries = (DEPTH * 2) as u32;
        let uring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(entries)
            .or_else(|_| IoUring::new(entries))?;
        uring.submitter().register_files(&[file.as_raw_fd()])?;
        Ok(Self {
            uring,
            shared,
            slots: (0..DEPTH).map(|_| None).collect(),
            free: (0..DEPTH).rev().collect(),
            ready: VecDeque::new(),
            answers: Vec::new(),
            woken: Box::new([0; 8]),
            wake_armed: false,
        })
    }

    /// Serves until the device was dropped. `false`: the ring failed before.
    fn run(&mut self) -> bool {
        loop {
            let closed = self.take_requests();
            if closed && self.free.len() == DEPTH {
                return true;
            }
            self.push_entries();
            let oldest = self.slots.iter().flatten().map(|s| s.since).min();
            *self.shared.oldest.lock() = oldest;
            match self.uring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e)
                    if matches!(
                        e.raw_os_error(),
                        Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)
                    ) => {}
                Err(e) => {
                    tracing::error!("io_uring_enter: {e}");
                    self.abandon();
                    return false;
                }
            }
            self.complete();
        }
    }

    /// Lets go of the drive now: the kernel takes rings apart in the background, and until then the
    /// file would stay open and locked. Nothing is in flight.
    fn release(&self, file: &File) {
        if let Err(e) = self.uring.submitter().unregister_files() {
            tracing::warn!("io_uring: releasing the drive: {e}");
        }
        // SAFETY: plain system call on an open descriptor.
        unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
    }

    /// Moves queued requests into free slots. Answers whether the device was dropped.
    fn take_requests(&mut self) -> bool {
        let since = Instant::now();
        let mut queue = self.shared.queue.lock();
        while !queue.requests.is_empty()
            && let Some(slot) = self.free.pop()
        {
            let request = queue.requests.pop_front().expect("not empty");
            self.slots[slot] = Some(Slot { request, moved: 0, iovecs: Vec::new(), since });
            self.ready.push_back(slot);
        }
        queue.asleep = queue.requests.is_empty();
        queue.closed && queue.requests.is_empty()
    }

    fn push_entries(&mut self) {
        let Self { uring, slots, ready, .. } = self;
        let mut submission = uring.submission();
        for slot in ready.drain(..) {
            let state = slots[slot].as_mut().expect("a ready slot is filled");
            let entry = state.entry().user_data(slot as u64);
            // SAFETY: the memory belongs to the slot, which is kept until the answer. Twice as many
            // entries as slots: there is room.
            unsafe { submission.push(&entry) }.expect("the submission queue has room");
        }
        if !self.wake_armed {
            let fd = types::Fd(self.shared.wake.as_raw_fd());
            let entry = opcode::Read::new(fd, self.woken.as_mut_ptr(), 8).build().user_data(WAKE);
            // SAFETY: the buffer lives as long as the ring; one such read is out at a time.
            unsafe { submission.push(&entry) }.expect("the submission queue has room");
            self.wake_armed = true;
        }
    }

    fn complete(&mut self) {
        let mut answers = std::mem::take(&mut self.answers);
        answers.extend(self.uring.completion().map(|c| (c.user_data(), c.result())));
        for (who, result) in answers.drain(..) {
            if who == WAKE {
                self.wake_armed = false;
                continue;
            }
            let slot = who as usize;
            let state = self.slots[slot].as_mut().expect("answers come for filled slots");
            match state.advance(result) {
                None => self.ready.push_back(slot),
                Some(outcome) => {
                    let state = self.slots[slot].take().expect("checked above");
                    self.free.push(slot);
                    state.request.finish(outcome);
                }
            }
        }
        self.answers = answers;
    }

    /// The ring does not work any more. What is in flight may still be written or read by the
    /// kernel, so its memory is never freed; every caller gets an error.
    fn abandon(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.closed = true;
        queue.requests.clear();
        drop(queue);
        for state in self.slots.iter_mut().filter_map(Option::take) {
            let Slot { request, iovecs, .. } = state;
            std::mem::forget(iovecs);
            request.leak();
        }
    }
}

impl Request {
    fn finish(self, outcome: io::Result<()>) {
        // Nobody listening any more is fine.
        match self {
            Self::Read { buffer, done, .. } => drop(done.send(outcome.map(|()| buffer))),
            Self::Write { done, .. } | Self::Flush { done } => drop(done.send(outcome)),
        }
    }

    fn leak(self) {
        match self {
            Self::Read { buffer, .. } => std::mem::forget(buffer),
            Self::Write { pieces, .. } => std::mem::forget(pieces),
            Self::Flush { .. } => {}
        }
    }
}

impl Slot {
    /// The next submission for this request.
    fn entry(&mut self) -> squeue::Entry {
        let moved = self.moved;
        match &mut self.request {
            Request::Read { off, buffer, .. } => {
                let rest = &mut buffer.as_mut_slice()[moved..];
                opcode::Read::new(DRIVE, rest.as_mut_ptr(), rest.len() as u32)
                    .offset(*off + moved as u64)
                    .build()
            }
            Request::Write { pieces, .. } if moved == total(pieces) => flush_entry(),
            Request::Write { off, pieces, .. } => {
                let mut skip = moved;
                self.iovecs.clear();
                for piece in pieces.iter() {
                    let rest = &piece[skip.min(piece.len())..];
                    skip -= skip.min(piece.len());
                    if !rest.is_empty() {
                        self.iovecs.push(libc::iovec {
                            iov_base: rest.as_ptr().cast_mut().cast(),
                            iov_len: rest.len(),
                        });
                    }
                }
                opcode::Writev::new(DRIVE, self.iovecs.as_ptr(), self.iovecs.len() as u32)
                    .offset(*off + moved as u64)
                    .build()
            }
            Request::Flush { .. } => flush_entry(),
        }
    }

    /// Takes the kernel's answer; `None` when there is more to submit.
    fn advance(&mut self, result: i32) -> Option<io::Result<()>> {
        if matches!(-result, libc::EINTR | libc::EAGAIN) {
            return None;
        }
        if result < 0 {
            return Some(Err(io::Error::from_raw_os_error(-result)));
        }
        let moved = result as usize;
        let (len, flush) = match &self.request {
            Request::Read { buffer, .. } => (buffer.as_ref().len(), false),
            Request::Write { pieces, flush, .. } => (total(pieces), *flush),
            Request::Flush { .. } => return Some(Ok(())),
        };
        if self.moved == len {
            return Some(Ok(())); // the flush after a write
        }
        if moved == 0 {
            return Some(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        self.moved += moved;
        (self.moved == len && !flush).then_some(Ok(()))
    }
}

fn total(pieces: &[Bytes]) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

fn flush_entry() -> squeue::Entry {
    opcode::Fsync::new(DRIVE).flags(types::FsyncFlags::DATASYNC).build()
}
