//! Tells by its first bytes what a stream speaks.

use super::link::link;
use super::{BoxStream, ReadHalf, Stream, WriteHalf};
use crate::frame::MAGIC;
use crate::rdma;
use crate::tls::{Credentials, Subject};
use crate::transport::{Opening, Speaks};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// What every HTTP/2 client sends first (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What HTTP/1 clients begin with that only read (RFC 9110, 9.3).
const READS: [&[u8; 4]; 2] = [b"GET ", b"HEAD"];

/// A stream that was accepted.
pub(super) struct Accepted {
    pub stream: BoxStream,
    /// Who connects is to prove who it is, first.
    pub tls: Option<Arc<Credentials>>,
}

#[async_trait::async_trait]
impl Opening for Accepted {
    async fn speaks(self: Box<Self>) -> io::Result<Speaks> {
        match self.tls {
            Some(tls) => sniff(tls.accept(self.stream).await?).await,
            None => sniff(self.stream).await,
        }
    }
}

/// Reads as much as it takes to know.
async fn sniff(mut stream: BoxStream) -> io::Result<Speaks> {
    let mut first = [0; MAGIC.len()];
    stream.read_exact(&mut first).await?;
    if first == MAGIC {
        return Ok(Speaks::Frames(link(stream, &MAGIC)));
    }
    if first == rdma::MAGIC {
        return Ok(Speaks::Rdma(stream));
    }
    if let Some(first) = READS.into_iter().find(|read| **read == first) {
        return Ok(Speaks::Http1(Box::new(Replayed { first, inner: stream })));
    }
    if first != PREFACE[..4] {
        return Ok(Speaks::Unknown(first));
    }
    let mut rest = [0; PREFACE.len() - 4];
    stream.read_exact(&mut rest).await?;
    if rest != PREFACE[4..] {
        return Ok(Speaks::Unknown(first));
    }
    Ok(Speaks::Http2(Box::new(Replayed { first: PREFACE, inner: stream })))
}

/// A stream whose first bytes are read once more.
struct Replayed {
    first: &'static [u8],
    inner: BoxStream,
}

/// The reading half of a [`Replayed`].
struct ReplayedRead {
    first: &'static [u8],
    inner: ReadHalf,
}

impl Stream for Replayed {
    fn subject(&self) -> Option<&Arc<Subject>> {
        self.inner.subject()
    }

    fn split(self: Box<Self>) -> (ReadHalf, WriteHalf) {
        let (inner, write) = self.inner.split();
        (Box::new(ReplayedRead { first: self.first, inner }), write)
    }
}

fn replay(first: &mut &'static [u8], buf: &mut ReadBuf<'_>) -> bool {
    if first.is_empty() {
        return false;
    }
    let (now, later) = first.split_at(first.len().min(buf.remaining()));
    buf.put_slice(now);
    *first = later;
    true
}

impl AsyncRead for Replayed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if replay(&mut self.first, buf) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncRead for ReplayedRead {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if replay(&mut self.first, buf) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Replayed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
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
