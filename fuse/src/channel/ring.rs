//! FUSE over io_uring: the kernel puts requests into buffers of ours and takes the answers from
//! there; one system call commits answers and waits for requests.
//!
//! The kernel has one queue for each CPU that could exist and sends a request to the queue of the CPU
//! that it was made on. One thread a CPU, pinned there, serves it: between a caller that sleeps and
//! the thread that wakes on the same CPU nothing has to be woken elsewhere, which is most of what a
//! small request costs.
//!
//! Invariant: a queue has entries to spare in which the kernel can put requests, however many
//! requests wait for their answers: more are made as they are needed, so that a request that waits
//! for another (a lock) does not stand in its way. They are made ahead, because a new entry does not
//! get a request that is queued already: those come when any request of the queue is answered.

use super::ring_queue::Outbox;
use super::{Device, Entry, Route};
use crate::session::Session;
use io_uring::{IoUring, cqueue, opcode, squeue::Entry128, types::Fd};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Entries of a queue in which the kernel can put requests, beside those whose requests wait. Each is
/// 1 MiB of address space; memory is taken when it is used, and the kernel uses the newest first.
const SPARE_ENTRIES: usize = 32;
/// Most of a ring.
const MOST_ENTRIES: usize = 8192;
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
    ring.serve(&session, &device)
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

struct Ring {
    // Closed before the buffers are unmapped.
    io: IoUring<Entry128, cqueue::Entry>,
    outbox: Arc<Outbox>,
    entries: Vec<Arc<Entry>>,
    /// The queues of this ring, each with the number of its entries that the kernel has.
    queues: Vec<(u16, usize)>,
    /// Where the kernel puts the bell's count.
    rung: Box<u64>,
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
        let queues = queues.into_iter().map(|queue| (queue, 0)).collect();
        let outbox = Arc::new(Outbox::new()?);
        Ok(Self { io, outbox, entries: Vec::new(), queues, rung: Box::default() })
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
                while self.queues[at].1 < SPARE_ENTRIES && self.entries.len() < MOST_ENTRIES {
                    self.add_entry(at, device)?;
                }
            }
            let may_wait = self.outbox.fall_asleep();
            let waited = self.io.submit_and_wait(usize::from(may_wait));
            self.outbox.wake_up();
            match waited {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
            arrived.extend(self.io.completion().map(|c| (c.user_data(), c.result())));
            for (what, result) in arrived.drain(..) {
                if what == BELL {
                    self.hear_bell()?;
                } else if !self.arrived(what as usize, result, session)? {
                    return Ok(());
                }
            }
        }
    }

    /// A completion of an entry. Answers whether the connection goes on.
    fn arrived(&mut self, index: usize, result: i32, session: &Session) -> io::Result<bool> {
        let entry = self.entries[index].clone();
        self.count(entry.queue, -1);
        match -result {
            0 => {
                let route = Route::Ring(entry.clone());
                match entry.request() {
                    Ok(request) => session.serve(&request, route),
                    Err(error) => session.refuse(error, entry.header(), &route),
                }
                Ok(true)
            }
            libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED => Ok(false),
            errno => {
                // The kernel goes on with its other entries, or with /dev/fuse if it has none.
                let error = io::Error::from_raw_os_error(errno);
                tracing::error!("FUSE over io_uring: an entry is lost: {error}");
                Ok(true)
            }
        }
    }

    fn count(&mut self, queue: u16, by: isize) {
        if let Some((_, count)) = self.queues.iter_mut().find(|(q, _)| *q == queue) {
            *count = count.saturating_add_signed(by);
        }
    }

    fn add_entry(&mut self, at: usize, device: &Device) -> io::Result<()> {
        let (queue, index) = (self.queues[at].0, self.entries.len());
        let entry = Arc::new(Entry::new(queue, index, self.outbox.clone())?);
        let parts = entry.parts();
        self.entries.push(entry);
        self.queues[at].1 += 1;
        let mut sqe = opcode::UringCmd80::new(Fd(device.as_raw_fd()), REGISTER)
            .cmd(command(0, queue))
            .addr(Some(parts))
            .build();
        set_len(&mut sqe, 2);
        self.push(sqe.user_data(index as u64))
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
            self.io.submit()?;
        }
    }
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
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_parse() {
        assert_eq!(parse_cpus("0\n"), Some(vec![0]));
        assert_eq!(parse_cpus("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        for bad in ["", "x", "1-", "0-2,", "-1"] {
            assert_eq!(parse_cpus(bad), None, "{bad}");
        }
    }
}
