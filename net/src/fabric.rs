//! A network in memory that moves payloads as RDMA does: requests and answers are messages, the
//! server fetches the payload of a request when it has memory for it, and writes that of an answer
//! straight into the caller's memory before it sends the answer, whether anyone still waits or not.
//!
//! For tests and simulation: no clock, no randomness, no threads. Connections are between hosts of
//! one [`Fabric`], in one process.
//!
//! Invariants: memory of the other side is written only under the lock of the connection while it
//! is not over, which is what severing it relies on; no more messages than [`CREDITS`] wait at a
//! receiver, the others at who sent them.

use crate::address::Address;
use crate::aligned::AlignedBuf;
use crate::buffer::Buffer;
use crate::frame::{Broken, Frame, Head, Header, Kind};
use crate::stream::{BoxStream, Stream};
use crate::sync::Mutex;
use crate::transport::{
    Fetch, Link, Listener, Opening, Progress, Pump, Receiver, Sender, Speaks, Transport, User,
};
use bytes::{Buf, Bytes};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// What the network is called in addresses.
const NETWORK: &str = "fabric";
/// Messages that wait at a receiver.
const CREDITS: usize = 32;
/// Bytes that wait in a stream of gRPC.
const STREAM: usize = 64 << 10;

/// Hosts that reach each other.
#[derive(Default)]
pub struct Fabric(Mutex<Ports>);

#[derive(Default)]
struct Ports {
    listening: HashMap<(String, u16), mpsc::UnboundedSender<Knock>>,
    /// Of listeners that want any, and of callers.
    last: u16,
}

type Knock = (Box<dyn Opening>, Address);

struct Host {
    fabric: Arc<Fabric>,
    name: String,
}

impl Fabric {
    /// A fabric without hosts.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The network as seen by a host of this name, which its connections come from.
    pub fn host(self: &Arc<Self>, name: &str) -> Arc<dyn Transport> {
        Arc::new(Host { fabric: self.clone(), name: name.into() })
    }
}

/// Host and port of an address. Error: `Unsupported`, it is on a network of another kind.
fn place(address: &Address) -> io::Result<(String, u16)> {
    if address.network().is_some_and(|network| network != NETWORK) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok((address.host().into(), address.port()))
}

impl Host {
    /// Has whoever listens at `address` accept what this speaks.
    fn knock(&self, address: &Address, what: Speaks) -> io::Result<()> {
        let mut ports = self.fabric.0.lock();
        ports.last = ports.last.wrapping_add(1);
        let from = format!("{NETWORK}://{}:{}", self.name, ports.last).parse()?;
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let port = ports.listening.get(&place(address)?);
        let port = port.ok_or_else(refused)?;
        port.send((Box::new(Known(what)), from)).map_err(|_| refused())
    }
}

#[async_trait::async_trait]
impl Transport for Host {
    async fn connect(&self, address: &Address) -> io::Result<Link> {
        let wire = Arc::new(Mutex::new(Wire::default()));
        self.knock(address, Speaks::Frames(link(&wire, SERVER)))?;
        Ok(link(&wire, CALLER))
    }

    async fn stream(&self, address: &Address) -> io::Result<BoxStream> {
        let (ours, theirs) = tokio::io::duplex(STREAM);
        self.knock(address, Speaks::Http2(Box::new(theirs)))?;
        Ok(Box::new(ours))
    }

    async fn bind(&self, address: &Address) -> io::Result<Box<dyn Listener>> {
        let (host, mut port) = place(address)?;
        let mut ports = self.fabric.0.lock();
        while port == 0
            || (address.port() == 0 && ports.listening.contains_key(&(host.clone(), port)))
        {
            ports.last = ports.last.wrapping_add(1);
            port = ports.last;
        }
        let (to, knocks) = mpsc::unbounded_channel();
        let key = (host, port);
        if ports.listening.contains_key(&key) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        ports.listening.insert(key.clone(), to);
        Ok(Box::new(Port { fabric: self.fabric.clone(), key, knocks }))
    }
}

struct Port {
    fabric: Arc<Fabric>,
    key: (String, u16),
    knocks: mpsc::UnboundedReceiver<Knock>,
}

#[async_trait::async_trait]
impl Listener for Port {
    async fn accept(&mut self) -> io::Result<Knock> {
        self.knocks.recv().await.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn local_address(&self) -> io::Result<Address> {
        format!("{NETWORK}://{}:{}", self.key.0, self.key.1).parse()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.fabric.0.lock().listening.remove(&self.key);
    }
}

/// What speaks is known from the first.
struct Known(Speaks);

#[async_trait::async_trait]
impl Opening for Known {
    async fn speaks(self: Box<Self>) -> io::Result<Speaks> {
        Ok(self.0)
    }
}

impl Stream for DuplexStream {}

/// The ends of a connection.
const CALLER: usize = 0;
const SERVER: usize = 1;

/// A connection.
#[derive(Default)]
struct Wire {
    /// What the caller sends, and what the server does.
    lanes: [Lane; 2],
    /// Where answers land, by the number of the request; the server knows it from the request.
    landings: HashMap<u64, Vec<Landing>>,
    over: bool,
}

#[derive(Default)]
struct Lane {
    queued: VecDeque<Message>,
    arrived: VecDeque<Message>,
    /// Takes no more.
    closed: bool,
    /// Its pump has ended, its receiver is gone.
    ended: bool,
    deaf: bool,
    pump: Option<Waker>,
    receiver: Option<Waker>,
    moved: Progress,
}

struct Message {
    header: Header,
    head: Bytes,
    /// What the other side may fetch.
    payload: Vec<Bytes>,
    into: Vec<Landing>,
    cost: Option<usize>,
    /// The payload is in the memory of the caller.
    landed: bool,
}

/// Memory of a caller that the server may write to.
struct Landing {
    start: *mut u8,
    len: usize,
}

// SAFETY: it is written only under the lock of the wire.
unsafe impl Send for Landing {}

impl Lane {
    fn wake(&mut self) {
        self.pump.take().into_iter().chain(self.receiver.take()).for_each(Waker::wake);
    }
}

impl Wire {
    fn end(&mut self) {
        self.over = true;
        self.landings.clear();
        self.lanes.iter_mut().for_each(Lane::wake);
    }

    /// Writes the payload of an answer where its caller wants it.
    fn land(&mut self, answer: &mut Message) {
        let Some(landings) = self.landings.remove(&answer.header.id) else { return };
        let room = landings.iter().map(|l| l.len).sum::<usize>();
        if self.over || answer.header.kind != Kind::Answer || !answer.fits(room) {
            return;
        }
        let mut payload = std::mem::take(&mut answer.payload);
        for landing in landings {
            // SAFETY: the caller keeps the memory, and looks at it only when it has the answer,
            // until the wire is over.
            let into = unsafe { std::slice::from_raw_parts_mut(landing.start, landing.len) };
            copy(&mut payload, into);
        }
        answer.landed = true;
    }
}

impl Message {
    fn fits(&self, room: usize) -> bool {
        self.header.payload_len as usize == room
    }
}

/// Moves the next bytes of `payload` into `into`.
fn copy(payload: &mut [Bytes], mut into: &mut [u8]) {
    for piece in payload {
        let (now, later) = into.split_at_mut(piece.len().min(into.len()));
        now.copy_from_slice(&piece[..now.len()]);
        piece.advance(now.len());
        into = later;
    }
}

/// One end's sending side.
struct End {
    wire: Arc<Mutex<Wire>>,
    side: usize,
}

/// The pump of an end, and its receiver with the message that is being taken.
struct Post(End);
struct Inbox(End, Option<Message>, Instant);

fn link(wire: &Arc<Mutex<Wire>>, side: usize) -> Link {
    let end = || End { wire: wire.clone(), side };
    let moved = |lane: usize| wire.lock().lanes[lane].moved.clone();
    Link {
        sender: Arc::new(end()),
        receiver: Box::new(Inbox(end(), None, Instant::now())),
        pump: Box::new(Post(end())),
        heard: moved(1 - side),
        sent: moved(side),
        subject: None,
    }
}

impl End {
    fn push(&self, frame: Frame<'_>, into: Vec<Landing>, cost: Option<usize>) -> bool {
        let Frame { header, head, payload } = frame;
        let head = match head {
            Head::Bytes(bytes) => bytes,
            Head::Message(message) => {
                let mut bytes = Vec::with_capacity(header.head_len as usize);
                message.encode(&mut bytes);
                bytes.into()
            }
        };
        let mut wire = self.wire.lock();
        let over = wire.over;
        let lane = &mut wire.lanes[self.side];
        if over || lane.closed {
            return false;
        }
        lane.queued.push_back(Message { header, head, payload, into, cost, landed: false });
        lane.wake();
        true
    }
}

impl Sender for End {
    unsafe fn ask(&self, frame: Frame<'_>, into: &[Buffer]) -> bool {
        let landing = |b: &Buffer| Landing { start: b.memory(), len: b.len() };
        self.push(frame, into.iter().map(landing).collect(), None)
    }

    fn send(&self, frame: Frame<'_>, cost: Option<usize>) -> bool {
        self.push(frame, Vec::new(), cost)
    }

    fn writes_late(&self) -> bool {
        true
    }

    fn is_idle(&self) -> bool {
        self.wire.lock().lanes[self.side].queued.is_empty()
    }

    fn close(&self) {
        let mut wire = self.wire.lock();
        wire.lanes[self.side].closed = true;
        wire.lanes[self.side].wake();
    }

    fn sever(&self) {
        self.wire.lock().end();
    }
}

impl Post {
    /// Whether there is something to be moved and room for it; `false` at the end.
    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut wire = self.0.wire.lock();
        if wire.over {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let lane = &mut wire.lanes[self.0.side];
        if !lane.queued.is_empty() && (lane.deaf || lane.arrived.len() < CREDITS) {
            return Poll::Ready(Ok(true));
        }
        if lane.closed && lane.queued.is_empty() {
            return Poll::Ready(Ok(false));
        }
        lane.pump = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Moves one message. Answers what is to be told of it.
    fn step(&self) -> Option<usize> {
        let mut wire = self.0.wire.lock();
        let mut message = wire.lanes[self.0.side].queued.pop_front()?;
        if self.0.side == SERVER {
            wire.land(&mut message);
        }
        let lane = &mut wire.lanes[self.0.side];
        lane.moved.fetch_add(1, Ordering::Relaxed);
        let cost = message.cost;
        if !lane.deaf {
            lane.arrived.push_back(message);
        }
        lane.wake();
        cost
    }
}

#[async_trait::async_trait]
impl Pump for Post {
    async fn run(self: Box<Self>, user: &dyn User) -> io::Result<()> {
        while poll_fn(|cx| self.poll_ready(cx)).await? {
            // Others run between any two messages, as on a network that takes time.
            tokio::task::yield_now().await;
            if let Some(cost) = self.step() {
                user.left(1, cost);
            }
        }
        Ok(())
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        let mut wire = self.0.wire.lock();
        let lane = &mut wire.lanes[self.0.side];
        (lane.closed, lane.ended) = (true, true);
        lane.wake();
    }
}

impl Inbox {
    fn current(&mut self) -> Result<&mut Message, Broken> {
        self.1.as_mut().ok_or_else(|| Broken::Garbage("no header was taken".into()))
    }
}

impl Receiver for Inbox {
    fn poll_header(&mut self, cx: &mut Context<'_>) -> Poll<Result<Header, Broken>> {
        let mut wire = self.0.wire.lock();
        let over = wire.over;
        let lane = &mut wire.lanes[1 - self.0.side];
        if over {
            return Poll::Ready(Err(Broken::Io(io::ErrorKind::ConnectionReset.into())));
        }
        let Some(mut message) = lane.arrived.pop_front() else {
            if lane.ended {
                return Poll::Ready(Err(Broken::Closed));
            }
            lane.receiver = Some(cx.waker().clone());
            return Poll::Pending;
        };
        lane.wake();
        let header = message.header;
        if self.0.side == SERVER && !message.into.is_empty() {
            wire.landings.insert(header.id, std::mem::take(&mut message.into));
        }
        (self.1, self.2) = (Some(message), Instant::now());
        Poll::Ready(Ok(header))
    }

    fn poll_head(&mut self, _: &mut Context<'_>) -> Poll<Result<Bytes, Broken>> {
        Poll::Ready(self.current().map(|message| std::mem::take(&mut message.head)))
    }

    fn poll_payload(&mut self, _: &mut Context<'_>, into: &mut [u8]) -> Poll<Result<(), Broken>> {
        let message = self.current()?;
        if !message.landed {
            copy(&mut message.payload, into);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_skip(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        Poll::Ready(self.current().map(|message| message.payload.clear()))
    }

    fn fetch(&mut self, mut into: AlignedBuf) -> Result<Fetch, AlignedBuf> {
        let Ok(message) = self.current() else { return Err(into) };
        let (mut payload, wire) = (std::mem::take(&mut message.payload), self.0.wire.clone());
        Ok(Box::pin(async move {
            tokio::task::yield_now().await;
            if wire.lock().over {
                return Err(Broken::Closed);
            }
            copy(&mut payload, into.as_mut_slice());
            Ok(into)
        }))
    }

    fn came_at(&self) -> Instant {
        self.2
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let mut wire = self.0.wire.lock();
        let lane = &mut wire.lanes[1 - self.0.side];
        lane.deaf = true;
        lane.arrived.clear();
        lane.wake();
    }
}
