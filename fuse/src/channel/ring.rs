//! FUSE over io_uring: the kernel puts requests into buffers of ours and takes the answers from
//! there; one system call commits answers and waits for requests.
//!
//! The kernel has one queue for each CPU that could exist and sends a request to the queue of the
//! CPU that it was made on. One thread a CPU, pinned there, serves it: between a caller that sleeps
//! and the thread that wakes on the same CPU nothing has to be woken elsewhere, which is most of
//! what a small request costs.
//!
//! Invariant: a queue has entries to spare in which the kernel can put requests, however many
//! requests wait for their answers: more are made as they are needed, so that a request that waits
//! for another (a lock) does not stand in its way. They are made ahead, because a new entry does
//! not get a request that is queued already: those come when any request of the queue is answered.
//! Where there can be no more, who wants to wait for a lock is refused.

use super::ring_entry::RingEntry;
use super::ring_queue::Outbox;
use super::{Device, Route};
use crate::abi::{Errno, Op};
use crate::session::Session;
use io_uring::{IoUring, cqueue, opcode, squeue::Entry128, types::Fd};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Entries of a queue in which the kernel can put requests, beside those whose requests wait. Each
/// is 1 MiB of address space; memory is taken when it is used, and the kernel uses the newest
/// first.
const SPARE_ENTRIES: usize = 32;
/// Most of a ring, beside those that each of its queues has to spare: far more CPUs may be possible
/// than there are.
const MOST_ENTRIES: usize = 8192;
/// When there can be no more, so many are left to requests that end by themselves: who waits for a
/// lock may wait for one of those.
const LAST_ENTRIES: usize = 16;
/// Marks completions of the bell.
const BELL: u64 = u64::MAX;

/// What a ring's thread waits for before it begins.
type Go = (Arc<Session>, Arc<Device>);

/// Rings that are ready to be used, each with its thread.
pub struct Rings(Vec<(Sender<Go>, JoinHandle<io::Result<()>>)>);

impl Rings {
    /// Makes the rings. Errors: what the kernel says where io_uring is not to be had.
    pub fn prepare() -> io::Result<Self> {
        let possible = cpus("possible")?.len();
        let online = cpus("online")?;
        let mut rings = Vec::new();
        for (turn, &cpu) in online.iter().enumerate() {
            // A queue of a CPU that is not there gets no requests, and has to have an entry.
            let queues = (0..possible).filter(|&queue| {
                queue == cpu || (!online.contains(&queue) && queue % online.len() == turn)
            });
            let queues = queues.map(|queue| queue as u16).collect();
            let (go, wait) = channel();
            let (tell, ready) = channel();
            let thread = std::thread::Builder::new()
                .name(format!("fuse-{cpu}"))
                .spawn(move || run(cpu, queues, &tell, &wait))?;
            ready.recv().map_err(|_| io::Error::other("a FUSE thread ended at once"))??;
            rings.push((go, thread));
        }
        Ok(Self(rings))
    }

    /// Lets them serve `device`, on which the use of io_uring has been agreed.
    pub fn start(
        self,
        session: &Arc<Session>,
        device: &Arc<Device>,
    ) -> Vec<JoinHandle<io::Result<()>>> {
        let start = |(go, thread): (Sender<Go>, _)| {
            // A thread that is gone says why when it is joined.
            let _ = go.send((session.clone(), device.clone()));
            thread
        };
        self.0.into_iter().map(start).collect()
    }
}

/// The numbers in a list such as `0-3,8`.
fn cpus(which: &str) -> io::Result<Vec<usize>> {
    let path = format!("/sys/devices/system/cpu/{which}");
    let text = std::fs::read_to_string(&path)?;
    parse_cpus(&text).ok_or_else(|| io::Error::other(format!("{path} says {text:?}")))
}

fn parse_cpus(text: &str) -> Option<Vec<usize>> {
    let mut out = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        out.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(out)
}

fn run(
    cpu: usize,
    queues: Vec<u16>,
    tell: &Sender<io::Result<()>>,
    wait: &Receiver<Go>,
) -> io::Result<()> {
    let (ring, told) = match Ring::new(queues) {
        Ok(ring) => (Some(ring), Ok(())),
        Err(error) => (None, Err(error)),
    };
    // Nobody waits for either any more if the mount failed meanwhile.
    let _ = tell.send(told);
    let (Some(mut ring), Ok((session, device))) = (ring, wait.recv()) else { return Ok(()) };
    pin(cpu);
    let _inside = session.runtime().enter();
    session.guarded(&format!("FUSE over io_uring of CPU {cpu}"), || ring.serve(&session, &device))
}

/// Without the right to it requests are served as well, only slower.
fn pin(cpu: usize) {
    let mut set = nix::sched::CpuSet::new();
    let pinned = set
        .set(cpu)
        .and_then(|()| nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set));
    if let Err(error) = pinned {
        tracing::debug!("cannot pin a FUSE thread to CPU {cpu}: {error}");
    }
}

/// A queue of the kernel that a ring serves.
struct Queue {
    number: u16,
    /// Its entries that the kernel has.
    spare: usize,
    /// The kernel did not take the last new entry: another would fare no better.
    refused: bool,
}

struct Ring {
    // Closed before the buffers are unmapped.
    io: IoUring<Entry128, cqueue::Entry>,
    outbox: Arc<Outbox>,
    entries: Vec<Arc<RingEntry>>,
    /// Entries that brought a request: the kernel has taken them.
    taken: Vec<bool>,
    queues: Vec<Queue>,
    /// Completions that nobody has looked at: what they are of, and the result.
    arrived: Vec<(u64, i32)>,
    /// Where the kernel puts the bell's count.
    rung: Box<u64>,
    /// No more than this are made.
    most: usize,
}

impl Ring {
    /// Must be called on the thread that is going to use it.
    fn new(queues: Vec<u16>) -> io::Result<Self> {
        let io = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_defer_taskrun()
            .setup_cqsize(1024)
            .build(64)?;
        let queue = |number| Queue { number, spare: 0, refused: false };
        let queues: Vec<_> = queues.into_iter().map(queue).collect();
        let outbox = Arc::new(Outbox::new()?);
        let (entries, taken) = (Vec::new(), Vec::new());
        let (arrived, rung) = (Vec::new(), Box::default());
        let most = MOST_ENTRIES + SPARE_ENTRIES * queues.len();
        Ok(Self { io, outbox, entries, taken, queues, arrived, rung, most })
    }

    /// Serves requests until the connection is over.
    fn serve(&mut self, session: &Session, device: &Arc<Device>) -> io::Result<()> {
        self.hear_bell()?;
        let (mut answered, mut arrived) = (Vec::new(), Vec::new());
        loop {
            self.outbox.take(&mut answered);
            for index in answered.drain(..) {
                self.commit(index, device)?;
            }
            for at in 0..self.queues.len() {
                while self.wants_entry(at) {
                    self.add_entry(at, device)?;
                }
            }
            let may_wait = self.arrived.is_empty() && self.outbox.fall_asleep();
            let waited = self.io.submit_and_wait(usize::from(may_wait));
            self.outbox.wake_up();
            self.reap(waited)?;
            std::mem::swap(&mut arrived, &mut self.arrived);
            for (what, result) in arrived.drain(..) {
                if what == BELL {
                    self.hear_bell()?;
                } else if !self.arrived(what as usize, result, session)? {
                    return Ok(());
                }
            }
        }
    }

    /// Takes what has arrived, which may be what the kernel waits for. Errors: what does not pass.
    fn reap(&mut self, submitted: io::Result<usize>) -> io::Result<()> {
        self.arrived.extend(self.io.completion().map(|c| (c.user_data(), c.result())));
        match submitted {
            Err(error) if !passes(&error) => Err(error),
            Err(_) => {
                std::thread::yield_now();
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    fn wants_entry(&self, at: usize) -> bool {
        let Queue { spare, refused, .. } = self.queues[at];
        spare < SPARE_ENTRIES && !refused && self.entries.len() < self.most
    }

    /// Whether a queue has only its last entries, and gets no more.
    fn is_full(&self, number: u16) -> bool {
        let last = |queue: &Queue| queue.number == number && queue.spare < LAST_ENTRIES;
        self.entries.len() >= self.most && self.queues.iter().any(last)
    }

    /// A completion of an entry. Answers whether the connection goes on.
    fn arrived(&mut self, index: usize, result: i32, session: &Session) -> io::Result<bool> {
        let entry = self.entries[index].clone();
        self.count(entry.queue, -1);
        match -result {
            0 => {
                self.taken[index] = true;
                self.set_refused(entry.queue, false);
                let route = Route::Ring(entry.clone());
                match entry.request() {
                    Ok(request)
                        if matches!(request.op, Op::SetLkW(_)) && self.is_full(entry.queue) =>
                    {
                        route.answer(request.header.unique, &Err(Errno(libc::ENOLCK)));
                    }
                    Ok(request) => session.serve(&request, route, &[]),
                    Err(error) => session.refuse(error, entry.header(), &route),
                }
                Ok(true)
            }
            libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED => Ok(false),
            errno => {
                // The kernel goes on with its other entries, or with /dev/fuse if it has none.
                let error = io::Error::from_raw_os_error(errno);
                if self.taken[index] {
                    tracing::error!("FUSE over io_uring: an entry is lost: {error}");
                } else if self.set_refused(entry.queue, true) {
                    let queue = entry.queue;
                    tracing::error!("FUSE over io_uring: queue {queue} takes no entries: {error}");
                }
                Ok(true)
            }
        }
    }

    fn count(&mut self, queue: u16, by: isize) {
        if let Some(queue) = self.queues.iter_mut().find(|q| q.number == queue) {
            queue.spare = queue.spare.saturating_add_signed(by);
        }
    }

    /// Answers whether that is new.
    fn set_refused(&mut self, queue: u16, refused: bool) -> bool {
        let queue = self.queues.iter_mut().find(|q| q.number == queue);
        queue.is_some_and(|queue| std::mem::replace(&mut queue.refused, refused) != refused)
    }

    fn add_entry(&mut self, at: usize, device: &Device) -> io::Result<()> {
        let queue = self.queues[at].number;
        let index = match self.make_entry(at) {
            Ok(index) => index,
            Err(error) => {
                // The others go on.
                if self.set_refused(queue, true) {
                    tracing::error!(
                        "FUSE over io_uring: no more entries for queue {queue}: {error}"
                    );
                }
                return Ok(());
            }
        };
        let parts = self.entries[index].parts();
        let mut sqe = opcode::UringCmd80::new(Fd(device.as_raw_fd()), REGISTER)
            .cmd(command(0, queue))
            .addr(Some(parts))
            .build();
        set_len(&mut sqe, 2);
        self.push(sqe.user_data(index as u64))
    }

    fn make_entry(&mut self, at: usize) -> io::Result<usize> {
        let index = self.entries.len();
        let entry = RingEntry::new(self.queues[at].number, index, self.outbox.clone())?;
        self.entries.push(Arc::new(entry));
        self.taken.push(false);
        self.queues[at].spare += 1;
        Ok(index)
    }

    fn commit(&mut self, index: usize, device: &Device) -> io::Result<()> {
        let (queue, request) = (self.entries[index].queue, self.entries[index].commit_id());
        self.count(queue, 1);
        let sqe = opcode::UringCmd80::new(Fd(device.as_raw_fd()), COMMIT_AND_FETCH)
            .cmd(command(request, queue))
            .build();
        self.push(sqe.user_data(index as u64))
    }

    fn hear_bell(&mut self) -> io::Result<()> {
        let into: *mut u64 = &mut *self.rung;
        let sqe = opcode::Read::new(Fd(self.outbox.bell()), into.cast(), 8).build();
        self.push(Entry128::from(sqe).user_data(BELL))
    }

    fn push(&mut self, sqe: Entry128) -> io::Result<()> {
        loop {
            // SAFETY: what the entry points at, the buffers of `entries` and `rung`, lives as long
            // as the ring, and so do the descriptors.
            if unsafe { self.io.submission().push(&sqe) }.is_ok() {
                return Ok(());
            }
            let submitted = self.io.submit();
            self.reap(submitted)?;
        }
    }
}

/// Whether the kernel may take the same later.
fn passes(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::EINTR))
}

/// REGISTER takes a number of parts, for which [`opcode::UringCmd80`] has no field.
fn set_len(sqe: &mut Entry128, len: u32) {
    const LEN_AT: usize = 24;
    let bytes = std::ptr::from_mut(sqe).cast::<u8>();
    // SAFETY: an `Entry128` is the 128 bytes of `struct io_uring_sqe`, in which a `u32` lies there.
    unsafe { bytes.add(LEN_AT).cast::<u32>().write(len) };
}

/// `struct fuse_uring_cmd_req`.
fn command(commit_id: u64, queue: u16) -> [u8; 80] {
    let mut out = [0; 80];
    out[8..16].copy_from_slice(&commit_id.to_ne_bytes());
    out[16..18].copy_from_slice(&queue.to_ne_bytes());
    out
}

#[cfg(test)]
mod tests;
