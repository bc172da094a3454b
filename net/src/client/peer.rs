//! The addresses that this process calls, and one connection to each for every [`Way`].
//!
//! Invariant: at most one attempt to connect per peer runs at a time, and it belongs to no caller:
//! dropping a call does not spoil it for the others.

use super::calls::Raw;
use super::connection::{Connection, decode};
use super::{Answer, Body};
use crate::address::Address;
use crate::buffer::Buffer;
use crate::hello::{Features, Identity};
use crate::metrics::ASKED;
use crate::sync::Mutex;
use crate::trace::{self, Context, Side, Span};
use crate::transport::{self, Transport};
use crate::way::Way;
use bytes::Bytes;
use prost::Message;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use weft_proto::{Call, Error, ErrorKind, Result, Uuid};

/// The hello needs the peer's process to run, which may be busy.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// A connection that carried nothing at so many looks is closed, long before the peer does so: a
/// request never meets a peer that just closes.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
const IDLE: u32 = 5;
/// Longest pause between attempts to connect by a better way.
const SEEK_MAX: Duration = Duration::from_secs(300);
/// Nobody waits for an attempt to connect by a better way.
const BEST_TIMEOUT: Duration = Duration::from_secs(15);
/// How often it is looked whether a connection that was replaced has nothing more to do.
const RETIRE_INTERVAL: Duration = Duration::from_millis(100);

/// All peers of a process, by address.
pub struct Peers {
    network: Arc<Network>,
    peers: Mutex<HashMap<String, HashMap<Way, Arc<Peer>>>>,
}

struct Network {
    transport: Arc<dyn Transport>,
    identity: Mutex<Identity>,
}

impl Peers {
    /// No peer yet. `identity` is how this process presents itself to all of them.
    pub fn new(transport: Arc<dyn Transport>, identity: Identity) -> Arc<Self> {
        let network = Arc::new(Network { transport, identity: Mutex::new(identity) });
        Arc::new(Self { network, peers: Mutex::default() })
    }

    /// From now on connections are made only to this cluster.
    pub fn set_cluster(&self, cluster: Uuid) {
        self.network.identity.lock().cluster = Some(cluster);
    }

    /// The peer at `address` ([`Address`]); nothing is connected yet. What is no address cannot be
    /// reached.
    pub fn peer(&self, address: &str) -> Arc<Peer> {
        self.peer_on(address, Way::Common)
    }

    /// As [`Self::peer`], over a connection that only what goes this way shares.
    pub fn peer_on(&self, address: &str, way: Way) -> Arc<Peer> {
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.get(address).and_then(|ways| ways.get(&way)) {
            return peer.clone();
        }
        let peer = Arc::new(Peer {
            name: address.into(),
            address: address.parse::<Address>().map_err(|e| e.to_string()),
            way,
            network: self.network.clone(),
            link: Arc::default(),
        });
        peers.entry(address.into()).or_default().insert(way, peer.clone());
        peer
    }
}

/// One process that answers requests. Connects when called, and again after a loss.
pub struct Peer {
    /// The address as it was given.
    name: String,
    /// Error: what is wrong with it.
    address: Result<Address, String>,
    way: Way,
    network: Arc<Network>,
    link: Arc<Mutex<Link>>,
}

#[derive(Default)]
struct Link {
    connection: Option<Arc<Connection>>,
    attempt: Option<watch::Receiver<Outcome>>,
    failures: u32,
    /// No attempt connects before this.
    not_before: Option<Instant>,
}

/// Of an attempt; `None` while it runs.
type Outcome = Option<Result<Arc<Connection>>>;

impl Peer {
    /// The address, as it was given.
    pub fn address(&self) -> &str {
        &self.name
    }

    /// What both sides can do, as far as is known: of the connection there is now.
    pub fn features(&self) -> Features {
        self.live().map_or_else(Features::default, |connection| connection.features())
    }

    /// Returns when there is no connection any more; at once if there is none.
    pub async fn lost(&self) {
        // One that was replaced by a better one was not lost.
        while let Some(ended) = self.live().map(|connection| connection.ended())
            && ended.await
        {}
    }

    /// A request without payload. Errors: the peer's own error as it sent it; `Unavailable` if the
    /// peer cannot be reached or the connection is lost before the answer (the request may have
    /// taken effect); `TimedOut` at the deadline; `Protocol` and `WrongCluster` from the hello.
    pub async fn call<C: Call>(&self, request: &C, deadline: Instant) -> Result<C::Answer> {
        self.call_op(C::OP, request, deadline).await
    }

    /// As [`Self::call`]. The outer error: nothing was sent, since the peer could not be reached,
    /// or there is another in its place.
    pub async fn call_if_reached<C: Call>(
        &self,
        request: &C,
        deadline: Instant,
    ) -> Result<Result<C::Answer>> {
        let asked = self.send(C::OP, request, Body::default(), deadline).await?;
        Ok(asked.and_then(|raw| decode(raw.head, &self.name)))
    }

    /// Sends a request without payload that wants no answer: whether it came, nobody learns. False
    /// if there is no connection now; a call makes one. Those of one caller are begun by the peer
    /// in order if it serves on one thread, else nearly so.
    pub fn tell<C: Call>(&self, request: &C) -> bool {
        self.tell_op(C::OP, request)
    }

    /// A request with payload either way. Errors as of [`Peer::call`], and `Protocol` if the
    /// payload of the answer is not as long as `body.into`.
    pub async fn exchange<C: Call>(
        &self,
        request: &C,
        body: Body,
        deadline: Instant,
    ) -> Result<Answer<C::Answer>> {
        self.exchange_op(C::OP, request, body, deadline).await
    }

    /// As [`Self::call`], of an operation by its code: for who knows no more of the messages than
    /// their bytes.
    pub async fn call_op<Q: Message, A: Message + Default>(
        &self,
        op: u16,
        head: &Q,
        deadline: Instant,
    ) -> Result<A> {
        let raw = self.send(op, head, Body::default(), deadline).await??;
        decode(raw.head, &self.name)
    }

    /// As [`Self::tell`], of an operation by its code.
    pub fn tell_op<Q: Message>(&self, op: u16, head: &Q) -> bool {
        self.live().is_some_and(|connection| connection.tell(op, head))
    }

    /// As [`Self::exchange`], of an operation by its code.
    pub async fn exchange_op<Q: Message, A: Message + Default>(
        &self,
        op: u16,
        head: &Q,
        body: Body,
        deadline: Instant,
    ) -> Result<Answer<A>> {
        let raw = self.send(op, head, body, deadline).await??;
        Ok(Answer { head: decode(raw.head, &self.name)?, payload: raw.payload })
    }

    /// The outer error: nothing was sent.
    async fn send<Q: Message>(
        &self,
        op: u16,
        head: &Q,
        body: Body,
        deadline: Instant,
    ) -> Result<Result<Raw>> {
        let Some(operation) = ASKED.of(op) else {
            return self.ask(op, head, body, deadline, trace::current()).await;
        };
        let running = operation.begin();
        let sent = body.send.iter().map(Bytes::len).sum();
        running.sent(sent);
        let mut span = Span::of(Side::Client, operation.name);
        // Also a process that collects nothing passes on where it belongs.
        let place = span.context().or_else(trace::current);
        let asked = self.ask(op, head, body, deadline, place).await;
        let answer = match &asked {
            Ok(answer) => answer.as_ref().map_err(Error::clone),
            Err(error) => Err(error.clone()),
        };
        let received = answer.as_ref().map_or(0, |a| a.payload.iter().map(Buffer::len).sum());
        running.received(received);
        running.end(&answer);
        if span.is_traced() {
            span.note("server.address", self.name.as_str());
            span.note("weft.sent_bytes", sent as u64);
            span.note("weft.received_bytes", received as u64);
        }
        span.end(&answer);
        asked
    }

    async fn ask<Q: Message>(
        &self,
        op: u16,
        head: &Q,
        body: Body,
        deadline: Instant,
        place: Option<Context>,
    ) -> Result<Result<Raw>> {
        let connection = match self.live() {
            Some(connection) => connection,
            // Boxed: what is rare would make the future of every call as large.
            None => Box::pin(self.connect(deadline)).await?,
        };
        connection.check_server(op)?;
        Ok(connection.call(op, head, body, deadline, place).await)
    }

    fn live(&self) -> Option<Arc<Connection>> {
        self.link.lock().connection.as_ref().filter(|c| c.is_alive()).cloned()
    }

    /// Waits for a connection: for an attempt that runs already, and if it fails for one that
    /// starts after this call, but not for more.
    async fn connect(&self, deadline: Instant) -> Result<Arc<Connection>> {
        let mut last = false;
        loop {
            let (mut attempt, begun) = {
                let mut link = self.link.lock();
                if let Some(live) = link.connection.as_ref().filter(|c| c.is_alive()) {
                    return Ok(live.clone());
                }
                match &link.attempt {
                    Some(attempt) => (attempt.clone(), None),
                    None => {
                        last = true;
                        let (attempt, begun) = self.start_attempt(&mut link);
                        (attempt, Some(begun))
                    }
                }
            };
            // Not under the lock, which it takes when it is dropped: a runtime that is going away
            // drops it here.
            begun.map(tokio::spawn);
            let outcome = match timeout_at(deadline, attempt.wait_for(Option::is_some)).await {
                Ok(Ok(outcome)) => outcome.clone().expect("waited for it"),
                // The runtime that ran the attempt is going away.
                Ok(Err(_)) => Err(self.unavailable("the attempt to connect was abandoned")),
                Err(_) => {
                    return Err(Error::new(
                        ErrorKind::TimedOut,
                        format!("{}: not connected in time", self.name),
                    ));
                }
            };
            match outcome {
                Ok(connection) => return Ok(connection),
                Err(error) if last => return Err(error),
                // Whatever attempt comes next starts after this call.
                Err(_) => last = true,
            }
        }
    }

    /// An attempt, and the task that makes it.
    fn start_attempt(
        &self,
        link: &mut Link,
    ) -> (watch::Receiver<Outcome>, impl Future<Output = ()> + Send + use<>) {
        let (done, attempt) = watch::channel(None);
        link.connection = None;
        link.attempt = Some(attempt.clone());
        let not_before = link.not_before;
        let (address, network, link) =
            (self.address.clone(), self.network.clone(), self.link.clone());
        let (way, home) = (self.way, Arc::downgrade(&self.link));
        let running = Running { link, finished: false };
        let task = async move {
            if let Some(at) = not_before {
                sleep_until(at).await;
            }
            let outcome = match &address {
                Ok(address) => network.connect(address, way).await.map(Arc::new),
                Err(wrong) => Err(Error::new(ErrorKind::Unavailable, wrong.as_str())),
            };
            running.finish(&outcome);
            let connection = outcome.as_ref().ok().map(Arc::downgrade);
            let retry = outcome.as_ref().ok().and_then(|made| made.retry_after());
            done.send_replace(Some(outcome));
            drop(done);
            let (Some(connection), Ok(address)) = (connection, &address) else { return };
            let better = async {
                match retry {
                    Some(after) => seek(&network, address, way, after).await,
                    None => std::future::pending().await,
                }
            };
            let better = tokio::select! {
                () = close_idle(&home, &connection) => return,
                better = better => better,
            };
            let Some(connection) = replace(&home, &connection, better) else { return };
            close_idle(&home, &connection).await;
        };
        (attempt, task)
    }

    fn unavailable(&self, why: &str) -> Error {
        Error::new(ErrorKind::Unavailable, format!("{}: {why}", self.name))
    }
}

/// Tries to connect by a better way until that succeeds, less and less often.
async fn seek(network: &Network, address: &Address, way: Way, first: Duration) -> Connection {
    let mut after = first;
    loop {
        sleep(after).await;
        match network.connect_best(address, way).await {
            Ok(better) => return better,
            Err(_) => after = (after * 2).min(SEEK_MAX),
        }
    }
}

/// Puts a better connection in the place of one; calls that are under way, and what was told, end
/// where they began. `None`: it is not in use any more.
fn replace(
    link: &Weak<Mutex<Link>>,
    old: &Weak<Connection>,
    better: Connection,
) -> Option<Weak<Connection>> {
    let link = link.upgrade()?;
    let better = Arc::new(better);
    let mut link = link.lock();
    let kept = link.connection.as_mut().filter(|kept| Arc::as_ptr(kept) == old.as_ptr())?;
    let before = std::mem::replace(kept, better.clone());
    drop(link);
    before.retire();
    tokio::spawn(async move {
        while before.is_alive() && before.moved().is_none() {
            sleep(RETIRE_INTERVAL).await;
        }
    });
    Some(Arc::downgrade(&better))
}

/// Returns when the connection has ended, or has been idle for long and is let go. Who has it in
/// hand just then uses it first.
async fn close_idle(link: &Weak<Mutex<Link>>, connection: &Weak<Connection>) {
    let (mut before, mut idle) = (None, 0);
    loop {
        sleep(LOOK_INTERVAL).await;
        let Some(connection) = connection.upgrade().filter(|c| c.is_alive()) else { return };
        let now = connection.moved();
        idle = if now.is_some() && now == before { idle + 1 } else { 0 };
        before = now;
        if idle < IDLE {
            continue;
        }
        let Some(link) = link.upgrade() else { return };
        let mut link = link.lock();
        if connection.moved() == now
            && link.connection.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, &connection))
        {
            link.connection = None;
            return;
        }
    }
}

/// An attempt that runs. If its task is dropped halfway (its runtime ended), another can start.
struct Running {
    link: Arc<Mutex<Link>>,
    finished: bool,
}

impl Running {
    fn finish(mut self, outcome: &Result<Arc<Connection>>) {
        self.finished = true;
        let mut link = self.link.lock();
        link.attempt = None;
        match outcome {
            Ok(connection) => {
                link.failures = 0;
                link.not_before = None;
                link.connection = Some(connection.clone());
            }
            Err(error) => {
                if link.failures == 0 {
                    tracing::debug!(%error, "cannot connect");
                }
                let wait = BACKOFF_MIN.saturating_mul(1 << link.failures.min(10)).min(BACKOFF_MAX);
                link.failures += 1;
                link.not_before = Some(Instant::now() + wait);
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.finished {
            self.link.lock().attempt = None;
        }
    }
}

impl Network {
    async fn connect(&self, address: &Address, way: Way) -> Result<Connection> {
        let limit = self.transport.connect_timeout();
        self.start(address, way, self.transport.connect(address), limit).await
    }

    async fn connect_best(&self, address: &Address, way: Way) -> Result<Connection> {
        self.start(address, way, self.transport.connect_best(address), BEST_TIMEOUT).await
    }

    async fn start(
        &self,
        address: &Address,
        way: Way,
        connected: impl Future<Output = io::Result<transport::Link>> + Send,
        limit: Duration,
    ) -> Result<Connection> {
        let unavailable = |why: String| {
            Error::new(ErrorKind::Unavailable, format!("{address}: cannot connect: {why}"))
        };
        let link = match timeout(limit, connected).await {
            Ok(Ok(link)) => link,
            Ok(Err(e)) => return Err(unavailable(e.to_string())),
            Err(_) => return Err(unavailable(format!("no answer in {limit:?}"))),
        };
        let is_best = link.retry_after.is_none();
        let identity = self.identity.lock().clone();
        let deadline = Instant::now() + HELLO_TIMEOUT;
        let started =
            match Connection::start(link, &address.to_string(), &identity, way, deadline).await {
                Err(e) if e.kind == ErrorKind::TimedOut => {
                    Err(unavailable(format!("no hello in {HELLO_TIMEOUT:?}")))
                }
                started => started,
            };
        if is_best {
            let carried = started.as_ref().map(drop).map_err(Error::to_string);
            self.transport.tried(address, carried);
        }
        started
    }
}
