//! TCP of the simulated network of turmoil. To be used inside a simulated host.

use super::link::{link, socket};
use super::sniff::Accepted;
use super::{BoxStream, ReadHalf, Stream, WriteHalf};
use crate::address::Address;
use crate::transport::{Link, Listener, Opening, Transport};
use std::io;
use std::sync::Arc;
use turmoil::net::{TcpListener, TcpStream};

struct Sim;
struct SimPort(TcpListener);

/// The simulated network of the host that calls.
pub fn transport() -> Arc<dyn Transport> {
    Arc::new(Sim)
}

impl Stream for TcpStream {
    fn split(self: Box<Self>) -> (ReadHalf, WriteHalf) {
        let (read, write) = self.into_split();
        (Box::new(read), Box::new(write))
    }
}

#[async_trait::async_trait]
impl Transport for Sim {
    async fn connect(&self, address: &Address) -> io::Result<Link> {
        Ok(link(self.stream(address).await?, &[]))
    }

    async fn stream(&self, address: &Address) -> io::Result<BoxStream> {
        Ok(Box::new(TcpStream::connect(socket(address)?).await?))
    }

    async fn bind(&self, address: &Address) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(SimPort(TcpListener::bind(socket(address)?).await?)))
    }
}

#[async_trait::async_trait]
impl Listener for SimPort {
    async fn accept(&mut self) -> io::Result<(Box<dyn Opening>, Address)> {
        let (stream, address) = self.0.accept().await?;
        Ok((Box::new(Accepted { stream: Box::new(stream), tls: None }), address.into()))
    }

    fn local_address(&self) -> io::Result<Address> {
        Ok(self.0.local_addr()?.into())
    }
}
