//! One served connection: a reader, a writer, and a task for each request.
//!
//! Invariants: every request is answered once, while the connection lives; no more than the window
//! is held; nothing a peer sends can harm another connection.

use super::budget::Budget;
use super::door::Seat;
use super::window::{Entered, OWN, Window};
use super::{Incoming, Outgoing, ServerOptions, Service};
use crate::address::Address;
use crate::aligned::AlignedBuf;
use crate::frame::{Broken, Frame, Head, Header, Kind, MAX_HEAD, MAX_PAYLOAD};
use crate::hello::PeerInfo;
use crate::metrics::{CONNECTIONS, Operation, SERVED, carried};
use crate::tls::Subject;
use crate::trace::{Context as Place, Span};
use crate::transport::{Fetch, Link, Progress, Receiver, Sender, User};
use crate::way::Way;
use bytes::Bytes;
use prometheus::IntGauge;
use prost::Message;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use weft_proto::{Error, ErrorKind, Result, op, v1};

/// Time for the peer's hello, and its length at most.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
const HELLO_LEN: u32 = 4 << 10;
/// While the window is full, the peer is told this often that we live: we do not read its pings.
const ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// How long requests in flight may take to finish after a shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that moves no byte of a request or of an answer for this long is cut off: it holds
/// memory.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// What all connections of one `serve` share.
pub(super) struct Context {
    pub service: Arc<dyn Service>,
    pub options: ServerOptions,
    /// Memory for requests and their answers.
    pub common: Arc<Budget>,
    pub kept_back: Arc<Budget>,
    pub shutdown: watch::Receiver<bool>,
}

struct Session {
    context: Arc<Context>,
    sender: Arc<dyn Sender>,
    window: Arc<Window>,
    /// What moved either way.
    heard: Progress,
    sent: Progress,
    /// A request has begun to come and is not whole yet.
    receiving: AtomicBool,
}

/// Serves a connection to its end.
pub(super) async fn run(context: Arc<Context>, link: Link, address: Address, seat: Seat) {
    let mut shutdown = context.shutdown.clone();
    let Link { sender, mut receiver, pump, heard, sent, subject, network, .. } = link;
    let session = Arc::new(Session {
        sender,
        window: Arc::new(Window::new(context.options.max_in_flight)),
        heard,
        sent,
        receiving: AtomicBool::new(false),
        context,
    });
    seat.works_through(&session.window);
    let _connected = Connected::count(network);
    let mut tasks = JoinSet::new();
    tasks.spawn({
        let session = session.clone();
        async move { pump.run(&*session).await.map_err(Broken::Io) }
    });
    let reader = tasks.spawn({
        let (session, address) = (session.clone(), address.clone());
        async move { session.receive_all(&mut *receiver, &address, subject).await }
    });

    tokio::select! {
        biased;
        // Whichever direction ends first takes the other with it.
        Some(ended) = tasks.join_next() => log_end(ended, &address),
        () = seat.lost() => {
            tracing::debug!(%address, "idle for long, or in the way of others: closing");
            reader.abort();
        }
        () = session.stall() => tracing::warn!(%address, "stands still inside a frame, closing"),
        () = stopped(&mut shutdown) => {
            reader.abort();
            session.drain(&address).await;
        }
    }
    // What is queued, such as the reason for the end, still goes out.
    session.sender.close();
    let _ = timeout(ALIVE_INTERVAL, async { while tasks.join_next().await.is_some() {} }).await;
}

/// A connection that is counted.
struct Connected(&'static IntGauge);

impl Connected {
    fn count(network: &str) -> Self {
        let carried = carried(true, network);
        carried.inc();
        CONNECTIONS.inc();
        Self(carried)
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        CONNECTIONS.dec();
        self.0.dec();
    }
}

/// The span of a request that belongs to a trace.
fn served(place: Place, request: &Incoming) -> Span {
    let name = op::name_of(request.op).unwrap_or("unknown");
    let mut span = Span::served(name, place);
    if span.is_traced() {
        span.note("client.address", request.peer.address.as_str());
        span.note("weft.client", request.peer.name.as_str());
        span.note("weft.received_bytes", request.payload.len() as u64);
    }
    span
}

/// Why this peer may not ask for this operation, if it may not.
fn refusal(op: u16, peer: &PeerInfo) -> Option<Error> {
    let subject = peer.subject.as_ref()?;
    let roles = op::asked_by(op).filter(|roles| !roles.has(subject.role))?;
    let what = format!("operation {op} is for {roles}, and {subject} is none of them");
    tracing::warn!(peer = %subject, address = %peer.address, op, "refused: {what}");
    Some(Error::new(ErrorKind::NotPermitted, what))
}

fn log_end(
    ended: std::result::Result<Result<(), Broken>, tokio::task::JoinError>,
    address: &Address,
) {
    match ended {
        Ok(Ok(()) | Err(Broken::Closed)) => tracing::debug!(%address, "connection closed"),
        Ok(Err(Broken::Io(error))) => tracing::debug!(%address, %error, "connection lost"),
        Ok(Err(Broken::Garbage(what))) => tracing::warn!(%address, what, "bad frame, closing"),
        Err(error) => tracing::error!(%address, %error, "a connection's task failed"),
    }
}

impl Session {
    async fn receive_all(
        self: &Arc<Self>,
        frames: &mut dyn Receiver,
        address: &Address,
        subject: Option<Arc<Subject>>,
    ) -> Result<(), Broken> {
        let peer = match timeout(HELLO_TIMEOUT, self.hello(frames, address, subject)).await {
            Ok(peer) => Arc::new(peer?),
            Err(_) => return Err(Broken::Garbage(format!("no hello in {HELLO_TIMEOUT:?}"))),
        };
        tracing::debug!(%address, name = %peer.name, "peer connected");
        loop {
            let header = frames.header().await?;
            self.receive(frames, &header, &peer).await?;
        }
    }

    async fn hello(
        &self,
        frames: &mut dyn Receiver,
        address: &Address,
        subject: Option<Arc<Subject>>,
    ) -> Result<PeerInfo, Broken> {
        let header = frames.header().await?;
        check_hello(&header)?;
        let head = frames.head().await?;
        let entered = self.window.enter(0).await;
        let identity = &self.context.options.identity;
        let checked = v1::Hello::decode(head)
            .map_err(|e| Error::new(ErrorKind::Protocol, format!("malformed hello: {e}")))
            .and_then(|hello| {
                let peer = identity.check(&hello, &address.to_string())?;
                Ok((PeerInfo { subject, ..peer }, Way::from_code(hello.way)))
            });
        match checked {
            Ok((peer, way)) => {
                let budget = match way {
                    Way::Common => &self.context.common,
                    Way::Freeing | Way::Prompt => &self.context.kept_back,
                };
                // A name that nobody has proved is no reason for memory of its own.
                let account = match peer.subject {
                    Some(_) => peer.tenant(),
                    None => address.host(),
                };
                self.window.draw_on(budget.account(account));
                self.answer(&header, Ok(Outgoing::message(&identity.hello())), entered);
                Ok(peer)
            }
            Err(error) => {
                let what = error.message.clone();
                self.answer(&header, Err(error), entered);
                Err(Broken::Garbage(what))
            }
        }
    }

    /// Reads one request and starts to serve it.
    async fn receive(
        self: &Arc<Self>,
        frames: &mut dyn Receiver,
        header: &Header,
        peer: &Arc<PeerInfo>,
    ) -> Result<(), Broken> {
        if header.kind != Kind::Request {
            return Err(Broken::Garbage("an answer on a serving connection".into()));
        }
        let came_at = frames.came_at();
        let len = header.payload_len as usize;
        if len > MAX_PAYLOAD {
            return Err(Broken::Garbage(format!("a request with a payload of {len} bytes")));
        }
        if let Some(refusal) = refusal(header.op, peer) {
            let entered = self.enter(header.head_len as usize).await;
            return self.turn_away(frames, header, refusal, entered).await;
        }
        let max = self.context.options.max_payload;
        let room = if len > 0 && len <= max { AlignedBuf::footprint(len) } else { 0 };
        let held = header.head_len as usize + room;
        let mut entered = self.enter(held).await;
        self.receiving.store(true, Ordering::Relaxed);
        let mut head = frames.head().await?;
        let place = if header.traced { Place::take(&mut head)? } else { None };
        let answer = match header.op {
            op::PING | op::HELLO => 0,
            // Longer ones are not for the service to weigh.
            _ if head.len() > OWN => 0,
            op => self.context.service.weigh(op, &head).min(MAX_PAYLOAD),
        };
        if len > max || len > 0 && answer > 0 {
            frames.skip().await?;
            self.receiving.store(false, Ordering::Relaxed);
            let max = if answer > 0 { 0 } else { max };
            let what =
                format!("request {} has a payload of {len} bytes, the limit is {max}", header.op);
            self.answer(header, Err(Error::new(ErrorKind::Invalid, what)), entered);
            return Ok(());
        }
        let (payload, fetch) = take_payload(frames, header).await?;
        self.receiving.store(false, Ordering::Relaxed);
        match header.op {
            op::PING => self.answer(header, Ok(Outgoing::default()), entered),
            op::HELLO => {
                let error = Error::new(ErrorKind::Protocol, "hello is said once on a connection");
                self.answer(header, Err(error), entered);
            }
            op => {
                let deadline = (header.deadline_ms != 0)
                    .then(|| came_at + Duration::from_millis(header.deadline_ms.into()));
                if answer > 0 {
                    // It has none while it waits.
                    drop(entered);
                    entered = self.enter(held + answer).await;
                }
                let request = Incoming { op, head, payload, peer: peer.clone(), deadline };
                match fetch {
                    None => tokio::spawn(self.clone().serve(*header, place, request, entered)),
                    Some(fetch) => tokio::spawn(
                        self.clone().serve_fetched(*header, place, request, fetch, entered),
                    ),
                };
            }
        }
        Ok(())
    }

    /// Answers a request without looking at it.
    async fn turn_away(
        &self,
        frames: &mut dyn Receiver,
        header: &Header,
        refusal: Error,
        entered: Entered,
    ) -> Result<(), Broken> {
        self.receiving.store(true, Ordering::Relaxed);
        frames.head().await?;
        frames.skip().await?;
        self.receiving.store(false, Ordering::Relaxed);
        self.answer(header, Err(refusal), entered);
        Ok(())
    }

    /// Waits for room in the window, with signs of life.
    async fn enter(&self, bytes: usize) -> Entered {
        if let Some(entered) = self.window.try_enter(bytes) {
            return entered;
        }
        let entered = self.window.enter(bytes);
        tokio::pin!(entered);
        loop {
            tokio::select! {
                biased;
                entered = &mut entered => return entered,
                () = sleep(ALIVE_INTERVAL) => self.say_alive(),
            }
        }
    }

    /// A frame that answers nothing. If anything else is on its way, that is sign enough.
    fn say_alive(&self) {
        if self.sender.is_idle() {
            self.sender.send(Frame::bare(Header::new(Kind::Answer, op::PING, 0)), None);
        }
    }

    /// Serves a request whose payload is on its way.
    async fn serve_fetched(
        self: Arc<Self>,
        header: Header,
        place: Option<Place>,
        mut request: Incoming,
        fetch: Fetch,
        entered: Entered,
    ) {
        let Some(fetched) = caught(fetch).await else {
            return self.answer_defect(&header, "the fetch of its payload", entered);
        };
        match fetched {
            Ok(payload) => request.payload = payload.into(),
            // Its receiver says so, too.
            Err(error) => {
                return tracing::debug!(op = header.op, %error, "a payload did not come");
            }
        }
        self.serve(header, place, request, entered).await;
    }

    /// `place`: where in a trace it belongs, if in any.
    async fn serve(
        self: Arc<Self>,
        header: Header,
        place: Option<Place>,
        request: Incoming,
        entered: Entered,
    ) {
        let counted = SERVED.of(header.op).map(Operation::begin);
        if let Some(running) = &counted {
            running.received(request.payload.len());
        }
        let span = place.map(|place| served(place, &request));
        let mut work = self.context.service.call(request);
        if let (Some(place), Some(span)) = (place, span) {
            work = Box::pin(span.serves(place, work));
        }
        let Some(answer) = caught(work).await else {
            return self.answer_defect(&header, "its handler", entered);
        };
        if let Some(running) = counted {
            let payload = answer.as_ref().map_or(0, |a| a.payload.iter().map(Bytes::len).sum());
            running.sent(payload);
            running.end(&answer);
        }
        self.end(&header, answer, entered);
    }

    /// Something that a request went through panicked.
    fn answer_defect(&self, header: &Header, at: &str, entered: Entered) {
        tracing::error!(op = header.op, "{at} panicked");
        let what = format!("a defect: request {} failed in {at}", header.op);
        self.end(header, Err(Error::new(ErrorKind::Internal, what)), entered);
    }

    fn end(&self, header: &Header, answer: Result<Outgoing>, entered: Entered) {
        if header.id != 0 {
            return self.answer(header, answer, entered);
        }
        // It was told, not asked.
        if let Err(error) = answer {
            tracing::debug!(op = header.op, %error, "a request that wants no answer failed");
        }
    }

    /// Queues the answer to a request, which takes over its room.
    fn answer(&self, to: &Header, answer: Result<Outgoing>, entered: Entered) {
        let answer = answer.and_then(|answer| {
            let payload = answer.payload.iter().map(Bytes::len).sum::<usize>();
            if answer.head.len() <= MAX_HEAD && payload <= MAX_PAYLOAD {
                return Ok((answer, payload));
            }
            let what = format!(
                "a defect: the answer to request {} has {} + {payload} bytes, over the limits",
                to.op,
                answer.head.len()
            );
            tracing::error!("{what}");
            Err(Error::new(ErrorKind::Internal, what))
        });
        let header = |kind| Header::new(kind, to.op, to.id);
        let queued;
        let mut cost = 0;
        match answer {
            Ok((answer, payload)) => {
                cost = answer.head.len() + payload;
                entered.answered(cost);
                let head = Head::Bytes(answer.head);
                let frame = Frame::new(header(Kind::Answer), head, answer.payload);
                queued = self.sender.send(frame, Some(cost));
            }
            Err(error) => {
                entered.answered(0);
                let head = v1::ErrorHead::from(error);
                let frame = Frame::new(header(Kind::Failure), Head::Message(&head), Vec::new());
                queued = self.sender.send(frame, Some(0));
            }
        }
        if !queued {
            self.window.left(1, cost);
            tracing::trace!(op = to.op, "the caller has gone before its answer");
        }
    }

    /// Returns when a request or an answer is half way and has not moved for too long.
    async fn stall(&self) {
        let mut before = (0, 0);
        loop {
            sleep(STALL_TIMEOUT).await;
            let now = (self.heard.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed));
            let receiving = self.receiving.load(Ordering::Relaxed) && now.0 == before.0;
            let sending = !self.sender.is_idle() && now.1 == before.1;
            if receiving || sending {
                return;
            }
            before = now;
        }
    }

    async fn drain(&self, address: &Address) {
        let empty = async {
            while self.window.requests() > 0 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        if timeout(DRAIN_TIMEOUT, empty).await.is_err() {
            tracing::warn!(%address, "requests did not finish in {DRAIN_TIMEOUT:?}, closing");
        }
    }
}

impl User for Session {
    fn crowded(&self) -> bool {
        self.window.requests() > 1
    }

    fn left(&self, frames: usize, cost: usize) {
        self.window.left(frames, cost);
    }
}

/// The payload of a request, or what brings it.
async fn take_payload(
    frames: &mut dyn Receiver,
    header: &Header,
) -> Result<(Bytes, Option<Fetch>), Broken> {
    if matches!(header.op, op::PING | op::HELLO) {
        // Nobody looks at what comes with them, nor waits for it.
        frames.skip().await?;
        return Ok((Bytes::new(), None));
    }
    if header.payload_len == 0 {
        return Ok((Bytes::new(), None));
    }
    match frames.fetch(AlignedBuf::take(header.payload_len as usize)) {
        Ok(coming) => Ok((Bytes::new(), Some(coming))),
        Err(mut buffer) => {
            frames.payload(buffer.as_mut_slice()).await?;
            Ok((buffer.into(), None))
        }
    }
}

fn check_hello(header: &Header) -> Result<(), Broken> {
    let right = header.kind == Kind::Request && header.op == op::HELLO && header.payload_len == 0;
    if right && header.head_len <= HELLO_LEN {
        return Ok(());
    }
    Err(Broken::Garbage("the first request is not a hello".into()))
}

/// Answers the hello of a connection with an error.
pub(super) async fn refuse(link: Link, error: Error) {
    let Link { sender, mut receiver, pump, .. } = link;
    let answer = async {
        if let Ok(hello) = receiver.header().await
            && check_hello(&hello).is_ok()
            && receiver.head().await.is_ok()
        {
            let head = v1::ErrorHead::from(error);
            let header = Header::new(Kind::Failure, hello.op, hello.id);
            sender.send(Frame::new(header, Head::Message(&head), Vec::new()), None);
        }
        sender.close();
    };
    // Whether it has left, nobody learns.
    let _ = tokio::join!(pump.run(&Nobody), answer);
}

/// Who has nothing more to send.
struct Nobody;

impl User for Nobody {
    fn crowded(&self) -> bool {
        false
    }

    fn left(&self, _frames: usize, _cost: usize) {}
}

/// Returns when `shutdown` is true; never if its sender has gone without saying so.
pub(super) async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    if shutdown.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Runs a future; `None` if it panicked.
async fn caught<T>(mut future: Pin<Box<dyn Future<Output = T> + Send + '_>>) -> Option<T> {
    std::future::poll_fn(move |cx| {
        // After a panic the future is never polled again.
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Ready(value)) => Poll::Ready(Some(value)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(_) => Poll::Ready(None),
        }
    })
    .await
}

#[cfg(test)]
mod tests;
