//! TCP through the kernel.

use super::link::{link, socket};
use super::sniff::Accepted;
use super::{BoxStream, ReadHalf, Stream, WriteHalf};
use crate::address::Address;
use crate::transport::{Link, Listener, Opening, Transport};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// An idle connection is probed after this long, so that a vanished host does not hold memory.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
/// Unacknowledged bytes for this long break the connection.
const USER_TIMEOUT: Duration = Duration::from_secs(25);

struct Tcp;
struct TcpPort(TcpListener);

/// The kernel's TCP: no delay, keepalive.
pub fn tcp() -> Arc<dyn Transport> {
    Arc::new(Tcp)
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
        Ok(link(self.stream(address).await?, &[]))
    }

    async fn stream(&self, address: &Address) -> io::Result<BoxStream> {
        let stream = TcpStream::connect(socket(address)?).await?;
        tune(&stream)?;
        Ok(Box::new(stream))
    }

    async fn bind(&self, address: &Address) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(TcpPort(TcpListener::bind(socket(address)?).await?)))
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
        Ok((Box::new(Accepted(Box::new(stream))), address.into()))
    }

    fn local_address(&self) -> io::Result<Address> {
        Ok(self.0.local_addr()?.into())
    }
}
