//! A drive through io_uring: one thread owns the ring, everybody else hands it requests.
//!
//! Invariants: a request's memory lives in its job until the kernel has answered for every part of
//! it; the thread ends only when the device was dropped and nothing is in flight, or the ring has
//! failed, and then every request is answered with an error; entries are submitted in
//! batches, one system call for all that wait; memory in the regions of [`weft_net::regions`] is
//! registered with the ring, so that the kernel need not look up the pages of every entry.

mod request;

use super::BLOCK;
use super::bulk::{BulkWindow, PART};
use super::device::{Device, Done};
use super::file::TargetFile;
use super::worker::Worker;
use super::{DISCARD_RATE, Tuning, kernel};
use bytes::Bytes;
use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use request::{CLASSES, Class, Request};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use weft_net::{AlignedBuf, Region};

/// Most entries at the drive; the rest waits here.
const DEPTH: usize = 256;
/// Most of them of each class, so that none starves another: [`Class`].
const SHARES: [usize; CLASSES] = [DEPTH / 4 * 3, DEPTH / 8, DEPTH / 4 * 3];
/// Room for regions in the table of registered buffers.
const REGIONS: u32 = 64;
/// Most bytes of one entry of a read.
const URGENT_PART: usize = 1 << 20;
const WAKE: u64 = u64::MAX;

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
    requests: [VecDeque<Request>; CLASSES],
    /// The thread waits in the kernel and must be woken.
    asleep: bool,
    closed: bool,
}

/// A request of which a part is or was at the drive.
struct Job {
    request: Request,
    class: Class,
    len: usize,
    /// Bytes up to which parts were made.
    issued: usize,
    /// Entries at the drive.
    out: usize,
    /// The flush after a write was made.
    flushed: bool,
    error: Option<io::Error>,
}

/// An entry at the drive.
#[derive(Clone, Default)]
struct Part {
    job: usize,
    /// The bytes of the request that it has yet to move; none: it is a flush.
    range: Range<usize>,
    /// When it was submitted; `None`: the slot is free.
    since: Option<Instant>,
}

impl Uring {
    /// Takes the file. Errors: no io_uring, or no thread.
    pub fn new(target: TargetFile, name: &str, tuning: Tuning) -> io::Result<Self> {
        let TargetFile { file, size, block_device } = target;
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

    fn push(&self, requests: impl IntoIterator<Item = Request>) {
        let mut queue = self.shared.queue.lock();
        if queue.closed {
            // Nobody takes them any more; whoever waits for one learns that as it is dropped.
            return;
        }
        for request in requests {
            queue.requests[request.class() as usize].push_back(request);
        }
        let wake = std::mem::take(&mut queue.asleep);
        drop(queue);
        if wake {
            self.shared.wake();
        }
    }

    fn write_request(&self, off: u64, pieces: Vec<Bytes>, record: bool) -> Done<()> {
        let (done, result) = Done::channel();
        debug_assert!(pieces.iter().all(|p| (p.len() as u64).is_multiple_of(BLOCK)));
        let flush = record && self.flushes;
        self.push([Request::Write { off, pieces, record, flush, done }]);
        result
    }
}

fn read_request(off: u64, len: usize) -> (Request, Done<AlignedBuf>) {
    let (done, result) = Done::channel();
    (Request::Read { off, buffer: AlignedBuf::take(len), done }, result)
}

impl Device for Uring {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, off: u64, len: usize) -> Done<AlignedBuf> {
        let (request, result) = read_request(off, len);
        self.push([request]);
        result
    }

    /// The thread is woken once for all of them.
    fn read_many(&self, places: &[(u64, usize)]) -> Vec<Done<AlignedBuf>> {
        let reads = places.iter().map(|&(off, len)| read_request(off, len));
        let (requests, results): (Vec<_>, _) = reads.unzip();
        self.push(requests);
        results
    }

    fn write(&self, off: u64, pieces: Vec<Bytes>) -> Done<()> {
        self.write_request(off, pieces, false)
    }

    fn commit(&self, off: u64, piece: Bytes) -> Done<()> {
        self.write_request(off, vec![piece], true)
    }

    fn flush(&self) -> Done<()> {
        let (done, result) = Done::channel();
        if self.flushes {
            self.push([Request::Flush { done }]);
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
    /// Taken from the queue, with no part at the drive yet.
    waiting: [VecDeque<Request>; CLASSES],
    jobs: Vec<Option<Job>>,
    free_jobs: Vec<usize>,
    /// The job of each class of which more parts are to be made.
    current: [Option<usize>; CLASSES],
    parts: Vec<Part>,
    free_parts: Vec<usize>,
    /// Parts that are to be submitted.
    ready: Vec<usize>,
    /// Entries of each class at the drive, and bytes of data among them.
    out: [usize; CLASSES],
    window: usize,
    bulk: BulkWindow,
    /// Data waits here that found no room.
    held: bool,
    /// Kept between turns, so that no turn allocates.
    answers: Vec<(u64, i32)>,
    woken: Box<[u8; 8]>,
    wake_armed: bool,
    /// Regions that are registered, by their index there; `None`: the kernel refused one.
    registered: Option<Vec<&'static Region>>,
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
        let sparse = uring.submitter().register_buffers_sparse(REGIONS);
        Ok(Self {
            uring,
            shared,
            waiting: Default::default(),
            jobs: (0..DEPTH).map(|_| None).collect(),
            free_jobs: (0..DEPTH).rev().collect(),
            current: [None; CLASSES],
            parts: (0..DEPTH).map(|_| Part::default()).collect(),
            free_parts: (0..DEPTH).rev().collect(),
            ready: Vec::with_capacity(DEPTH),
            out: [0; CLASSES],
            window: 0,
            bulk: BulkWindow::default(),
            held: false,
            answers: Vec::with_capacity(DEPTH * 2),
            woken: Box::new([0; 8]),
            wake_armed: false,
            registered: sparse.is_ok().then(Vec::new),
        })
    }

    /// Serves until the device was dropped. `false`: the ring failed before.
    fn run(&mut self) -> bool {
        loop {
            let closed = self.take_requests();
            self.make_parts(Class::Urgent);
            self.make_parts(Class::Small);
            self.make_parts(Class::Bulk);
            self.look_who_waits();
            self.register();
            if closed && self.free_parts.len() == DEPTH {
                return true;
            }
            self.push_entries();
            *self.shared.oldest.lock() = self.parts.iter().filter_map(|p| p.since).min();
            match self.uring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e)
                    if matches!(
                        e.raw_os_error(),
                        Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)
                    ) => {}
                Err(e) => {
                    tracing::error!("io_uring_enter: {e}");
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

    /// Takes over what was queued. Answers whether the device was dropped.
    fn take_requests(&mut self) -> bool {
        let mut queue = self.shared.queue.lock();
        for (mine, theirs) in self.waiting.iter_mut().zip(&mut queue.requests) {
            mine.append(theirs);
        }
        queue.asleep = true;
        queue.closed
    }

    /// Makes parts of the requests of a class, the first first, as far as there is room.
    fn make_parts(&mut self, class: Class) {
        let at = class as usize;
        let (window, most) = match class {
            Class::Urgent | Class::Small => (usize::MAX, URGENT_PART),
            Class::Bulk => (self.bulk.limit(), PART),
        };
        // Other classes may have all parts; what is taken out of its queue needs one.
        while self.out[at] < SHARES[at] && self.window < window && !self.free_parts.is_empty() {
            let Some(job) = self.current[at].or_else(|| self.next_job(class)) else { break };
            let Some(part) = self.free_parts.pop() else { break };
            let state = self.jobs[job].as_mut().expect("a current job is there");
            let end = state.request.run_end(state.issued).min(state.issued + most);
            self.parts[part].range = state.issued..end;
            if class == Class::Bulk {
                self.window += end - state.issued;
            }
            state.issued = end;
            self.current[at] = (end < state.len).then_some(job);
            self.submit(part, job);
        }
    }

    /// Whether data is held back, and then, if it is not for the window, by what else it is.
    fn look_who_waits(&mut self) {
        let bulk = Class::Bulk as usize;
        self.held = self.current[bulk].is_some() || !self.waiting[bulk].is_empty();
        if self.held && self.window < self.bulk.limit() {
            self.bulk.cap(self.window);
        }
    }

    fn next_job(&mut self, class: Class) -> Option<usize> {
        let waiting = &mut self.waiting[class as usize];
        while waiting.pop_front_if(|request| request.is_abandoned()).is_some() {}
        let at = self.free_jobs.pop()?;
        let Some(request) = self.waiting[class as usize].pop_front() else {
            self.free_jobs.push(at);
            return None;
        };
        let len = request.len();
        self.jobs[at] =
            Some(Job { request, class, len, issued: 0, out: 0, flushed: false, error: None });
        Some(at)
    }

    /// Counts a part as at the drive.
    fn submit(&mut self, part: usize, job: usize) {
        let state = self.jobs[job].as_mut().expect("a job has its parts");
        state.out += 1;
        self.out[state.class as usize] += 1;
        self.parts[part].job = job;
        self.parts[part].since = Some(Instant::now());
        self.ready.push(part);
    }

    /// Makes regions known to the kernel that have come since the last turn.
    fn register(&mut self) {
        let Some(known) = &mut self.registered else { return };
        for region in weft_net::regions().skip(known.len()).take(REGIONS as usize - known.len()) {
            let memory =
                libc::iovec { iov_base: region.start().cast(), iov_len: weft_net::Region::LEN };
            // SAFETY: a region stays where it is for the life of the process.
            let done = unsafe {
                self.uring.submitter().register_buffers_update(known.len() as u32, &[memory], None)
            };
            if let Err(e) = done {
                tracing::warn!(
                    "io_uring: buffers cannot be registered ({e}), which costs speed: raise the \
                     limit of locked memory (LimitMEMLOCK)"
                );
                self.registered = None;
                return;
            }
            known.push(region);
        }
    }

    fn push_entries(&mut self) {
        let Self { uring, jobs, parts, ready, registered, .. } = self;
        let known = registered.as_deref().unwrap_or_default();
        let mut submission = uring.submission();
        for at in ready.drain(..) {
            let part = &parts[at];
            let job = jobs[part.job].as_mut().expect("a part has its job");
            let entry = job.request.entry(&part.range, known).user_data(at as u64);
            // SAFETY: the memory belongs to the job, which is kept until the answer. Twice as many
            // entries as parts: there is room.
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
            match who {
                WAKE => self.wake_armed = false,
                part => self.answered(part as usize, result),
            }
        }
        self.answers = answers;
    }

    fn answered(&mut self, at: usize, result: i32) {
        let part = &mut self.parts[at];
        let flush = part.range.is_empty();
        let job = self.jobs[part.job].as_mut().expect("a part has its job");
        let moved = match result {
            again if matches!(-again, libc::EINTR | libc::EAGAIN) => return self.ready.push(at),
            error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
            0 if !flush => Err(io::ErrorKind::UnexpectedEof.into()),
            moved => Ok(moved as usize),
        };
        let left = part.range.len();
        match moved {
            Ok(moved) => part.range.start += moved.min(left),
            Err(error) => {
                job.error.get_or_insert(error);
                // No more parts of it.
                part.range.start = part.range.end;
                job.issued = job.len;
                self.current[job.class as usize].take_if(|current| *current == part.job);
            }
        }
        if job.class == Class::Bulk {
            self.window -= left - part.range.len();
        }
        if !part.range.is_empty() {
            return self.ready.push(at);
        }
        if let (Some(since), None) = (part.since, &job.error) {
            match (job.class, &job.request) {
                (Class::Bulk, _) if self.held => self.bulk.note_write(left, since, Instant::now()),
                (_, Request::Read { .. }) => self.bulk.note_read(Instant::now()),
                _ => {}
            }
        }
        self.out[job.class as usize] -= 1;
        job.out -= 1;
        part.since = None;
        let at_job = part.job;
        if job.out > 0 || job.issued < job.len {
            return self.free_parts.push(at);
        }
        if job.request.flushes() && !job.flushed && job.error.is_none() {
            job.flushed = true;
            part.range = 0..0;
            return self.submit(at, at_job);
        }
        self.free_parts.push(at);
        self.free_jobs.push(at_job);
        let job = self.jobs[at_job].take().expect("checked above");
        job.request.finish(job.error.map_or(Ok(()), Err));
    }
}

/// Whatever ended the thread, nobody waits for it. What is in flight may still be written or read
/// by the kernel, so its memory is never freed; every caller gets an error, at once and from now
/// on.
impl Drop for Ring {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.closed = true;
        let requests = std::mem::take(&mut queue.requests);
        drop(queue);
        drop(requests);
        *self.shared.oldest.lock() = None;
        self.waiting.iter_mut().for_each(VecDeque::clear);
        self.jobs.iter_mut().filter_map(Option::take).for_each(|job| job.request.leak());
        if self.wake_armed {
            std::mem::forget(std::mem::take(&mut self.woken));
        }
    }
}

#[cfg(test)]
mod tests;
