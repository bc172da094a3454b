//! The seam to the network: frames with payload, and memory that payloads land in.
//!
//! Who calls sends requests ([`Sender::ask`]) and says with each where the payload of its answer
//! goes. Who serves takes the payload of a request when there is memory for it
//! ([`Receiver::poll_payload`], or [`Receiver::fetch`] beside what else comes) and sends answers
//! with theirs. So the server moves all payloads: through a stream, in order with the frames
//! ([`crate::stream`]), or between registered memory of both sides, as RDMA does.
//!
//! Invariants: frames of one direction arrive in the order in which they were sent; what a frame
//! says of its lengths is checked by whoever receives it, before it costs memory.

use crate::address::Address;
use crate::aligned::AlignedBuf;
use crate::buffer::Buffer;
use crate::frame::{Broken, Frame, Header};
use crate::stream::BoxStream;
use crate::tls::Subject;
use bytes::Bytes;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// A host that answers at all answers a connect within this.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A kind of network.
#[async_trait::async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Connects to a server of frames. The caller bounds the time.
    async fn connect(&self, address: &Address) -> io::Result<Link>;
    /// As [`Self::connect`], by the best way or not at all. Error: `Unsupported`, there is but one.
    async fn connect_best(&self, _address: &Address) -> io::Result<Link> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Whether a link that [`Self::connect`] or [`Self::connect_best`] made has carried anything.
    fn tried(&self, _address: &Address, _carried: Result<(), String>) {}
    /// What goes by another way than it was meant to, and why, for people.
    fn fallbacks(&self) -> Vec<Fallback> {
        Vec::new()
    }
    /// How long a server that can be reached takes to be connected, at most.
    fn connect_timeout(&self) -> Duration {
        CONNECT_TIMEOUT
    }
    /// A stream to the gRPC of a server. Error: `Unsupported`, this network has none.
    async fn stream(&self, address: &Address) -> io::Result<BoxStream>;
    /// Listens; port 0 picks a free one.
    async fn bind(&self, address: &Address) -> io::Result<Box<dyn Listener>>;
}

/// Something goes by another way than it was meant to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fallback {
    /// The server that is reached so; none: others reach this process so.
    pub server: Option<Address>,
    /// What the better way lacks.
    pub why: String,
}

/// A bound port.
#[async_trait::async_trait]
pub trait Listener: Send {
    /// The next connection and the address of its other end. Must be safe to cancel.
    async fn accept(&mut self) -> io::Result<(Box<dyn Opening>, Address)>;
    /// The address that was bound, with the port that was picked.
    fn local_address(&self) -> io::Result<Address>;
}

/// A connection that was accepted and has not said yet what it is.
#[async_trait::async_trait]
pub trait Opening: Send {
    /// Waits until it is known what the other side speaks. The caller bounds the time.
    async fn speaks(self: Box<Self>) -> io::Result<Speaks>;
}

/// What the other side of a new connection speaks.
pub enum Speaks {
    /// Frames; nothing of them was taken yet.
    Frames(Link),
    /// HTTP/2, with the preface still to be read.
    Http2(BoxStream),
    /// HTTP/1 that asks for something, all of it still to be read.
    Http1(BoxStream),
    /// It asks how this server is reached over RDMA; that was taken.
    Rdma(BoxStream),
    /// Anything else, with its first bytes.
    Unknown([u8; 4]),
}

/// A connection, in parts that different tasks use at once. Once the sender was severed, or the
/// pump has ended or was dropped, the other side receives [`Broken`] after what was sent before.
pub struct Link {
    /// Takes what is to be sent.
    pub sender: Arc<dyn Sender>,
    /// Hands out what comes.
    pub receiver: Box<dyn Receiver>,
    /// Moves what the sender took, and may move what comes, too: to be run by a task of its own
    /// from the first.
    pub pump: Box<dyn Pump>,
    /// Counts how often something of what the other side sent came in.
    pub heard: Progress,
    /// Counts how often something of what was to be sent has left.
    pub sent: Progress,
    /// Who is on the other end, if that was proved.
    pub subject: Option<Arc<Subject>>,
    /// What carries it, for people.
    pub network: &'static str,
    /// When it is worth another try to reach the other side by a better way than this.
    pub retry_after: Option<Duration>,
}

/// Counts movements; standing still is silence.
pub type Progress = Arc<AtomicU64>;

/// The sending side of a connection: any task may use it, and none waits.
pub trait Sender: Send + Sync + 'static {
    /// Queues a request. `into` is where the payload of its answer goes, if its length is theirs in
    /// all; the other side may write there at any time. False: the connection is over.
    ///
    /// # Safety
    ///
    /// This memory stays where it is, and nobody looks at it or writes to it, until the answer to
    /// this request was received, [`Self::give_up`] has answered that nobody writes there, or
    /// [`Self::sever`] has returned.
    unsafe fn ask(&self, frame: Frame<'_>, into: &[Buffer]) -> bool;

    /// Queues an answer, or a request that none is wanted for. With a `cost`, [`User::left`] is
    /// told of it when the frame and its payload have left. False: the connection is over.
    fn send(&self, frame: Frame<'_>, cost: Option<usize>) -> bool;

    /// Nobody waits for the answer to this request any more. Answers whether the other side may
    /// still write by itself into the memory that was given to [`Self::ask`] with it, until its
    /// answer has come. If not, nobody writes there any more: either nobody ever does, or the
    /// request had not begun to leave, and does not now.
    fn give_up(&self, id: u64) -> bool;

    /// Nothing waits to be sent or is being sent.
    fn is_idle(&self) -> bool;

    /// Takes no more frames; the pump ends after those that are here.
    fn close(&self);

    /// Ends the connection now. When this has returned, nothing writes any more into memory that
    /// was given to [`Self::ask`].
    fn sever(&self);
}

/// The receiving side of a connection, for one task. The parts of a frame are taken in order: the
/// header, the head, and the payload or that it is skipped.
pub trait Receiver: Send + 'static {
    /// The header of the next frame. `Closed` if the connection was closed in good order.
    fn poll_header(&mut self, cx: &mut Context<'_>) -> Poll<Result<Header, Broken>>;

    /// The head that the header announced.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Broken>>;

    /// The next bytes of the payload. Memory that was given to [`Sender::ask`] with the request may
    /// be filled already, if all of it is asked for in order. To be polled with the same memory
    /// until it is ready.
    fn poll_payload(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<Result<(), Broken>>;

    /// Whether the payload was written by the other side, into what was given to [`Sender::ask`].
    fn was_written(&self) -> bool {
        false
    }

    /// Does without the payload.
    fn poll_skip(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>>;

    /// Takes the whole payload beside the frames that follow, or gives the memory back: the payload
    /// lies in their way, and must be taken by [`Self::poll_payload`].
    fn fetch(&mut self, into: AlignedBuf) -> Result<Fetch, AlignedBuf> {
        Err(into)
    }

    /// When the last header had come. One clock reading may serve many frames.
    fn came_at(&self) -> Instant;
}

/// A payload on its way. If this is dropped the transport keeps the memory while it may be written.
pub type Fetch = Pin<Box<dyn Future<Output = Result<AlignedBuf, Broken>> + Send>>;

impl dyn Receiver {
    pub(crate) async fn header(&mut self) -> Result<Header, Broken> {
        poll_fn(|cx| self.poll_header(cx)).await
    }

    pub(crate) async fn head(&mut self) -> Result<Bytes, Broken> {
        poll_fn(|cx| self.poll_head(cx)).await
    }

    pub(crate) async fn payload(&mut self, into: &mut [u8]) -> Result<(), Broken> {
        poll_fn(|cx| self.poll_payload(cx, into)).await
    }

    pub(crate) async fn skip(&mut self) -> Result<(), Broken> {
        poll_fn(|cx| self.poll_skip(cx)).await
    }
}

/// Moves what a [`Sender`] took.
#[async_trait::async_trait]
pub trait Pump: Send {
    /// Runs until the sender was closed and all has left, or the connection is over.
    async fn run(self: Box<Self>, user: &dyn User) -> io::Result<()>;
}

/// What a [`Pump`] asks and tells whoever uses the connection.
pub trait User: Send + Sync {
    /// Whether more frames than one are likely to be sent at a time, so that it pays to wait for
    /// those that tasks are just making.
    fn crowded(&self) -> bool;

    /// So many frames with a cost have left; the sum of their costs.
    fn left(&self, frames: usize, cost: usize);
}
