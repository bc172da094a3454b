//! Two drives in memory: one that answers in an order of its own and writes down what happens, with
//! faults to be switched on, and a plain one.

use super::index::Snapshots;
use super::model::Known;
use super::trace::{Event, Trace, Write};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::io;
use std::sync::Arc;
use tokio::sync::oneshot;
use weft_net::AlignedBuf;
use weft_proto::ChunkId;
use weft_storaged::engine::{Device, Done};

/// What the drive does wrong.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    /// Writes are answered with an error, and not done.
    pub writes: bool,
    /// Commits are.
    pub commits: bool,
    /// Commits are not answered for as long as this is so.
    pub hangs: bool,
    /// Reads are.
    pub reads: bool,
    /// Reads are that touch bytes from the first to before the second.
    pub unreadable: (u64, u64),
    /// Writes are that touch these.
    pub unwritable: (u64, u64),
    /// Until one of these is written.
    pub heals: bool,
    /// The error; 0: `EIO`.
    pub errno: i32,
}

impl Faults {
    fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(if self.errno == 0 { libc::EIO } else { self.errno })
    }
}

/// A drive whose writes complete in random order on a thread of its own.
pub struct Drive(Arc<Recorder>);

/// The test's side of a [`Drive`].
pub struct Recorder {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    random: StdRng,
    /// What a read sees.
    current: Vec<u8>,
    trace: Trace,
    /// Number of `Ended` events so far.
    ended: usize,
    pending: Vec<Request>,
    faults: Faults,
    snapshots: Option<Snapshots>,
    closed: bool,
}

struct Request {
    write: Option<usize>,
    /// For what flushes: how many writes had ended when it came.
    flush: Option<usize>,
    done: oneshot::Sender<io::Result<()>>,
}

impl Drive {
    /// A drive with these contents. `snapshots` keeps the states of the index.
    pub fn new(
        image: Vec<u8>,
        seed: u64,
        snapshots: Option<Snapshots>,
    ) -> (Arc<Self>, Arc<Recorder>) {
        let state = State {
            random: StdRng::seed_from_u64(seed),
            current: image.clone(),
            trace: Trace { image, ..Trace::default() },
            ended: 0,
            pending: Vec::new(),
            faults: Faults::default(),
            snapshots,
            closed: false,
        };
        let recorder = Arc::new(Recorder { state: Mutex::new(state), changed: Condvar::new() });
        let theirs = recorder.clone();
        std::thread::spawn(move || theirs.serve());
        (Arc::new(Self(recorder.clone())), recorder)
    }

    fn push(&self, write: Option<(u64, Bytes)>, flush: bool) -> Done<()> {
        let (done, result) = Done::channel();
        let mut state = self.0.state.lock();
        // What the index knew durably before this request may be needed by it.
        state.look_at_index();
        let write = write.map(|(off, bytes)| state.begin(off as usize, bytes));
        let flush = flush.then_some(state.ended);
        state.pending.push(Request { write, flush, done });
        self.0.changed.notify_all();
        result
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.changed.notify_all();
    }
}

impl Recorder {
    /// Writes down what is known of a chunk from now on.
    pub fn note(&self, chunk: ChunkId, known: Known) {
        self.state.lock().trace.events.push(Event::Chunk(chunk, known));
    }

    pub fn fail(&self, faults: Faults) {
        self.state.lock().faults = faults;
        self.changed.notify_all();
    }

    /// How many commits hang.
    pub fn hanging(&self) -> usize {
        let state = self.state.lock();
        state.pending.len() - state.answerable().len()
    }

    /// What happened so far; nothing is written down any more.
    pub fn finish(&self) -> Trace {
        let mut state = self.state.lock();
        state.snapshots = None;
        std::mem::take(&mut state.trace)
    }

    /// What a read sees now.
    pub fn contents(&self) -> Vec<u8> {
        self.state.lock().current.clone()
    }

    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            let waiting = state.answerable();
            if waiting.is_empty() {
                if state.closed {
                    return;
                }
                self.changed.wait(&mut state);
                continue;
            }
            let next = state.random.random_range(0..waiting.len());
            let request = state.pending.swap_remove(waiting[next]);
            let result = state.answer(&request);
            drop(request.done.send(result));
        }
    }
}

impl State {
    fn look_at_index(&mut self) {
        if let Some(path) = self.snapshots.as_mut().and_then(Snapshots::look) {
            self.trace.events.push(Event::Index(path));
        }
    }

    fn begin(&mut self, off: usize, bytes: Bytes) -> usize {
        let number = self.trace.writes.len();
        let range = off..off + bytes.len();
        let crosses = |r: &Request| {
            r.write
                .and_then(|w| self.trace.writes.get(w))
                .is_some_and(|w| w.off < range.end && range.start < w.off + w.bytes.len())
        };
        if self.pending.iter().any(crosses) {
            self.trace.mistakes.push(format!("two writes of {range:?} at the same time"));
        }
        self.trace.writes.push(Write { off, bytes });
        self.trace.events.push(Event::Began(number));
        number
    }

    /// Which of the requests may be answered.
    fn answerable(&self) -> Vec<usize> {
        let hangs = |request: &Request| self.faults.hangs && request.flush.is_some();
        (0..self.pending.len()).filter(|&at| !hangs(&self.pending[at])).collect()
    }

    fn answer(&mut self, request: &Request) -> io::Result<()> {
        let failing = match request.flush {
            Some(_) => self.faults.commits,
            None => self.faults.writes,
        };
        let (from, to) = self.faults.unwritable;
        let touches = |w: &Write| (w.off as u64) < to && from < (w.off + w.bytes.len()) as u64;
        let written = request.write.and_then(|number| self.trace.writes.get(number));
        if failing || written.is_some_and(touches) {
            return Err(self.faults.error());
        }
        if let Some(number) = request.write {
            // Not there when the trace was taken away meanwhile.
            if let Some(Write { off, bytes }) = self.trace.writes.get(number) {
                self.current[*off..*off + bytes.len()].copy_from_slice(bytes);
                let (from, to) = self.faults.unreadable;
                if self.faults.heals && (*off as u64) < to && from < (*off + bytes.len()) as u64 {
                    self.faults.unreadable = (0, 0);
                }
            }
            self.trace.events.push(Event::Ended(number));
            self.ended += 1;
        }
        if let Some(ended) = request.flush {
            self.trace.events.push(Event::Flushed { ended, own: request.write });
        }
        Ok(())
    }
}

impl Device for Drive {
    fn size(&self) -> u64 {
        self.0.state.lock().current.len() as u64
    }

    fn read(&self, off: u64, len: usize) -> Done<AlignedBuf> {
        let state = self.0.state.lock();
        let (from, to) = state.faults.unreadable;
        if state.faults.reads || off < to && from < off + len as u64 {
            return ready(Err(state.faults.error()));
        }
        ready(Ok(cut_out(&state.current, off, len)))
    }

    fn write(&self, off: u64, pieces: Vec<Bytes>) -> Done<()> {
        self.push(Some((off, pieces.concat().into())), false)
    }

    fn commit(&self, off: u64, piece: Bytes) -> Done<()> {
        self.push(Some((off, Bytes::copy_from_slice(&piece))), true)
    }

    fn flush(&self) -> Done<()> {
        self.push(None, true)
    }

    fn discard_rate(&self) -> u64 {
        u64::MAX
    }

    /// Zeros, as a write that may be lost.
    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        self.push(Some((off, vec![0; len as usize].into())), false).block()
    }
}

/// A drive that answers at once.
pub struct Plain(Mutex<Vec<u8>>);

impl Plain {
    pub fn new(image: Vec<u8>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(image)))
    }
}

impl Device for Plain {
    fn size(&self) -> u64 {
        self.0.lock().len() as u64
    }

    fn read(&self, off: u64, len: usize) -> Done<AlignedBuf> {
        ready(Ok(cut_out(&self.0.lock(), off, len)))
    }

    fn write(&self, off: u64, pieces: Vec<Bytes>) -> Done<()> {
        let mut image = self.0.lock();
        let mut at = off as usize;
        for piece in pieces {
            image[at..at + piece.len()].copy_from_slice(&piece);
            at += piece.len();
        }
        ready(Ok(()))
    }

    fn commit(&self, off: u64, piece: Bytes) -> Done<()> {
        self.write(off, vec![piece])
    }

    fn flush(&self) -> Done<()> {
        ready(Ok(()))
    }
}

/// An outcome that is there already.
pub fn ready<T>(result: io::Result<T>) -> Done<T> {
    let (done, outcome) = Done::channel();
    drop(done.send(result));
    outcome
}

fn cut_out(image: &[u8], off: u64, len: usize) -> AlignedBuf {
    let mut buffer = AlignedBuf::take(len);
    buffer.as_mut_slice().copy_from_slice(&image[off as usize..off as usize + len]);
    buffer
}
