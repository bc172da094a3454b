//! A stream whose other end was proved.

use super::standing::Standing;
use super::subject::Subject;
use crate::stream::{BoxStream, Stream};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio_rustls::TlsStream;

/// Bytes that are taken from the network at a time, where rustls asks for 4 KiB. More do not stay
/// in the cache until they are decrypted.
const READ_AHEAD: usize = 64 << 10;

/// What is not decrypted yet. The memory is taken page by page, as it is needed.
pub(super) type Ahead = BufReader<BoxStream>;

pub(super) fn ahead(stream: BoxStream) -> Ahead {
    BufReader::with_capacity(READ_AHEAD, stream)
}

/// Encrypted both ways. Reading and writing end when the other side is not trusted any more.
pub(crate) struct Secured {
    inner: TlsStream<Ahead>,
    standing: Arc<Standing>,
}

impl Secured {
    pub(super) fn new(inner: TlsStream<Ahead>, standing: Arc<Standing>) -> Self {
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
