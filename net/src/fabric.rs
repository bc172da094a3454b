//! A network in memory with cards that are as strict as real ones: memory that they were not told of,
//! a message that there is no memory for, more requests than a queue holds, all of that ends a
//! connection. What crosses it is what crosses a real one ([`crate::rdma`]).
//!
//! For tests and simulation: no clock, no randomness, no threads. Connections are between hosts of
//! one [`Fabric`], in one process.
//!
//! Invariant: memory is read and written only under the lock of the connection while it is not
//! over, which is what severing it relies on.

use crate::address::Address;
use crate::rdma::{
    Completion, Domain, Done, Keys, Local, Nic, Piece, QueuePair, RECEIVES, SENDS, Side, connected,
};
use crate::stream::{BoxStream, Stream};
use crate::sync::Mutex;
use crate::transport::{Link, Listener, Opening, Speaks, Transport};
use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;

/// What the network is called in addresses.
const NETWORK: &str = "fabric";
/// Bytes that wait in a stream of gRPC.
const STREAM: usize = 64 << 10;
/// Requests that a card does in a row, and reads that it has under way.
const BURST: usize = 2;
const READS: usize = 4;

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
        port.send((Box::new(Spoken(what)), from)).map_err(|_| refused())
    }
}

#[async_trait::async_trait]
impl Transport for Host {
    async fn connect(&self, address: &Address) -> io::Result<Link> {
        let wire = Arc::<Mutex<Wire>>::default();
        let memory = [Memory::default(), Memory::default()];
        let end = |side: Side| -> io::Result<Link> {
            let domain = Domain::new(Box::new(memory[side as usize].clone()))?;
            let end = End { wire: wire.clone(), side: side as usize, memory: memory.clone() };
            connected(Box::new(end), domain, side, Box::pin(pending()))
        };
        self.knock(address, Speaks::Frames(end(Side::Server)?))?;
        end(Side::Caller)
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
struct Spoken(Speaks);

#[async_trait::async_trait]
impl Opening for Spoken {
    async fn speaks(self: Box<Self>) -> io::Result<Speaks> {
        Ok(self.0)
    }
}

impl Stream for DuplexStream {}

/// Memory that a card was told of, by its key.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    last: u32,
    /// Address and length.
    runs: HashMap<u32, (usize, usize)>,
}

impl Memory {
    fn holds(&self, key: u32, start: usize, len: usize) -> bool {
        let known = self.0.lock();
        known.runs.get(&key).is_some_and(|&(at, all)| start >= at && start + len <= at + all)
    }
}

impl Nic for Memory {
    fn register(&self, start: *mut u8, len: usize) -> io::Result<Keys> {
        let mut known = self.0.lock();
        known.last += 1;
        let key = known.last;
        known.runs.insert(key, (start.expose_provenance(), len));
        Ok(Keys { local: key, remote: key, handle: 0 })
    }

    fn deregister(&self, keys: Keys) {
        self.0.lock().runs.remove(&keys.local);
    }
}

/// A connection.
#[derive(Default)]
struct Wire {
    /// The caller's end and the server's.
    cards: [Card; 2],
    /// Why it is over, as far as both know.
    broken: Option<String>,
}

#[derive(Default)]
struct Card {
    /// What was posted and not done; done and not told of; and that has ended.
    requests: VecDeque<(u64, Request)>,
    quiet: usize,
    ended: VecDeque<Completion>,
    /// Memory for messages.
    receives: VecDeque<(u64, Local)>,
    waits: Option<Waker>,
    destroyed: bool,
}

enum Request {
    Send(Local),
    Write(Local, Piece, bool),
    Read(Local, Piece),
}

/// One end.
struct End {
    wire: Arc<Mutex<Wire>>,
    side: usize,
    /// Of the caller and of the server.
    memory: [Memory; 2],
}

impl Card {
    fn wake(&mut self) {
        self.waits.take().into_iter().for_each(Waker::wake);
    }
}

impl Wire {
    fn fail(&mut self, why: &str) {
        self.broken.get_or_insert_with(|| why.into());
        self.cards.iter_mut().for_each(Card::wake);
    }
}

impl End {
    fn post(&self, id: u64, request: Request) -> io::Result<()> {
        let mut wire = self.wire.lock();
        let card = &mut wire.cards[self.side];
        assert!(!card.destroyed, "posted to what was destroyed");
        if card.requests.len() + card.quiet >= SENDS {
            return Err(io::Error::other("the queue of the card is full"));
        }
        card.requests.push_back((id, request));
        card.wake();
        Ok(())
    }

    fn local(&self, at: Local) -> Result<*mut u8, String> {
        let known = self.memory[self.side].holds(at.key, at.start.addr(), at.len);
        known.then_some(at.start).ok_or_else(|| format!("local memory {at:?} is not known"))
    }

    fn remote(&self, at: Piece) -> Result<*mut u8, String> {
        let (start, len) = (at.address as usize, at.len as usize);
        let known = self.memory[1 - self.side].holds(at.key, start, len);
        let start = known.then(|| std::ptr::with_exposed_provenance_mut(start));
        start.ok_or_else(|| format!("memory {at:?} of the other side is not known"))
    }

    /// Does one request. Whoever posted it keeps the memory while the connection is not over.
    fn step(&self, wire: &mut Wire, id: u64, request: Request) -> Result<(), String> {
        let copy = |from: *mut u8, to: *mut u8, len: usize| {
            // SAFETY: both runs are known to their cards, and kept while this lock is held.
            unsafe { std::ptr::copy(from, to, len) };
        };
        let (done, told) = match request {
            Request::Send(message) => {
                let other = &mut wire.cards[1 - self.side];
                let (at, into) = other.receives.pop_front().ok_or("nobody takes this message")?;
                if message.len > into.len {
                    return Err(format!("a message of {} bytes", message.len));
                }
                let known = self.memory[1 - self.side].holds(into.key, into.start.addr(), into.len);
                if !known {
                    return Err("memory for messages that is not known".into());
                }
                copy(self.local(message)?, into.start, message.len);
                other.ended.push_back(Completion { id: at, done: Done::Received(message.len) });
                other.wake();
                (Done::Sent, true)
            }
            Request::Write(from, to, told) => {
                copy(self.local(from)?, self.remote(to)?, from.len);
                (Done::Written, told)
            }
            Request::Read(into, from) => {
                copy(self.remote(from)?, self.local(into)?, into.len);
                (Done::Read, true)
            }
        };
        let card = &mut wire.cards[self.side];
        if told {
            card.ended.push_back(Completion { id, done });
            card.quiet = if done == Done::Read { card.quiet } else { 0 };
        } else {
            card.quiet += 1;
        }
        Ok(())
    }
}

// SAFETY: memory is used only under the lock, while this end is not destroyed.
unsafe impl QueuePair for End {
    fn send(&self, id: u64, message: Local) -> io::Result<()> {
        self.post(id, Request::Send(message))
    }

    fn write(&self, id: u64, from: Local, to: Piece, told: bool) -> io::Result<()> {
        self.post(id, Request::Write(from, to, told))
    }

    fn read(&self, id: u64, into: Local, from: Piece) -> io::Result<()> {
        self.post(id, Request::Read(into, from))
    }

    fn receive(&self, id: u64, into: Local) -> io::Result<()> {
        let mut wire = self.wire.lock();
        let receives = &mut wire.cards[self.side].receives;
        receives.push_back((id, into));
        match receives.len() > RECEIVES {
            true => Err(io::Error::other("more memory for messages than the card takes")),
            false => Ok(()),
        }
    }

    fn poll(&self, ended: &mut Vec<Completion>) -> io::Result<()> {
        let mut wire = self.wire.lock();
        for _ in 0..BURST {
            if wire.broken.is_some() {
                break;
            }
            if wire.cards[1 - self.side].destroyed {
                break;
            }
            let Some((id, request)) = wire.cards[self.side].requests.pop_front() else { break };
            if let Err(why) = self.step(&mut wire, id, request) {
                tracing::warn!(why, "a connection of the fabric ends");
                wire.fail(&why);
            }
        }
        let other_gone = wire.cards[1 - self.side].destroyed;
        ended.extend(wire.cards[self.side].ended.drain(..));
        match (&wire.broken, other_gone && ended.is_empty()) {
            (Some(why), _) => Err(io::Error::other(why.clone())),
            (None, true) => Err(io::ErrorKind::ConnectionReset.into()),
            (None, false) => Ok(()),
        }
    }

    fn arm(&self) -> io::Result<()> {
        Ok(())
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut wire = self.wire.lock();
        let over = wire.broken.is_some() || wire.cards[1 - self.side].destroyed;
        let card = &mut wire.cards[self.side];
        if over || !card.ended.is_empty() || !card.requests.is_empty() {
            return Poll::Ready(Ok(()));
        }
        card.waits = Some(cx.waker().clone());
        Poll::Pending
    }

    fn reads(&self) -> usize {
        READS
    }

    fn disconnect(&self) {}

    fn destroy(&self) {
        let mut wire = self.wire.lock();
        wire.cards[self.side].destroyed = true;
        wire.cards.iter_mut().for_each(Card::wake);
    }
}
