//! Takes frames off a stream: headers and heads from a small buffer, large payloads straight into
//! the memory they are for.
//!
//! Invariant: nothing is allocated before the header that asks for it was verified and its lengths
//! were checked against the limits.

use crate::frame::{Broken, HEADER_LEN, Header};
use crate::transport::{Progress, Receiver};
use bytes::{Bytes, BytesMut};
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;

/// Most bytes that are read ahead; it begins with the least, and grows when a read fills the
/// buffer: most of many connections carry little.
const BUFFER: usize = 64 << 10;
const LEAST: usize = 4 << 10;
/// After a payload of this many bytes the next one is probably as large: then read only about a
/// header and a head ahead, because what lands in the buffer must be copied out again.
const BULK: usize = 16 << 10;
const BULK_AHEAD: usize = 2 << 10;

pub(super) struct FrameReader<R> {
    io: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    bulk: bool,
    progress: Progress,
    /// When the buffer was last read into.
    filled_at: Instant,
    /// What is still to come of the frame.
    head_left: usize,
    payload_left: usize,
    /// A head that is longer than the buffer, and how much of that, or of the memory that is just
    /// being filled, has come.
    long: BytesMut,
    filled: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// `first` are bytes that were read already.
    pub fn new(io: R, first: &[u8], progress: Progress) -> Self {
        let mut buffer = vec![0; LEAST];
        buffer[..first.len()].copy_from_slice(first);
        Self {
            io,
            buffer,
            start: 0,
            end: first.len(),
            bulk: false,
            progress,
            filled_at: Instant::now(),
            head_left: 0,
            payload_left: 0,
            long: BytesMut::new(),
            filled: 0,
        }
    }

    fn buffered(&self) -> usize {
        self.end - self.start
    }

    /// Consumes up to `len` bytes of the buffer.
    fn take_buffered(&mut self, len: usize) -> &[u8] {
        let from = self.start;
        self.start += self.buffered().min(len);
        &self.buffer[from..self.start]
    }

    /// One read into the buffer; 0 at the end of the stream. Called only when the buffer holds less
    /// than is wanted, so that there is always room.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let ahead = if self.bulk { BULK_AHEAD } else { BUFFER };
        let limit = self.buffer.len().min(self.end + ahead);
        let n = ready!(read(&mut self.io, cx, &mut self.buffer[self.end..limit]))?;
        self.bulk = false;
        self.progress.fetch_add(1, Ordering::Relaxed);
        self.filled_at = Instant::now();
        self.end += n;
        if self.end == self.buffer.len() && self.end < BUFFER {
            self.buffer.resize(BUFFER, 0);
        }
        Poll::Ready(Ok(n))
    }

    /// Fills what is not filled yet of `into`: from the buffer, then straight from the stream; what
    /// is short from the buffer alone, because what comes next is probably as short.
    fn poll_into(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<Result<(), Broken>> {
        loop {
            let at = self.filled;
            let buffered = self.take_buffered(into.len() - at);
            into[at..at + buffered.len()].copy_from_slice(buffered);
            self.filled = at + buffered.len();
            if self.filled == into.len() {
                self.filled = 0;
                return Poll::Ready(Ok(()));
            }
            let n = if into.len() < BULK {
                ready!(self.poll_fill(cx))?
            } else {
                let n = ready!(read(&mut self.io, cx, &mut into[self.filled..]))?;
                self.progress.fetch_add(1, Ordering::Relaxed);
                self.filled += n;
                n
            };
            if n == 0 {
                return Poll::Ready(Err(truncated()));
            }
        }
    }
}

impl<R: AsyncRead + Send + Unpin + 'static> Receiver for FrameReader<R> {
    fn poll_header(&mut self, cx: &mut Context<'_>) -> Poll<Result<Header, Broken>> {
        while self.buffered() < HEADER_LEN {
            if ready!(self.poll_fill(cx))? == 0 {
                let whole = self.buffered() == 0;
                return Poll::Ready(Err(if whole { Broken::Closed } else { truncated() }));
            }
        }
        let mut bytes = [0; HEADER_LEN];
        bytes.copy_from_slice(self.take_buffered(HEADER_LEN));
        let header = Header::decode(&bytes)?;
        self.head_left = header.head_len as usize;
        self.payload_left = header.payload_len as usize;
        Poll::Ready(Ok(header))
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Broken>> {
        let len = self.head_left;
        // The buffer may have grown since it began to come.
        if !self.long.is_empty() || len > self.buffer.len() {
            if self.long.is_empty() {
                self.long = BytesMut::zeroed(len);
            }
            let mut long = std::mem::take(&mut self.long);
            let Poll::Ready(filled) = self.poll_into(cx, &mut long) else {
                self.long = long;
                return Poll::Pending;
            };
            filled?;
            self.bulk = true;
            self.head_left = 0;
            return Poll::Ready(Ok(long.freeze()));
        }
        while self.buffered() < len {
            if ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Err(truncated()));
            }
        }
        self.head_left = 0;
        // A copy of its own: a slice of the buffer would keep all of it alive.
        Poll::Ready(Ok(Bytes::copy_from_slice(self.take_buffered(len))))
    }

    fn poll_payload(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<Result<(), Broken>> {
        debug_assert!(into.len() <= self.payload_left);
        ready!(self.poll_into(cx, into))?;
        self.payload_left -= into.len();
        self.bulk = into.len() >= BULK;
        Poll::Ready(Ok(()))
    }

    fn poll_skip(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        loop {
            self.payload_left -= self.take_buffered(self.payload_left).len();
            if self.payload_left == 0 {
                return Poll::Ready(Ok(()));
            }
            if ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Err(truncated()));
            }
        }
    }

    fn came_at(&self) -> Instant {
        self.filled_at
    }
}

fn read(
    io: &mut (impl AsyncRead + Unpin),
    cx: &mut Context<'_>,
    into: &mut [u8],
) -> Poll<io::Result<usize>> {
    let mut into = ReadBuf::new(into);
    ready!(Pin::new(io).poll_read(cx, &mut into))?;
    Poll::Ready(Ok(into.filled().len()))
}

fn truncated() -> Broken {
    Broken::Io(io::Error::new(io::ErrorKind::UnexpectedEof, "the stream ended inside a frame"))
}

#[cfg(test)]
mod tests;
