//! The parts of a connection that the tasks of its user have.

use super::connection::{Connection, Side};
use super::pump::{Engine, Watch};
use super::wire::{PIECE, PLACES, Payload, Piece, Places};
use crate::aligned::AlignedBuf;
use crate::buffer::Buffer;
use crate::frame::{Broken, Frame, HEADER_LEN, Header, Kind};
use crate::metrics::rdma::COPIED;
use crate::tls::Subject;
use crate::transport::{Fetch, Link, Receiver, Sender};
use bytes::Bytes;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Instant;

/// Room that is kept for what has come of frames. A long head takes more, while it comes.
const KEEP: usize = 64 << 10;

/// A connection over a queue pair that is connected.
pub(super) fn link(
    connection: Arc<Connection>,
    watch: Watch,
    subject: Option<Arc<Subject>>,
    busy_poll: Duration,
) -> Link {
    let (heard, sent) = (connection.heard.clone(), connection.sent.clone());
    Link {
        sender: Arc::new(Outgoing(connection.clone())),
        receiver: Box::new(Incoming::new(connection.clone())),
        pump: Box::new(Engine::new(connection, watch, busy_poll)),
        heard,
        sent,
        subject,
        network: "rdma",
        retry_after: None,
    }
}

struct Outgoing(Arc<Connection>);

impl Sender for Outgoing {
    unsafe fn ask(&self, frame: Frame<'_>, into: &[Buffer]) -> bool {
        self.0.push(frame, into, None)
    }

    fn send(&self, frame: Frame<'_>, cost: Option<usize>) -> bool {
        self.0.push(frame, &[], cost)
    }

    fn give_up(&self, id: u64) -> bool {
        self.0.give_up(id)
    }

    fn is_idle(&self) -> bool {
        self.0.is_idle()
    }

    fn close(&self) {
        self.0.close();
    }

    fn sever(&self) {
        self.0.end("severed");
    }
}

/// Where the frame that is being taken has its payload, and what was not taken of it.
#[derive(Default)]
struct Current {
    head_left: usize,
    payload_left: usize,
    sources: Vec<Piece>,
    written: bool,
    /// Of the memory that is just being filled.
    filled: usize,
}

struct Incoming {
    connection: Arc<Connection>,
    /// What has come of frames, and how much of it was taken.
    taken: Vec<u8>,
    at: usize,
    frame: Current,
    came_at: Instant,
}

impl Incoming {
    fn new(connection: Arc<Connection>) -> Self {
        let (frame, came_at) = (Current::default(), Instant::now());
        Self { connection, taken: Vec::new(), at: 0, frame, came_at }
    }

    /// Waits until so many bytes that were not taken are there.
    fn poll_bytes(&mut self, cx: &mut Context<'_>, len: usize) -> Poll<Result<(), Broken>> {
        while self.taken.len() - self.at < len {
            if self.at > 0 {
                self.taken.drain(..self.at);
                self.at = 0;
                if len <= KEEP {
                    self.taken.shrink_to(KEEP);
                }
            }
            let begun = !self.taken.is_empty();
            match self.connection.take_arrived(&mut self.taken, cx.waker()) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(Broken::Closed) if begun => {
                    let what = "the other side closed inside a frame".into();
                    return Poll::Ready(Err(Broken::Garbage(what)));
                }
                Err(broken) => return Poll::Ready(Err(broken)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn next<const N: usize>(&self, at: usize) -> Result<[u8; N], Broken> {
        let bytes = self.taken.get(self.at + at..).and_then(|rest| rest.first_chunk());
        bytes.copied().ok_or_else(|| Broken::Garbage("a frame that has not come".into()))
    }

    /// The places and pieces of a frame that has come so far.
    fn place(&mut self, header: &Header, places: Places) -> Result<(), Broken> {
        let garbage = |what: &str| Err(Broken::Garbage(what.into()));
        let start = self.at + HEADER_LEN + PLACES;
        let pieces = self.taken.get(start..start + places.pieces_len()).unwrap_or_default();
        let (sources, landings) = pieces.split_at(usize::from(places.sources) * PIECE);
        self.frame = Current {
            head_left: header.head_len as usize,
            payload_left: header.payload_len as usize,
            ..Current::default()
        };
        match self.connection.side {
            Side::Server => {
                if places.payload == Payload::Written {
                    return garbage("a request whose payload was written");
                }
                let sources = Piece::decode_all(sources)?;
                let len = sources.iter().map(|piece| piece.len as usize).sum::<usize>();
                if !sources.is_empty() && len != header.payload_len as usize {
                    return garbage("a payload in pieces of another length");
                }
                self.frame.sources = sources;
                self.connection.land_at(header.id, Piece::decode_all(landings)?);
            }
            Side::Caller => {
                if places.pieces_len() > 0 {
                    return garbage("an answer with places in memory");
                }
                let landing = match header.id {
                    0 => None,
                    id => self.connection.answered(id)?,
                };
                self.frame.written = places.payload == Payload::Written;
                let right = header.kind == Kind::Answer
                    && landing.is_some_and(|len| len == header.payload_len as usize);
                if self.frame.written && !right {
                    return garbage("an answer that was written to other memory");
                }
            }
        }
        Ok(())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.connection.drain();
    }
}

impl Receiver for Incoming {
    fn poll_header(&mut self, cx: &mut Context<'_>) -> Poll<Result<Header, Broken>> {
        ready!(self.poll_bytes(cx, HEADER_LEN + PLACES))?;
        let header = Header::decode(&self.next(0)?)?;
        let places = Places::decode(self.next(HEADER_LEN)?)?;
        let len = HEADER_LEN + PLACES + places.pieces_len();
        ready!(self.poll_bytes(cx, len))?;
        self.came_at = Instant::now();
        self.place(&header, places)?;
        self.at += len;
        Poll::Ready(Ok(header))
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Broken>> {
        let len = self.frame.head_left;
        ready!(self.poll_bytes(cx, len))?;
        let head = Bytes::copy_from_slice(&self.taken[self.at..self.at + len]);
        self.at += len;
        self.frame.head_left = 0;
        Poll::Ready(Ok(head))
    }

    fn poll_payload(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<Result<(), Broken>> {
        if self.frame.written {
            return Poll::Ready(Ok(()));
        }
        while self.frame.filled < into.len() {
            ready!(self.poll_bytes(cx, 1))?;
            let rest = &mut into[self.frame.filled..];
            let now = rest.len().min(self.taken.len() - self.at);
            rest[..now].copy_from_slice(&self.taken[self.at..self.at + now]);
            self.at += now;
            self.frame.filled += now;
            self.frame.payload_left = self.frame.payload_left.saturating_sub(now);
        }
        COPIED.inc_by(self.frame.filled as u64);
        self.frame.filled = 0;
        Poll::Ready(Ok(()))
    }

    fn was_written(&self) -> bool {
        self.frame.written
    }

    fn poll_skip(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        if self.frame.written || !self.frame.sources.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while self.frame.payload_left > 0 {
            ready!(self.poll_bytes(cx, 1))?;
            let now = self.frame.payload_left.min(self.taken.len() - self.at);
            self.at += now;
            self.frame.payload_left -= now;
        }
        Poll::Ready(Ok(()))
    }

    fn fetch(&mut self, into: AlignedBuf) -> Result<Fetch, AlignedBuf> {
        if self.frame.sources.is_empty() {
            return Err(into);
        }
        let sources = std::mem::take(&mut self.frame.sources);
        let fetched = self.connection.fetch(into, sources);
        // Without a task it goes on all the same.
        Ok(Box::pin(async move { fetched?.await.map_err(|_| Broken::Closed) }))
    }

    fn came_at(&self) -> Instant {
        self.came_at
    }
}

#[cfg(test)]
mod tests;
