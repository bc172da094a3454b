//! TCP of the simulated network of turmoil. To be used inside a simulated host.

use crate::transport::{BoxStream, Listener, ReadHalf, Stream, Transport, WriteHalf};
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
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        Ok(Box::new(TcpStream::connect(address).await?))
    }

    async fn bind(&self, address: &str) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(SimPort(TcpListener::bind(address).await?)))
    }
}

#[async_trait::async_trait]
impl Listener for SimPort {
    async fn accept(&mut self) -> io::Result<(BoxStream, String)> {
        let (stream, address) = self.0.accept().await?;
        Ok((Box::new(stream), address.to_string()))
    }

    fn local_address(&self) -> io::Result<String> {
        Ok(self.0.local_addr()?.to_string())
    }
}
