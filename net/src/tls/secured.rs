//! A stream whose other end was proved.

use super::standing::Standing;
use super::subject::Subject;
use crate::stream::{BoxStream, Stream};
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio_rustls::TlsStream;

/// Bytes that are taken from the network at a time, where rustls asks for 4 KiB. More do not stay
/// in the cache until they are decrypted.
const READ_AHEAD: usize = 64 << 10;

/// What is not decrypted yet.
pub(super) type Ahead = BufReader<BoxStream>;

/// A buffer of one byte is passed by: nothing is taken ahead of what is asked for, and a stranger
/// who only connects gets no memory for it.
pub(super) fn not_ahead(stream: BoxStream) -> Ahead {
    BufReader::with_capacity(1, stream)
}

/// Encrypted both ways. Reading and writing end when the other side is not trusted any more.
pub(crate) struct Secured {
    inner: TlsStream<Ahead>,
    standing: Arc<Standing>,
}

impl Secured {
    /// From here on the stream is read ahead.
    pub(super) fn new(mut inner: TlsStream<Ahead>, standing: Arc<Standing>) -> Self {
        let (below, _) = inner.get_mut();
        // One that takes nothing ahead has nothing to lose.
        let stream = mem::replace(below, not_ahead(Box::new(tokio::io::empty()))).into_inner();
        *below = BufReader::with_capacity(READ_AHEAD, stream);
        Self { inner, standing }
    }
}

impl Stream for Secured {
    fn subject(&self) -> Option<&Arc<Subject>> {
        Some(&self.standing.subject)
    }
}

impl AsyncRead for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.standing.check()?;
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.standing.check()?;
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.standing.check()?;
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
