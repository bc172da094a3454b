//! The seam to the network: who connects, who listens, and what a byte stream is.

use std::io;
use tokio::io::{AsyncRead, AsyncWrite};

/// The receiving direction of a [`Stream`].
pub type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
/// The sending direction of a [`Stream`].
pub type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;
/// Any byte stream. Reads and writes itself, so tonic can serve on it.
pub type BoxStream = Box<dyn Stream>;

/// An ordered, reliable stream of bytes in both directions. Vectored writes are forwarded.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Separates the directions, so that two tasks can use them at once. Streams with halves of
    /// their own should return them: the default takes a lock around every read and write.
    fn split(self: Box<Self>) -> (ReadHalf, WriteHalf) {
        let (read, write) = tokio::io::split(self);
        (Box::new(read), Box::new(write))
    }
}

/// A kind of network.
#[async_trait::async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Opens a stream to `address` (`host:port`). The caller bounds the time.
    async fn connect(&self, address: &str) -> io::Result<BoxStream>;
    /// Listens on `address` (`host:port`; port 0 picks a free one).
    async fn bind(&self, address: &str) -> io::Result<Box<dyn Listener>>;
}

/// A bound port.
#[async_trait::async_trait]
pub trait Listener: Send {
    /// The next stream and the address of its other end. Must be safe to cancel.
    async fn accept(&mut self) -> io::Result<(BoxStream, String)>;
    /// The address that was bound, with the port that was picked.
    fn local_address(&self) -> io::Result<String>;
}
