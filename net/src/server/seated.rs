//! A stream that others serve keeps its place meanwhile.

use super::door::Seat;
use crate::stream::{BoxStream, Stream};
use crate::tls::Subject;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that somebody else serves. It ends when its place is lost, and leaves it when dropped.
pub(super) struct Seated {
    inner: BoxStream,
    lost: Pin<Box<dyn Future<Output = ()> + Send>>,
    ended: bool,
    _seat: Seat,
}

impl Seated {
    pub fn new(inner: BoxStream, seat: Seat) -> Self {
        Self { inner, lost: Box::pin(seat.loss()), ended: false, _seat: seat }
    }
}

impl Stream for Seated {
    fn subject(&self) -> Option<&Arc<Subject>> {
        self.inner.subject()
    }
}

impl AsyncRead for Seated {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.ended = self.ended || self.lost.as_mut().poll(cx).is_ready();
        if self.ended {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Seated {
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
