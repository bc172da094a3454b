//! A network in memory with cards that are as strict as real ones: memory that they were not told
//! of, a message that there is no memory for, more requests than a queue holds, all of that ends a
//! connection. What crosses it is what crosses a real one ([`crate::rdma`]).
//!
//! For tests and simulation: no clock, no randomness, no threads. Connections are between hosts of
//! one [`Fabric`], in one process.
//!
//! Invariant: memory is read and written only under the lock of the connection while it is not
//! over, which is what severing it relies on.

mod card;
mod memory;

use crate::address::Address;
use crate::rdma::{Domain, Side, connected};
use crate::stream::BoxStream;
use crate::sync::Mutex;
use crate::transport::{Link, Listener, Opening, Speaks, Transport};
use card::End;
use memory::{Devices, Memory};
use std::collections::HashMap;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;

/// What the network is called in addresses.
const NETWORK: &str = "fabric";
/// Bytes that wait in a stream of gRPC.
const STREAM: usize = 64 << 10;

/// Hosts that reach each other.
#[derive(Default)]
pub struct Fabric {
    ports: Mutex<Ports>,
    busy_poll: Duration,
    /// How often a card was asked to tell of completions.
    armed: Arc<AtomicU64>,
    devices: Devices,
}

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

    /// One whose connections look for completions so long before they wait to be woken.
    pub fn with_busy_poll(busy_poll: Duration) -> Arc<Self> {
        Arc::new(Self { busy_poll, ..Self::default() })
    }

    /// One whose cards reach no memory of devices.
    pub fn without_devices() -> Arc<Self> {
        let devices = Devices { refused: true, ..Devices::default() };
        Arc::new(Self { devices, ..Self::default() })
    }

    /// How many runs of devices' memory its cards know.
    pub fn devices(&self) -> u64 {
        self.devices.known.load(Ordering::SeqCst)
    }

    /// How often cards came for memory that was not, or no longer, known to the card it is of.
    pub fn strays(&self) -> u64 {
        self.devices.strays.load(Ordering::SeqCst)
    }

    /// How often a connection waited to be woken.
    pub fn waits(&self) -> u64 {
        self.armed.load(Ordering::Relaxed)
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
        let mut ports = self.fabric.ports.lock();
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
        let memory = [0, 1].map(|_| Memory::new(&self.fabric.devices));
        let [caller, server] = End::pair(&memory, &self.fabric.armed);
        let [ours, theirs] = memory;
        let link = |end: End, memory: Memory, side: Side| -> io::Result<Link> {
            let domain = Domain::new(Box::new(memory))?;
            connected(Box::new(end), domain, side, Box::pin(pending()), self.fabric.busy_poll)
        };
        self.knock(address, Speaks::Frames(link(server, theirs, Side::Server)?))?;
        link(caller, ours, Side::Caller)
    }

    async fn stream(&self, address: &Address) -> io::Result<BoxStream> {
        let (ours, theirs) = tokio::io::duplex(STREAM);
        self.knock(address, Speaks::Http2(Box::new(theirs)))?;
        Ok(Box::new(ours))
    }

    async fn bind(&self, address: &Address) -> io::Result<Box<dyn Listener>> {
        let (host, mut port) = place(address)?;
        let mut ports = self.fabric.ports.lock();
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
        self.fabric.ports.lock().listening.remove(&self.key);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, Head, Header, Kind};
    use crate::transport::User;
    use bytes::Bytes;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Waker};

    #[derive(Default)]
    struct Left {
        frames: AtomicUsize,
        cost: AtomicUsize,
    }

    impl User for Left {
        fn crowded(&self) -> bool {
            false
        }

        fn left(&self, frames: usize, cost: usize) {
            self.frames.fetch_add(frames, Ordering::Relaxed);
            self.cost.fetch_add(cost, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn what_never_leaves_is_told_when_its_pump_is_dropped() {
        const LEN: usize = 1 << 20;
        let (host, left) = (Fabric::new().host("a"), Left::default());
        let mut port = host.bind(&"a:1".parse().unwrap()).await.unwrap();
        // Nobody takes what comes here.
        let _caller = host.connect(&"a:1".parse().unwrap()).await.unwrap();
        let (opening, _) = port.accept().await.unwrap();
        let Ok(Speaks::Frames(link)) = opening.speaks().await else { panic!("it speaks frames") };
        let head = Head::Bytes(Bytes::new());
        let payload = vec![Bytes::from(vec![7; LEN])];
        let answer = Frame::new(Header::new(Kind::Answer, 100, 1), head, payload);
        assert!(link.sender.send(answer, Some(LEN)));
        {
            let mut pumping = link.pump.run(&left);
            let mut cx = Context::from_waker(Waker::noop());
            assert!(
                pumping.as_mut().poll(&mut cx).is_pending(),
                "it is more than they have room for"
            );
            assert_eq!(left.frames.load(Ordering::Relaxed), 0);
        }
        let all = (left.frames.load(Ordering::Relaxed), left.cost.load(Ordering::Relaxed));
        assert_eq!(all, (1, LEN));
    }
}
