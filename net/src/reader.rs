//! Takes frames off a stream: headers and heads from a small buffer, large payloads straight into
//! the memory they are for.
//!
//! Invariant: nothing is allocated before the header that asks for it was verified and its lengths
//! were checked against the limits.

use crate::frame::{Broken, HEADER_LEN, Header};
use bytes::{BufMut, Bytes, BytesMut};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

/// Most bytes that are read ahead; it begins with the least, and grows when a read fills the buffer: most
/// of many connections carry little.
const BUFFER: usize = 64 << 10;
const LEAST: usize = 4 << 10;
/// After a payload of this many bytes the next one is probably as large: then read only about a
/// header and a head ahead, because what lands in the buffer must be copied out again.
const BULK: usize = 16 << 10;
const BULK_AHEAD: usize = 2 << 10;

/// Counts reads or writes that moved bytes; it standing still is silence.
pub(crate) type Progress = Arc<AtomicU64>;

pub(crate) struct FrameReader<R> {
    io: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    bulk: bool,
    progress: Progress,
    /// When the buffer was last read into.
    filled_at: Instant,
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
        }
    }

    /// The next header; `Closed` if the stream ends where a frame could start.
    pub async fn header(&mut self) -> Result<Header, Broken> {
        while self.buffered() < HEADER_LEN {
            if self.fill().await? == 0 {
                return Err(if self.buffered() == 0 { Broken::Closed } else { truncated() });
            }
        }
        let bytes = &self.buffer[self.start..self.start + HEADER_LEN];
        let header = Header::decode(bytes.try_into().expect("cut to HEADER_LEN"))?;
        self.start += HEADER_LEN;
        Ok(header)
    }

    /// A head of `len` bytes (checked by the header against `MAX_HEAD`).
    pub async fn head(&mut self, len: usize) -> Result<Bytes, Broken> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        if len > self.buffer.len() {
            return Ok(self.payload(len).await?.freeze());
        }
        while self.buffered() < len {
            if self.fill().await? == 0 {
                return Err(truncated());
            }
        }
        // A copy of its own: a slice of the buffer would keep all of it alive.
        let head = Bytes::copy_from_slice(&self.buffer[self.start..self.start + len]);
        self.start += len;
        Ok(head)
    }

    /// A payload into a fresh buffer. The caller has checked `len`.
    pub async fn payload(&mut self, len: usize) -> Result<BytesMut, Broken> {
        let mut payload = BytesMut::with_capacity(len);
        payload.put_slice(self.take_buffered(len));
        while payload.len() < len {
            let left = len - payload.len();
            let n = self.io.read_buf(&mut (&mut payload).limit(left)).await?;
            self.progressed(n)?;
        }
        self.bulk = len >= BULK;
        Ok(payload)
    }

    /// The next bytes of a payload, into memory that is there.
    pub async fn payload_into(&mut self, into: &mut [u8]) -> Result<(), Broken> {
        let buffered = self.take_buffered(into.len());
        let mut filled = buffered.len();
        into[..filled].copy_from_slice(buffered);
        while filled < into.len() {
            let n = self.io.read(&mut into[filled..]).await?;
            self.progressed(n)?;
            filled += n;
        }
        self.bulk = into.len() >= BULK;
        Ok(())
    }

    /// Drops the next `len` bytes: a payload that nobody waits for.
    pub async fn discard(&mut self, len: usize) -> Result<(), Broken> {
        let mut left = len;
        loop {
            left -= self.take_buffered(left).len();
            if left == 0 {
                return Ok(());
            }
            if self.fill().await? == 0 {
                return Err(truncated());
            }
        }
    }

    /// When the header that was read last had come. One clock reading serves many frames.
    pub fn came_at(&self) -> Instant {
        self.filled_at
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
    async fn fill(&mut self) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let ahead = if std::mem::take(&mut self.bulk) { BULK_AHEAD } else { BUFFER };
        let limit = self.buffer.len().min(self.end + ahead);
        let n = self.io.read(&mut self.buffer[self.end..limit]).await?;
        self.progress.fetch_add(1, Ordering::Relaxed);
        self.filled_at = Instant::now();
        self.end += n;
        if self.end == self.buffer.len() && self.end < BUFFER {
            self.buffer.resize(BUFFER, 0);
        }
        Ok(n)
    }

    fn progressed(&self, n: usize) -> Result<(), Broken> {
        if n == 0 {
            return Err(truncated());
        }
        self.progress.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn truncated() -> Broken {
    Broken::Io(io::Error::new(io::ErrorKind::UnexpectedEof, "the stream ended inside a frame"))
}
