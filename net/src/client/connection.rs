//! One connection and its calls in flight.
//!
//! Invariant: the memory of its calls is freed only when their answers came, nobody ever writes to
//! it, or the connection was severed.

use super::Body;
use super::calls::{Call, Calls, Raw};
use crate::buffer::Buffer;
use crate::frame::{Broken, Frame, Head, Header, Kind, MAX_HEAD, MAX_PAYLOAD};
use crate::hello::{Features, Identity};
use crate::metrics;
use crate::sync::Mutex;
use crate::tls::Subject;
use crate::trace::{Context, Placed};
use crate::transport::{Link, Progress, Receiver, Sender, User};
use crate::way::Way;
use bytes::Bytes;
use prometheus::IntGauge;
use prost::Message;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};
use weft_proto::{Error, ErrorKind, Result, op, v1};

/// Silence is counted in these.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Ticks of silence with calls in flight after which a PING is sent.
const PING_AFTER: u32 = 3;
/// Ticks of silence after which the peer is dead.
const DEAD_AFTER: u32 = 6;

struct Shared {
    address: String,
    sender: Arc<dyn Sender>,
    calls: Calls,
    tasks: Mutex<Vec<AbortHandle>>,
    /// The connection is over; to be read without a lock.
    closed: AtomicBool,
    /// Another one is in its place.
    retired: AtomicBool,
    ended: Notify,
    /// Calls whose caller still waits, those being received included.
    active: AtomicUsize,
    /// What moved either way.
    heard: Progress,
    sent: Progress,
}

/// A live connection; closed when dropped.
pub(super) struct Connection {
    shared: Arc<Shared>,
    next_id: AtomicU64,
    features: Features,
    /// Who is on the other end, if that was proved.
    subject: Option<Arc<Subject>>,
    /// When it is worth another try to connect by a better way.
    retry_after: Option<Duration>,
    carried: &'static IntGauge,
}

impl Connection {
    /// Takes over a link and says hello.
    pub async fn start(
        link: Link,
        address: &str,
        identity: &Identity,
        way: Way,
        deadline: Instant,
    ) -> Result<Self> {
        let plain = link.subject.is_none();
        let mut connection = Self::open(link, address);
        let hello = v1::Hello { way: way.code(), ..identity.hello() };
        let said = connection.call(op::HELLO, &hello, Body::default(), deadline, None).await;
        let raw = said.map_err(|e| match e.kind {
            // So a server that wants certificates looks to who shows none.
            ErrorKind::Unavailable if plain && e.message.contains("connection lost") => {
                let message = format!("{e} before it said hello: does it want certificates?");
                Error { message, ..e }
            }
            _ => e,
        })?;
        let hello = decode::<v1::Hello>(raw.head, address)?;
        connection.features = identity.check(&hello, address)?.features;
        Ok(connection)
    }

    fn open(link: Link, address: &str) -> Self {
        let Link { sender, mut receiver, pump, heard, sent, subject, network, retry_after } = link;
        let carried = metrics::carried(false, network);
        carried.inc();
        let shared = Arc::new(Shared {
            address: address.into(),
            sender,
            calls: Calls::default(),
            tasks: Mutex::default(),
            closed: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            ended: Notify::new(),
            active: AtomicUsize::new(0),
            heard,
            sent,
        });
        // Held until the tasks are known, so that whichever fails first can end the others.
        let mut tasks = shared.tasks.lock();
        let reader = tokio::spawn({
            let shared = shared.clone();
            async move {
                let Err(broken) = shared.receive_all(&mut *receiver).await;
                shared.fail(&broken.to_string());
            }
        });
        let writer = tokio::spawn({
            let shared = shared.clone();
            async move {
                let sent = pump.run(&*shared).await;
                shared.fail(&sent.map_or_else(|e| e.to_string(), |()| "closed".into()));
            }
        });
        let watch = tokio::spawn({
            let shared = shared.clone();
            async move { shared.watch().await }
        });
        *tasks = vec![reader.abort_handle(), writer.abort_handle(), watch.abort_handle()];
        drop(tasks);
        let (next_id, features) = (AtomicU64::new(1), Features::default());
        Self { shared, next_id, features, subject, retry_after, carried }
    }

    /// False once calls cannot succeed any more.
    pub fn is_alive(&self) -> bool {
        !self.shared.closed.load(Ordering::Acquire)
    }

    /// Returns when the connection has ended, which this does not keep open: whether it was
    /// replaced before.
    pub fn ended(&self) -> impl Future<Output = bool> + Send + use<> {
        let shared = self.shared.clone();
        async move {
            let ended = shared.ended.notified();
            if !shared.closed.load(Ordering::Acquire) {
                ended.await;
            }
            shared.retired.load(Ordering::Acquire)
        }
    }

    /// Another connection is in its place.
    pub fn retire(&self) {
        self.shared.retired.store(true, Ordering::Release);
    }

    /// When it is worth another try to connect by a better way than this.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// What both sides can do.
    pub fn features(&self) -> Features {
        self.features
    }

    /// How often bytes moved either way; `None` while a call is in flight.
    pub fn moved(&self) -> Option<u64> {
        let (sent, heard) = (&self.shared.sent, &self.shared.heard);
        let idle = self.shared.active.load(Ordering::Relaxed) == 0 && self.shared.sender.is_idle();
        idle.then(|| sent.load(Ordering::Relaxed) + heard.load(Ordering::Relaxed))
    }

    /// Queues a request that wants no answer. False: it is too large, or the connection has ended.
    pub fn tell<Q: Message>(&self, op: u16, head: &Q) -> bool {
        let header = Header::new(Kind::Request, op, 0);
        let frame = Frame::new(header, Head::Message(head), Vec::new());
        self.check_server(op).is_ok()
            && self.shared.check_size(op, frame.header.head_len as usize, 0).is_ok()
            && self.shared.sender.send(frame, None)
    }

    /// Error: `NotPermitted`, the other side is not one of those that serve this.
    pub fn check_server(&self, op: u16) -> Result<()> {
        match (&self.subject, op::served_by(op)) {
            (Some(subject), Some(role)) if subject.role != role => Err(Error::new(
                ErrorKind::NotPermitted,
                format!(
                    "{}: its certificate is that of {subject}, and no {role} server's",
                    self.shared.address
                ),
            )),
            _ => Ok(()),
        }
    }

    /// One call. `place`: where in a trace it belongs, if in any. Dropping the future leaves the
    /// connection usable.
    pub async fn call<Q: Message>(
        &self,
        op: u16,
        head: &Q,
        body: Body,
        deadline: Instant,
        place: Option<Context>,
    ) -> Result<Raw> {
        let shared = &*self.shared;
        let len = head.encoded_len() + Context::LEN;
        let sent = body.send.iter().map(Bytes::len).sum();
        shared.check_size(op, len, sent)?;
        self.check_server(op)?;
        let now = Instant::now();
        if deadline <= now {
            return Err(shared.timed_out(op));
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let place = place.filter(|_| self.features.has(Features::TRACES)).map(Context::encode);
        let traced = place.is_some();
        let header = Header { traced, ..Header::new(Kind::Request, op, id) };
        let mut in_flight = InFlight::new(shared, id);
        let answered = {
            let placed = place.map(|place| Placed { place, message: head });
            let head = placed.as_ref().map_or(Head::Message(head), |head| Head::Message(head));
            let frame = Frame::asked(header, head, body.send, (now, deadline));
            shared.calls.begin(id, body.into, sent, |into| {
                // SAFETY: the call keeps its memory, untouched, until its answer came, `InFlight`
                // heard that nobody writes there, or `fail` has severed the connection. If it is
                // over already, `fail` ends the call.
                unsafe { shared.sender.ask(frame, into) };
            })?
        };
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
        self.carried.dec();
        self.shared.fail("closed by this side");
    }
}

/// Decodes an answer's head.
pub(super) fn decode<A: Message + Default>(head: Bytes, address: &str) -> Result<A> {
    A::decode(head).map_err(|e| {
        Error::new(ErrorKind::Protocol, format!("{address}: malformed head of an answer: {e}"))
    })
}

/// Leaves a call when its caller goes without an answer.
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
        if self.ended {
            return;
        }
        let keeps = self.shared.sender.give_up(self.id);
        if !self.shared.calls.leave(self.id, keeps) {
            self.shared.fail("it does not answer calls that were dropped");
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
        self.calls.why_dead().unwrap_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("{}: connection lost", self.address))
        })
    }

    /// Ends the connection and every call in flight, once.
    fn fail(&self, why: &str) {
        let error =
            Error::new(ErrorKind::Unavailable, format!("{}: connection lost: {why}", self.address));
        let Some(calls) = self.calls.end(&error) else { return };
        self.closed.store(true, Ordering::Release);
        self.ended.notify_waiters();
        tracing::debug!(address = %self.address, calls = calls.len(), why, "connection ended");
        // Only after this may the memory of the calls go.
        self.sender.sever();
        for call in calls {
            if let Some(caller) = call.caller {
                let _ = caller.send(Err(error.clone()));
            }
        }
        std::mem::take(&mut *self.tasks.lock()).iter().for_each(AbortHandle::abort);
    }

    async fn receive_all(&self, frames: &mut dyn Receiver) -> Result<Infallible, Broken> {
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

    async fn receive(&self, frames: &mut dyn Receiver, header: &Header) -> Result<(), Broken> {
        let head = frames.head().await?;
        let len = header.payload_len as usize;
        let Some(Call { mut into, caller, .. }) = self.calls.answered(header.id) else {
            // Left, or a sign of life, which has id 0.
            return frames.skip().await;
        };
        let Some(caller) = caller else { return frames.skip().await };
        let result = if header.kind == Kind::Failure {
            frames.skip().await?;
            Err(failure(head))
        } else if !into.is_empty() && into.iter().map(|b| b.len()).sum::<usize>() != len {
            frames.skip().await?;
            Err(Error::new(
                ErrorKind::Protocol,
                format!("{}: a payload of {len} bytes does not fit the request", self.address),
            ))
        } else {
            if into.is_empty() && len > 0 {
                into.push(Buffer::take(len));
            }
            for buffer in &mut into {
                frames.payload(buffer).await?;
                if frames.was_written() {
                    buffer.was_written();
                }
            }
            Ok(Raw { head, payload: into })
        };
        // The caller may be gone: then this drops the buffers.
        let _ = caller.send(result);
        Ok(())
    }

    /// Notices a peer that is silent while calls wait for it.
    async fn watch(&self) {
        let (mut heard, mut sent, mut silent) = (0, 0, 0);
        loop {
            sleep(TICK_INTERVAL).await;
            let now = (self.heard.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed));
            // A long transfer that moves is a sign of life. A short one is not: the peer's kernel
            // takes that much from us by itself.
            let moving = now.1 != sent && !self.sender.is_idle();
            let lives = now.0 != heard || moving || self.active.load(Ordering::Relaxed) == 0;
            (heard, sent) = now;
            silent = if lives { 0 } else { silent + 1 };
            if silent == PING_AFTER {
                self.ping();
            } else if silent == DEAD_AFTER {
                let seconds = TICK_INTERVAL.as_secs() * u64::from(silent);
                return self.fail(&format!("no sign of life for {seconds} s"));
            }
        }
    }

    fn ping(&self) {
        self.sender.send(Frame::bare(Header::new(Kind::Request, op::PING, 0)), None);
    }
}

impl User for Shared {
    fn crowded(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 1
    }

    fn left(&self, _frames: usize, _cost: usize) {}
}

/// The peer's own error, as sent.
fn failure(head: Bytes) -> Error {
    match v1::ErrorHead::decode(head) {
        Ok(head) => head.into(),
        Err(e) => Error::new(ErrorKind::Protocol, format!("malformed error of a peer: {e}")),
    }
}
