//! One connection and its calls in flight.
//!
//! Invariants: every call ends exactly once, by its answer, by its deadline, by being dropped, or
//! by the end of the connection; buffers that an answer is read into belong to the connection until
//! the answer is complete, so a dropped call cannot pull them away from the reader.

use super::Body;
use crate::frame::{Broken, Header, Kind, MAX_HEAD, MAX_PAYLOAD};
use crate::hello::Identity;
use crate::queue::{Head, SendQueue};
use crate::reader::{FrameReader, Progress};
use crate::transport::{BoxStream, ReadHalf};
use crate::way::Way;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use prost::Message;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};
use weft_proto::{Error, ErrorKind, Result, op, v1};

/// Silence is counted in these.
const TICK: Duration = Duration::from_secs(1);
/// Ticks of silence with calls in flight after which a PING is sent.
const PING_AFTER: u32 = 3;
/// Ticks of silence after which the peer is dead.
const DEAD_AFTER: u32 = 6;

/// An answer as it came.
pub(super) struct Raw {
    pub head: Bytes,
    pub payload: Vec<BytesMut>,
}

struct Waiter {
    into: Vec<BytesMut>,
    answer: oneshot::Sender<Result<Raw>>,
}

#[derive(Default)]
struct Calls {
    // Ordered: when all of them fail, they do so in the order in which they were asked.
    waiting: BTreeMap<u64, Waiter>,
    /// Why no call can start any more.
    dead: Option<Error>,
    tasks: Vec<AbortHandle>,
}

struct Shared {
    address: String,
    queue: SendQueue,
    calls: Mutex<Calls>,
    /// `calls.dead` is set; to be read without the lock.
    closed: AtomicBool,
    /// Calls whose caller still waits, those being received included.
    active: AtomicUsize,
    /// Reads and writes that moved bytes.
    heard: Progress,
    sent: Progress,
}

/// A live connection; closed when dropped.
pub(super) struct Connection {
    shared: Arc<Shared>,
    next_id: AtomicU64,
}

impl Connection {
    /// Takes over a stream and says hello.
    pub async fn start(
        stream: BoxStream,
        address: &str,
        identity: &Identity,
        way: Way,
        deadline: Instant,
    ) -> Result<Self> {
        let connection = Self::open(stream, address);
        let hello = v1::Hello { way: way.code(), ..identity.hello() };
        let raw = connection.call(op::HELLO, &hello, Body::default(), deadline).await?;
        let hello = decode::<v1::Hello>(raw.head, address)?;
        identity.check(&hello, address)?;
        Ok(connection)
    }

    fn open(stream: BoxStream, address: &str) -> Self {
        let shared = Arc::new(Shared {
            address: address.into(),
            queue: SendQueue::default(),
            calls: Mutex::default(),
            closed: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            heard: Progress::default(),
            sent: Progress::default(),
        });
        let (read, write) = stream.split();
        // Held until the tasks are known, so that whichever fails first can end the others.
        let mut calls = shared.calls.lock();
        let reader = tokio::spawn({
            let shared = shared.clone();
            async move {
                let mut frames = FrameReader::new(read, &[], shared.heard.clone());
                let Err(broken) = shared.receive_all(&mut frames).await;
                shared.fail(&broken.to_string());
            }
        });
        let writer = tokio::spawn({
            let shared = shared.clone();
            async move {
                let crowded = || shared.active.load(Ordering::Relaxed) > 1;
                let sent = shared.queue.write_to(write, &shared.sent, crowded, |_| {}).await;
                shared.fail(&sent.map_or_else(|e| e.to_string(), |()| "closed".into()));
            }
        });
        let watch = tokio::spawn({
            let shared = shared.clone();
            async move { shared.watch().await }
        });
        calls.tasks = vec![reader.abort_handle(), writer.abort_handle(), watch.abort_handle()];
        drop(calls);
        Self { shared, next_id: AtomicU64::new(1) }
    }

    /// False once calls cannot succeed any more.
    pub fn is_alive(&self) -> bool {
        !self.shared.closed.load(Ordering::Acquire)
    }

    /// How often bytes moved either way; `None` while a call is in flight.
    pub fn moved(&self) -> Option<u64> {
        let (sent, heard) = (&self.shared.sent, &self.shared.heard);
        let idle = self.shared.active.load(Ordering::Relaxed) == 0 && self.shared.queue.is_idle();
        idle.then(|| sent.load(Ordering::Relaxed) + heard.load(Ordering::Relaxed))
    }

    /// Queues a request that wants no answer. False: it is too large, or the connection has ended.
    pub fn tell<Q: Message>(&self, op: u16, head: &Q) -> bool {
        let header =
            Header { kind: Kind::Request, op, id: 0, head_len: 0, payload_len: 0, deadline_ms: 0 };
        self.shared.check_size(op, head.encoded_len(), 0).is_ok()
            && self.shared.queue.push(header, Head::Message(head), Vec::new(), None)
    }

    /// One call. Dropping the future leaves the connection usable.
    pub async fn call<Q: Message>(
        &self,
        op: u16,
        head: &Q,
        body: Body,
        deadline: Instant,
    ) -> Result<Raw> {
        let shared = &*self.shared;
        shared.check_size(op, head.encoded_len(), body.send.iter().map(Bytes::len).sum())?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(shared.timed_out(op));
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        {
            let mut calls = shared.calls.lock();
            if let Some(error) = &calls.dead {
                return Err(error.clone());
            }
            calls.waiting.insert(id, Waiter { into: body.into, answer });
        }
        let mut in_flight = InFlight::new(shared, id);
        let header = Header {
            kind: Kind::Request,
            op,
            id,
            head_len: 0,
            payload_len: 0,
            // Rounded up, so that a short deadline does not read as none.
            deadline_ms: u32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX),
        };
        shared.queue.push(header, Head::Message(head), body.send, None);
        let Ok(answered) = timeout_at(deadline, answered).await else {
            return Err(shared.timed_out(op));
        };
        in_flight.ended = true;
        // No answer at all: the reader was aborted with it half received.
        answered.unwrap_or_else(|_| Err(shared.why_dead()))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.fail("closed by this side");
    }
}

/// Decodes an answer's head.
pub(super) fn decode<A: Message + Default>(head: Bytes, address: &str) -> Result<A> {
    A::decode(head).map_err(|e| {
        Error::new(ErrorKind::Protocol, format!("{address}: malformed head of an answer: {e}"))
    })
}

/// Forgets a call when it ends, however it ends.
struct InFlight<'a> {
    shared: &'a Shared,
    id: u64,
    /// By the connection, which has forgotten it already.
    ended: bool,
}

impl<'a> InFlight<'a> {
    fn new(shared: &'a Shared, id: u64) -> Self {
        shared.active.fetch_add(1, Ordering::Relaxed);
        Self { shared, id, ended: false }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.shared.active.fetch_sub(1, Ordering::Relaxed);
        if !self.ended {
            self.shared.calls.lock().waiting.remove(&self.id);
        }
    }
}

impl Shared {
    fn check_size(&self, op: u16, head: usize, payload: usize) -> Result<()> {
        if head <= MAX_HEAD && payload <= MAX_PAYLOAD {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "request {op} to {}: head of {head} and payload of {payload} bytes exceed \
                 {MAX_HEAD} and {MAX_PAYLOAD}",
                self.address
            ),
        ))
    }

    fn timed_out(&self, op: u16) -> Error {
        Error::new(
            ErrorKind::TimedOut,
            format!("{}: no answer to request {op} in time", self.address),
        )
    }

    fn why_dead(&self) -> Error {
        self.calls.lock().dead.clone().unwrap_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("{}: connection lost", self.address))
        })
    }

    /// Ends the connection and every call in flight, once.
    fn fail(&self, why: &str) {
        let mut calls = self.calls.lock();
        if calls.dead.is_some() {
            return;
        }
        let error =
            Error::new(ErrorKind::Unavailable, format!("{}: connection lost: {why}", self.address));
        calls.dead = Some(error.clone());
        self.closed.store(true, Ordering::Release);
        let waiting = std::mem::take(&mut calls.waiting);
        let tasks = std::mem::take(&mut calls.tasks);
        drop(calls);
        tracing::debug!(address = %self.address, calls = waiting.len(), why, "connection ended");
        self.queue.close();
        for waiter in waiting.into_values() {
            let _ = waiter.answer.send(Err(error.clone()));
        }
        tasks.iter().for_each(AbortHandle::abort);
    }

    async fn receive_all(
        &self,
        frames: &mut FrameReader<ReadHalf>,
    ) -> Result<std::convert::Infallible, Broken> {
        loop {
            let header = frames.header().await?;
            if header.kind == Kind::Request {
                return Err(Broken::Garbage("a request on a calling connection".into()));
            }
            if header.payload_len as usize > MAX_PAYLOAD {
                return Err(Broken::Garbage(format!(
                    "an answer with a payload of {} bytes, the limit is {MAX_PAYLOAD}",
                    header.payload_len
                )));
            }
            self.receive(frames, &header).await?;
        }
    }

    async fn receive(
        &self,
        frames: &mut FrameReader<ReadHalf>,
        header: &Header,
    ) -> Result<(), Broken> {
        let head = frames.head(header.head_len as usize).await?;
        let len = header.payload_len as usize;
        let waiter = self.calls.lock().waiting.remove(&header.id);
        let Some(Waiter { mut into, answer }) = waiter else {
            // Cancelled or timed out (or a sign of life, which has id 0).
            return frames.discard(len).await;
        };
        let result = if header.kind == Kind::Failure {
            frames.discard(len).await?;
            Err(failure(head))
        } else if into.is_empty() {
            let payload = if len == 0 { vec![] } else { vec![frames.payload(len).await?] };
            Ok(Raw { head, payload })
        } else if into.iter().map(BytesMut::len).sum::<usize>() != len {
            frames.discard(len).await?;
            Err(Error::new(
                ErrorKind::Protocol,
                format!("{}: a payload of {len} bytes does not fit the request", self.address),
            ))
        } else {
            for buffer in &mut into {
                frames.payload_into(buffer).await?;
            }
            Ok(Raw { head, payload: into })
        };
        // The caller may be gone: then this drops the buffers.
        let _ = answer.send(result);
        Ok(())
    }

    /// Notices a peer that is silent while calls wait for it.
    async fn watch(&self) {
        let (mut heard, mut sent, mut silent) = (0, 0, 0);
        loop {
            sleep(TICK).await;
            let now = (self.heard.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed));
            // A long transfer that moves is a sign of life. A short one is not: the peer's kernel
            // takes that much from us by itself.
            let moving = now.1 != sent && !self.queue.is_idle();
            let lives = now.0 != heard || moving || self.active.load(Ordering::Relaxed) == 0;
            (heard, sent) = now;
            silent = if lives { 0 } else { silent + 1 };
            if silent == PING_AFTER {
                self.ping();
            } else if silent == DEAD_AFTER {
                let seconds = TICK.as_secs() * u64::from(silent);
                return self.fail(&format!("no sign of life for {seconds} s"));
            }
        }
    }

    fn ping(&self) {
        let header = Header {
            kind: Kind::Request,
            op: op::PING,
            id: 0,
            head_len: 0,
            payload_len: 0,
            deadline_ms: 0,
        };
        self.queue.push::<()>(header, Head::Bytes(Bytes::new()), Vec::new(), None);
    }
}

/// The peer's own error, as sent.
fn failure(head: Bytes) -> Error {
    match v1::ErrorHead::decode(head) {
        Ok(e) => Error { kind: ErrorKind::from_code(e.code), message: e.message, hint: e.hint },
        Err(e) => Error::new(ErrorKind::Protocol, format!("malformed error of a peer: {e}")),
    }
}
