//! TCP through the kernel, as it is or encrypted.

use super::link::{link, socket};
use super::sniff::Accepted;
use super::{BoxStream, ReadHalf, Stream, WriteHalf};
use crate::address::Address;
use crate::tls::Credentials;
use crate::transport::{CONNECT_TIMEOUT, Link, Listener, Opening, Transport};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// An idle connection is probed after this long, so that a vanished host does not hold memory.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
/// Unacknowledged bytes for this long break the connection.
const USER_TIMEOUT: Duration = Duration::from_secs(25);

/// The next address of a name is tried when one has been silent for so long.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// A handshake needs the peer's process to run, which may be busy.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// Who may be at the other end.
#[derive(Clone)]
enum Trusted {
    /// Whoever is there: the network keeps strangers out.
    All,
    /// Processes of this machine.
    Loopback,
    /// Who proves who it is.
    Proved(Arc<Credentials>),
}

struct Tcp(Trusted);
struct TcpPort(TcpListener, Trusted);

/// The kernel's TCP, no delay, keepalive, neither encrypted nor authenticated: whoever reaches a
/// port may ask for anything.
pub fn tcp() -> Arc<dyn Transport> {
    Arc::new(Tcp(Trusted::All))
}

/// As [`tcp`], and refuses addresses of other machines, and those at which other machines reach
/// this one.
pub fn tcp_on_loopback() -> Arc<dyn Transport> {
    Arc::new(Tcp(Trusted::Loopback))
}

/// The kernel's TCP, encrypted; both sides prove who they are.
pub fn tls(credentials: Arc<Credentials>) -> Arc<dyn Transport> {
    Arc::new(Tcp(Trusted::Proved(credentials)))
}

impl Trusted {
    /// Error: `PermissionDenied`, this may be another machine.
    fn check(&self, address: SocketAddr, what: &str) -> io::Result<()> {
        if matches!(self, Self::Loopback) && !address.ip().to_canonical().is_loopback() {
            let what = format!(
                "{address} is {what}, where anybody may listen or pretend: give certificates with \
                 --tls-ca, --tls-cert and --tls-key, or say --insecure where the network keeps \
                 strangers out"
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        Ok(())
    }

    async fn connect(&self, address: &Address) -> io::Result<BoxStream> {
        let (host, port) = socket(address)?;
        let connected = async { connect_to(lookup_host((host, port)).await?.collect()).await };
        let stream = timeout(CONNECT_TIMEOUT, connected).await??;
        self.check(stream.peer_addr()?, "on another machine")?;
        tune(&stream)?;
        match self {
            Self::Proved(credentials) => credentials.connect(host, Box::new(stream)).await,
            Self::All | Self::Loopback => Ok(Box::new(stream)),
        }
    }
}

/// Connects to one of these addresses. Each begins when those before it have failed, or were silent
/// for a while: one that swallows what it is sent keeps nobody from the others (RFC 8305).
async fn connect_to(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    if let [one] = addresses[..] {
        return TcpStream::connect(one).await;
    }
    let patience = NEXT_ADDRESS_AFTER.min(CONNECT_TIMEOUT / (addresses.len() as u32 + 1));
    let (mut waiting, mut connecting) = (addresses.into_iter(), JoinSet::new());
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        if let Some(address) = waiting.next() {
            connecting.spawn(TcpStream::connect(address));
        }
        tokio::select! {
            connected = connecting.join_next() => match connected {
                Some(Ok(Ok(stream))) => return Ok(stream),
                Some(Ok(Err(error))) => failed = error,
                Some(Err(ended)) => failed = ended.into(),
                None => return Err(failed),
            },
            () = sleep(patience), if waiting.len() > 0 => {}
        }
    }
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(KEEPALIVE_AFTER)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_PROBES),
    )?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))
}

impl Stream for TcpStream {
    fn split(self: Box<Self>) -> (ReadHalf, WriteHalf) {
        let (read, write) = self.into_split();
        (Box::new(read), Box::new(write))
    }
}

#[async_trait::async_trait]
impl Transport for Tcp {
    async fn connect(&self, address: &Address) -> io::Result<Link> {
        Ok(link(self.0.connect(address).await?, &[]))
    }

    fn connect_timeout(&self) -> Duration {
        match self.0 {
            Trusted::Proved(_) => CONNECT_TIMEOUT + HANDSHAKE_TIMEOUT,
            Trusted::All | Trusted::Loopback => CONNECT_TIMEOUT,
        }
    }

    async fn stream(&self, address: &Address) -> io::Result<BoxStream> {
        self.0.connect(address).await
    }

    async fn bind(&self, address: &Address) -> io::Result<Box<dyn Listener>> {
        let listener = TcpListener::bind(socket(address)?).await?;
        self.0.check(listener.local_addr()?, "reached from other machines")?;
        Ok(Box::new(TcpPort(listener, self.0.clone())))
    }
}

#[async_trait::async_trait]
impl Listener for TcpPort {
    async fn accept(&mut self) -> io::Result<(Box<dyn Opening>, Address)> {
        let (stream, address) = self.0.accept().await?;
        // A peer that is gone already shows at the first read; it is no fault of the port.
        if let Err(error) = tune(&stream) {
            tracing::debug!(%address, %error, "cannot tune an accepted connection");
        }
        let tls = match &self.1 {
            Trusted::Proved(credentials) => Some(credentials.clone()),
            Trusted::All | Trusted::Loopback => None,
        };
        Ok((Box::new(Accepted { stream: Box::new(stream), tls }), address.into()))
    }

    fn local_address(&self) -> io::Result<Address> {
        Ok(self.0.local_addr()?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Socket, Type};

    /// Of a listener whose queue is full: what it is sent is dropped, as by a host that is gone.
    fn silent() -> (SocketAddr, Vec<Socket>) {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut sockets = vec![listener];
        for _ in 0..4 {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&address);
            sockets.push(socket);
        }
        (address.as_socket().unwrap(), sockets)
    }

    #[tokio::test]
    async fn an_address_that_is_silent_keeps_nobody_from_the_next() {
        let (gone, _sockets) = silent();
        let refusing = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let there = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = (there.local_addr().unwrap(), there);
        let connecting = connect_to(vec![gone, refusing, there.0]);
        // The kernel gives up later.
        let stream = timeout(Duration::from_secs(60), connecting).await.unwrap().unwrap();
        assert_eq!(stream.peer_addr().unwrap(), there.0);
        assert!(connect_to(Vec::new()).await.is_err());
        assert!(timeout(CONNECT_TIMEOUT, connect_to(vec![gone])).await.is_err(), "it is silent");
    }
}
