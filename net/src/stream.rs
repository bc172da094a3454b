//! Frames over streams of bytes: [`tcp`] through the kernel, encrypted or not, `sim` on a simulated
//! network.
//!
//! One frame follows the other, each a header, a head and the payload. A server knows by the first
//! bytes whether a stream has frames or HTTP/2 ([`sniff`]).

pub(crate) mod link;
mod queue;
mod reader;
#[cfg(feature = "sim")]
pub mod sim;
mod sniff;
pub mod tcp;

use crate::tls::Subject;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};

/// The receiving direction of a [`Stream`].
pub type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
/// The sending direction of a [`Stream`].
pub type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;
/// Any byte stream. Reads and writes itself, so tonic can serve on it.
pub type BoxStream = Box<dyn Stream>;

/// An ordered, reliable stream of bytes in both directions. Vectored writes are forwarded.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Who is on the other end, if that was proved.
    fn subject(&self) -> Option<&Arc<Subject>> {
        None
    }

    /// Separates the directions, so that two tasks can use them at once. Streams with halves of
    /// their own should return them: the default takes a lock around every read and write.
    fn split(self: Box<Self>) -> (ReadHalf, WriteHalf) {
        let (read, write) = tokio::io::split(self);
        (Box::new(read), Box::new(write))
    }
}

/// A pipe within a process.
#[cfg(any(feature = "sim", feature = "fuzz"))]
impl Stream for tokio::io::DuplexStream {}

/// Stands where there is no stream: ends at once, and takes what is written.
impl Stream for tokio::io::Empty {}
