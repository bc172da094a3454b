//! How a caller finds out how a server is reached over RDMA: it asks on a stream, and is told a
//! port and a token. Who comes to that port with the token is who asked on the stream, which stays
//! open as long as the connection is: when either process is gone its kernel says so there.

use super::connection::{Connection, Side};
use super::manager::{self, Events, Made, Port, Request, aside};
use super::options::RdmaOptions;
use crate::stream::BoxStream;
use crate::sync::Mutex;
use crate::transport::Link;
use prost::Message;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use weft_proto::{Uuid, v1};

/// What a stream begins with that asks for an offer.
pub(crate) const MAGIC: [u8; 4] = *b"WRDM";
/// Longest offer, in bytes.
const MAX_OFFER: usize = 4 << 10;
/// Most addresses of a host that are tried.
const MAX_HOSTS: usize = 4;
/// Who comes before it is known who that is, and says nothing that was offered, is turned away.
type Expected = Arc<Mutex<HashMap<[u8; 16], oneshot::Sender<Request>>>>;

fn garbage(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

async fn tell(stream: &mut BoxStream, offer: &v1::RdmaOffer) -> io::Result<()> {
    let offer = offer.encode_to_vec();
    let mut message = (offer.len() as u16).to_le_bytes().to_vec();
    message.extend(offer);
    stream.write_all(&message).await?;
    stream.flush().await
}

/// Says on a stream that asked for an offer that there is none.
pub(crate) async fn refuse(mut stream: BoxStream, why: &str) -> io::Result<()> {
    tell(&mut stream, &v1::RdmaOffer { refusal: why.into(), ..v1::RdmaOffer::default() }).await
}

/// Asks on a stream. Error: there is no offer, and why.
async fn ask(stream: &mut BoxStream) -> io::Result<v1::RdmaOffer> {
    stream.write_all(&MAGIC).await?;
    stream.flush().await?;
    let mut len = [0; 2];
    stream.read_exact(&mut len).await.map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::other("the server knows nothing of RDMA"),
        _ => e,
    })?;
    let mut offer = vec![0; usize::from(u16::from_le_bytes(len))];
    if offer.len() > MAX_OFFER {
        return Err(garbage(format!("an offer of {} bytes", offer.len())));
    }
    stream.read_exact(&mut offer).await?;
    let offer = v1::RdmaOffer::decode(&*offer).map_err(|e| garbage(e.to_string()))?;
    if !offer.refusal.is_empty() {
        let refusal: String = offer.refusal.chars().filter(|c| !c.is_control()).take(256).collect();
        return Err(io::Error::other(refusal));
    }
    Ok(offer)
}

/// Connects over RDMA to the server at the other end of a stream, whose host has these addresses.
/// Each is tried for its part of the `limit`; the caller bounds the time in all.
pub(super) async fn connect(
    mut stream: BoxStream,
    hosts: Vec<IpAddr>,
    options: &RdmaOptions,
    limit: Duration,
) -> io::Result<Link> {
    let (class, busy_poll) = (options.traffic_class, options.busy_poll());
    let offer = ask(&mut stream).await?;
    let wrong = |what: &str| garbage(format!("an offer with a wrong {what}"));
    let token = Uuid::from_slice(&offer.token).ok_or_else(|| wrong("token"))?;
    let port = u16::try_from(offer.port).map_err(|_| wrong("port"))?;
    let offered = offer.hosts.iter().filter_map(|host| host.parse().ok());
    let hosts: Vec<IpAddr> = if offer.hosts.is_empty() { hosts } else { offered.collect() };
    let mut last = wrong("host");
    let limit = limit / hosts.len().clamp(1, MAX_HOSTS) as u32;
    for host in hosts.into_iter().take(MAX_HOSTS) {
        let attempt = async {
            let made = manager::reach(SocketAddr::new(host, port), token, class).await?;
            connected(made, Side::Caller).await
        };
        match timeout(limit, attempt).await {
            Ok(Ok((connection, events))) => {
                return Ok(linked(connection, events, stream, busy_poll));
            }
            Ok(Err(error)) => last = error,
            Err(_) => last = io::Error::other(format!("{host}: not connected in {limit:?}")),
        }
    }
    Err(last)
}

/// Connects what was made.
async fn connected(made: Made, side: Side) -> io::Result<(Arc<Connection>, Events)> {
    let Made { queue_pair, domain, events, connecting } = made;
    let connection = aside(move || Connection::new(queue_pair, domain, side)).await?;
    connecting.connect(&events).await?;
    Ok((connection, events))
}

/// The connection, as long as its stream is there.
fn linked(
    connection: Arc<Connection>,
    events: Events,
    mut stream: BoxStream,
    busy_poll: Duration,
) -> Link {
    let subject = stream.subject().cloned();
    let watch = Box::pin(async move {
        let mut nothing = [0; 1];
        tokio::select! {
            why = events.over() => why,
            said = stream.read(&mut nothing) => match said {
                Ok(0) => "the other side has gone".into(),
                Ok(_) => "the other side speaks on a stream that has ended".into(),
                Err(error) => format!("the other side has gone: {error}"),
            },
        }
    });
    super::link::link(connection, watch, subject, busy_poll)
}

/// What a server offers.
pub(super) struct Offers {
    port: u16,
    hosts: Vec<String>,
    expected: Expected,
    busy_poll: Duration,
    pub unserved: Arc<Unserved>,
    task: AbortHandle,
}

/// What keeps a port from serving.
#[derive(Default)]
pub(super) struct Unserved {
    /// Why it is gone.
    over: OnceLock<String>,
    /// Why the last queue pair for somebody who came could not be made, if it could not.
    trouble: Mutex<Option<String>>,
}

impl Unserved {
    /// Of a port that could not be had.
    pub fn for_good(why: String) -> Arc<Self> {
        Arc::new(Self { over: OnceLock::from(why), trouble: Mutex::default() })
    }

    pub fn why(&self) -> Option<String> {
        self.over.get().cloned().or_else(|| self.trouble.lock().clone())
    }

    /// A queue pair was made, or could not be for want of something here.
    fn made(&self, trouble: Option<String>) {
        let mut last = self.trouble.lock();
        if let Some(trouble) = &trouble
            && last.as_ref() != Some(trouble)
        {
            tracing::warn!("cannot serve over RDMA: {trouble}");
        }
        *last = trouble;
    }
}

impl Offers {
    /// Listens at this address. `hosts`: where it is reached, if not where the stream is.
    pub fn bind(at: IpAddr, hosts: Vec<String>, busy_poll: Duration) -> io::Result<Arc<Self>> {
        let port = Port::bind(SocketAddr::new(at, 0))?;
        let (number, expected) = (port.number(), Expected::default());
        let unserved = Arc::<Unserved>::default();
        let serving = hand_out(port, expected.clone(), unserved.clone());
        let task = tokio::spawn(serving).abort_handle();
        Ok(Arc::new(Self { port: number, hosts, expected, busy_poll, unserved, task }))
    }

    /// Makes an offer on a stream that has asked for one, and waits for who takes it up. The caller
    /// bounds the time.
    pub async fn make(self: Arc<Self>, mut stream: BoxStream) -> io::Result<Link> {
        let over = self.unserved.over.get().cloned();
        if let Some(why) = over {
            refuse(stream, &why).await?;
            return Err(io::Error::other(why));
        }
        let token = rand::random::<[u8; 16]>();
        let (to, request) = oneshot::channel();
        self.expected.lock().insert(token, to);
        let _offered = Offered { offers: &self, token };
        let hosts = self.hosts.clone();
        let (port, refusal) = (self.port.into(), String::new());
        let offer = v1::RdmaOffer { token: token.to_vec().into(), port, hosts, refusal };
        tell(&mut stream, &offer).await?;
        let mut nothing = [0; 1];
        let request = tokio::select! {
            request = request => request.map_err(|_| io::ErrorKind::ConnectionAborted)?,
            // It has found no way, and says no more.
            _ = stream.read(&mut nothing) => return Err(io::ErrorKind::ConnectionAborted.into()),
        };
        let made = manager::take_up(request).await;
        // What the other side does wrong is no trouble of this one.
        let ours = |e: &io::Error| (e.kind() != io::ErrorKind::InvalidData).then(|| e.to_string());
        self.unserved.made(made.as_ref().err().and_then(ours));
        let (connection, events) = connected(made?, Side::Server).await?;
        Ok(linked(connection, events, stream, self.busy_poll))
    }
}

impl Drop for Offers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An offer that stands.
struct Offered<'a> {
    offers: &'a Offers,
    token: [u8; 16],
}

impl Drop for Offered<'_> {
    fn drop(&mut self) {
        self.offers.expected.lock().remove(&self.token);
    }
}

/// Gives each that comes to whoever made it an offer. Who is not expected is turned away.
async fn hand_out(port: Port, expected: Expected, unserved: Arc<Unserved>) {
    loop {
        let request = match port.next().await {
            Ok(request) => request,
            Err(error) => {
                tracing::error!(%error, "RDMA is served no more: start this daemon anew");
                unserved.over.get_or_init(|| error.to_string());
                return;
            }
        };
        let waits = request.token.and_then(|token| expected.lock().remove(&token.0));
        // Dropped, a request is refused.
        match waits {
            Some(waits) => drop(waits.send(request)),
            None => tracing::debug!("somebody came over RDMA whom nobody expects"),
        }
    }
}
