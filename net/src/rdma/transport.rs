//! The network that a process sees: RDMA where both sides and the fabric between them can, streams
//! elsewhere.

use super::card::usable;
use super::id::may_use_cards;
use super::offer::{self, Offers, Unserved};
use super::options::RdmaOptions;
use crate::address::Address;
use crate::metrics::rdma::{FALLBACK_SERVERS, FALLBACKS};
use crate::stream::BoxStream;
use crate::sync::{Mutex, MutexGuard};
use crate::transport::{Fallback, Link, Listener, Opening, Speaks, Transport};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::time::{Instant, timeout};

/// How long it takes to be connected over RDMA, once there is a stream: while somebody waits, and
/// while nobody does, when a lost packet of the connection manager may be sent again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const PATIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// A server that could not be reached over RDMA is tried again after this long, and after twice as
/// long each time.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// While there is a connection to a server by streams, the better way is tried more often than
/// this. A failure that is older is of a server that is not used: it is forgotten.
const FAILURE_LIFETIME: Duration = Duration::from_secs(660);

/// RDMA where it can be had, and `streams`, which must not be encrypted, elsewhere and for gRPC.
/// Error: `Unsupported`, this machine has no RDMA; and what is missing.
pub fn rdma(streams: Arc<dyn Transport>, options: RdmaOptions) -> io::Result<Arc<dyn Transport>> {
    if !may_use_cards() {
        tracing::info!("{FORKED}: it goes over TCP");
        return Ok(Arc::new(Rdma::new(streams, options, Some(FORKED.into()))));
    }
    usable()?;
    Ok(Arc::new(Rdma::new(streams, options, None)))
}

/// As [`rdma()`], for a daemon, which must serve although this machine has no RDMA: then it does so
/// by `streams`, and whoever asks for RDMA is told why there is none.
pub fn rdma_if_there(streams: Arc<dyn Transport>, options: RdmaOptions) -> Arc<dyn Transport> {
    match rdma(streams.clone(), options.clone()) {
        Ok(transport) => transport,
        Err(error) => {
            tracing::error!("no RDMA, goes over TCP until it is started anew: {error}");
            Arc::new(Rdma::new(streams, options, Some(error.to_string())))
        }
    }
}

/// Cards know the memory of who was forked, and not of this process.
const FORKED: &str = "this process was forked by one that uses RDMA";

struct Rdma {
    streams: Arc<dyn Transport>,
    options: RdmaOptions,
    /// Why this process has no cards, if it has none.
    missing: Option<String>,
    /// Servers that could not be reached over RDMA, and why: they are reached by streams at once,
    /// until they could be again.
    failed: Mutex<HashMap<Address, Failure>>,
    /// What keeps others from reaching this process over RDMA; of the port bound last.
    unserved: Mutex<Arc<Unserved>>,
}

/// A server could not be reached over RDMA.
struct Failure {
    why: String,
    /// When that was tried last.
    at: Instant,
}

impl Rdma {
    fn new(streams: Arc<dyn Transport>, options: RdmaOptions, missing: Option<String>) -> Self {
        let (failed, unserved) = (Mutex::default(), Mutex::default());
        Self { streams, options, missing, failed, unserved }
    }

    /// Why this process goes by streams, if it does.
    fn missing(&self) -> Option<&str> {
        let forked = (!may_use_cards()).then_some(FORKED);
        self.missing.as_deref().or(forked)
    }

    async fn try_connect(
        &self,
        address: &Address,
        stream: BoxStream,
        limit: Duration,
    ) -> io::Result<Link> {
        let found = lookup_host((address.host(), address.port())).await?;
        let hosts = found.map(|at| at.ip()).collect();
        match timeout(limit, offer::connect(stream, hosts, &self.options, limit)).await {
            Ok(connected) => connected,
            Err(_) => Err(io::Error::other(format!("not connected in {limit:?}"))),
        }
    }

    /// How long is waited for a connection over RDMA.
    fn limit(&self) -> Duration {
        if self.options.required { PATIENT_TIMEOUT } else { CONNECT_TIMEOUT }
    }

    async fn connect_stream(&self, address: &Address) -> io::Result<Link> {
        let link = self.streams.connect(address).await?;
        let retry_after = self.missing().is_none().then_some(RETRY_INTERVAL);
        Ok(Link { retry_after, ..link })
    }

    fn fails(&self, address: &Address, why: String) {
        FALLBACKS.inc();
        let failure = Failure { why: why.clone(), at: Instant::now() };
        let mut failed = self.failed.lock();
        let before = failed.insert(address.clone(), failure);
        FALLBACK_SERVERS.add(i64::from(before.is_none()));
        drop(failed);
        if before.is_none_or(|before| before.why != why) {
            tracing::warn!(%address, why, "not over RDMA, but TCP");
        }
    }

    /// Tried once more, with this outcome, while it is reached by streams.
    fn fails_still(&self, address: &Address, why: String) {
        if let Some(failure) = self.failed.lock().get_mut(address) {
            *failure = Failure { why, at: Instant::now() };
        }
    }

    /// Servers that are reached by streams now because they could not be over RDMA.
    fn failed(&self) -> MutexGuard<'_, HashMap<Address, Failure>> {
        let (mut failed, now) = (self.failed.lock(), Instant::now());
        let before = failed.len();
        failed.retain(|_, failure| now.duration_since(failure.at) < FAILURE_LIFETIME);
        let gone = before - failed.len();
        // Not touched for nothing: a forked process may find its locks held by who is not there.
        if gone > 0 {
            FALLBACK_SERVERS.sub(gone as i64);
        }
        failed
    }
}

impl Drop for Rdma {
    fn drop(&mut self) {
        let failed = std::mem::take(self.failed.get_mut());
        if !failed.is_empty() {
            FALLBACK_SERVERS.sub(failed.len() as i64);
        }
    }
}

#[async_trait::async_trait]
impl Transport for Rdma {
    async fn connect(&self, address: &Address) -> io::Result<Link> {
        if self.missing().is_some() || self.failed().contains_key(address) {
            return self.connect_stream(address).await;
        }
        // Who cannot be reached at all has not failed over RDMA.
        let stream = self.streams.stream(address).await?;
        match self.try_connect(address, stream, self.limit()).await {
            Err(error) if !self.options.required => {
                self.fails(address, error.to_string());
                self.connect_stream(address).await
            }
            connected => connected,
        }
    }

    async fn connect_best(&self, address: &Address) -> io::Result<Link> {
        if self.missing().is_some() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let stream = self.streams.stream(address).await?;
        let connected = self.try_connect(address, stream, PATIENT_TIMEOUT).await;
        connected.inspect_err(|error| self.fails_still(address, error.to_string()))
    }

    fn tried(&self, address: &Address, carried: Result<(), String>) {
        // What goes by streams from the first says nothing of RDMA.
        if self.missing().is_some() {
            return;
        }
        match carried {
            Err(why) if !self.options.required => self.fails(address, why),
            Err(_) => {}
            Ok(()) => {
                if self.failed.lock().remove(address).is_some() {
                    FALLBACK_SERVERS.dec();
                    tracing::info!(%address, "reached over RDMA again");
                }
            }
        }
    }

    fn fallbacks(&self) -> Vec<Fallback> {
        let unserved = self.unserved.lock().why();
        let own = self.missing().map(str::to_owned).or(unserved);
        let own = own.map(|why| Fallback { server: None, why });
        let failed = self.failed();
        let of = |(server, failure): (&Address, &Failure)| Fallback {
            server: Some(server.clone()),
            why: failure.why.clone(),
        };
        let mut failed: Vec<_> = failed.iter().map(of).collect();
        // The first are told: always the same ones.
        failed.sort_by_cached_key(|fallback| fallback.server.as_ref().map(Address::to_string));
        own.into_iter().chain(failed).collect()
    }

    fn connect_timeout(&self) -> Duration {
        // A host that does not answer a stream is not asked for RDMA.
        self.streams.connect_timeout() * 2 + self.limit()
    }

    async fn stream(&self, address: &Address) -> io::Result<BoxStream> {
        self.streams.stream(address).await
    }

    async fn bind(&self, address: &Address) -> io::Result<Box<dyn Listener>> {
        let streams = self.streams.bind(address).await?;
        let bound = streams.local_address()?;
        let at = match lookup_host((bound.host(), bound.port())).await?.next() {
            Some(at) => at.ip(),
            None => return Err(io::ErrorKind::AddrNotAvailable.into()),
        };
        // Each device that has one of the addresses takes connections.
        let (at, hosts) = match &*self.options.addresses {
            [] => (at, Vec::new()),
            [only] => (*only, vec![only.to_string()]),
            several => (any(several[0]), several.iter().map(IpAddr::to_string).collect()),
        };
        let offers = match self.missing() {
            Some(why) => Err(why.to_owned()),
            None => Offers::bind(at, hosts, self.options.busy_poll()).map_err(|e| {
                tracing::warn!(%address, at = %at, error = %e, "serving TCP, but not RDMA");
                e.to_string()
            }),
        };
        *self.unserved.lock() = match &offers {
            Ok(offers) => offers.unserved.clone(),
            Err(why) => Unserved::for_good(why.clone()),
        };
        Ok(Box::new(Port { streams, offers }))
    }
}

/// All addresses of this family.
fn any(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => SocketAddr::from(([0; 4], 0)).ip(),
        IpAddr::V6(_) => SocketAddr::from(([0u16; 8], 0)).ip(),
    }
}

struct Port {
    streams: Box<dyn Listener>,
    /// Error: why there are none.
    offers: Result<Arc<Offers>, String>,
}

#[async_trait::async_trait]
impl Listener for Port {
    async fn accept(&mut self) -> io::Result<(Box<dyn Opening>, Address)> {
        let (stream, address) = self.streams.accept().await?;
        Ok((Box::new(Accepted { stream, offers: self.offers.clone() }), address))
    }

    fn local_address(&self) -> io::Result<Address> {
        self.streams.local_address()
    }
}

struct Accepted {
    stream: Box<dyn Opening>,
    offers: Result<Arc<Offers>, String>,
}

#[async_trait::async_trait]
impl Opening for Accepted {
    async fn speaks(self: Box<Self>) -> io::Result<Speaks> {
        match (self.stream.speaks().await?, self.offers) {
            (Speaks::Rdma(stream), Ok(offers)) => Ok(Speaks::Frames(offers.make(stream).await?)),
            (Speaks::Rdma(stream), Err(why)) => {
                offer::refuse(stream, &why).await?;
                Err(io::Error::other(why))
            }
            (other, _) => Ok(other),
        }
    }
}
