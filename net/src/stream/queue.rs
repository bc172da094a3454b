//! Frames on their way out: any task pushes, one writer task takes all that is there and writes it
//! in one vectored write.
//!
//! Headers and small pieces are gathered in one run of bytes; large pieces stay where they are.
//! Invariant: frames leave whole and in the order of the pushes.

use crate::frame::{Frame, HEADER_LEN, Head};
use crate::sync::Mutex;
use crate::transport::User;
use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// Pieces up to this length are copied: cheaper than a reference and an entry of the vector.
const GATHER: usize = 1024;
/// A gathered run that grew beyond this is given back after use.
const KEEP: usize = 256 << 10;

/// Frames that are written together.
#[derive(Default)]
struct Batch {
    /// Headers and small pieces.
    gathered: Vec<u8>,
    /// Written so far of `gathered`.
    at: usize,
    /// Large pieces, each with its place: the offset in `gathered` before which it comes.
    pieces: VecDeque<(usize, Bytes)>,
    /// Frames with a cost, and the sum of their costs.
    costly: usize,
    cost: usize,
}

impl Batch {
    /// Tells that its frames have left, or never will.
    fn leave(&mut self, user: &dyn User) {
        let (frames, cost) = (std::mem::take(&mut self.costly), std::mem::take(&mut self.cost));
        if frames > 0 {
            user.left(frames, cost);
        }
    }

    fn push(&mut self, piece: Bytes) {
        if piece.len() <= GATHER {
            self.gathered.extend_from_slice(&piece);
        } else {
            self.pieces.push_back((self.gathered.len(), piece));
        }
    }

    fn is_empty(&self) -> bool {
        self.gathered.is_empty() && self.pieces.is_empty()
    }

    fn clear(&mut self) {
        self.gathered.clear();
        self.gathered.shrink_to(KEEP);
        self.pieces.clear();
        (self.at, self.costly, self.cost) = (0, 0, 0);
    }

    /// The gathered bytes up to the next large piece.
    fn run(&self) -> &[u8] {
        let end = self.pieces.front().map_or(self.gathered.len(), |(place, _)| *place);
        &self.gathered[self.at..end]
    }
}

impl Buf for Batch {
    fn remaining(&self) -> usize {
        self.gathered.len() - self.at + self.pieces.iter().map(|(_, p)| p.len()).sum::<usize>()
    }

    fn has_remaining(&self) -> bool {
        self.at < self.gathered.len() || !self.pieces.is_empty()
    }

    fn chunk(&self) -> &[u8] {
        match (self.run(), self.pieces.front()) {
            ([], Some((_, piece))) => piece,
            (run, _) => run,
        }
    }

    fn chunks_vectored<'a>(&'a self, dst: &mut [IoSlice<'a>]) -> usize {
        let (mut n, mut at) = (0, self.at);
        let ends = self.pieces.iter().map(|(place, piece)| (*place, &piece[..]));
        for (place, piece) in ends.chain([(self.gathered.len(), &[][..])]) {
            for slice in [&self.gathered[at..place], piece] {
                if n == dst.len() {
                    return n;
                }
                if !slice.is_empty() {
                    dst[n] = IoSlice::new(slice);
                    n += 1;
                }
            }
            at = place;
        }
        n
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let run = self.run().len();
            if run > 0 {
                let n = run.min(count);
                self.at += n;
                count -= n;
                continue;
            }
            let Some((_, piece)) = self.pieces.front_mut() else {
                panic!("advanced {count} bytes beyond the end of a batch")
            };
            let n = piece.len().min(count);
            piece.advance(n);
            count -= n;
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
    }
}

/// What the writer has taken. When it ends, however that comes, nothing leaves any more: what waits
/// is let go at once, though requests of the connection may be at work for long.
struct Leaving<'a> {
    queue: &'a SendQueue,
    user: &'a dyn User,
    batch: Batch,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut pending = {
            let mut state = self.queue.0.lock();
            (state.closed, state.writing) = (true, false);
            std::mem::take(&mut state.pending)
        };
        self.batch.leave(self.user);
        pending.leave(self.user);
    }
}

#[derive(Default)]
struct State {
    pending: Batch,
    writer: Option<Waker>,
    closed: bool,
    /// The writer has a batch that is not written yet.
    writing: bool,
}

/// The sending side of one connection.
#[derive(Default)]
pub(super) struct SendQueue(Mutex<State>);

impl SendQueue {
    /// Appends a frame. False: the connection is closed and the frame dropped.
    pub fn push(&self, frame: Frame<'_>, cost: Option<usize>) -> bool {
        let Frame { header, head, payload } = frame;
        let large = match head {
            // Encoding a large message must not hold up the others under the lock.
            Head::Message(message) if header.head_len as usize > GATHER => {
                let mut bytes = Vec::with_capacity(header.head_len as usize);
                message.encode(&mut bytes);
                Some(bytes.into())
            }
            Head::Bytes(ref bytes) => Some(bytes.clone()),
            Head::Message(_) => None,
        };
        let header = header.encode();

        let mut state = self.0.lock();
        if state.closed {
            return false;
        }
        let batch = &mut state.pending;
        batch.gathered.reserve(HEADER_LEN);
        batch.gathered.extend_from_slice(&header);
        match (large, head) {
            (Some(bytes), _) => batch.push(bytes),
            (None, Head::Message(message)) => message.encode(&mut batch.gathered),
            (None, Head::Bytes(_)) => {}
        }
        payload.into_iter().for_each(|piece| batch.push(piece));
        if let Some(bytes) = cost {
            batch.costly += 1;
            batch.cost += bytes;
        }
        let writer = state.writer.take();
        drop(state);
        if let Some(writer) = writer {
            writer.wake();
        }
        true
    }

    /// No more frames; the writer ends after those that are here.
    pub fn end(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        let writer = state.writer.take();
        drop(state);
        if let Some(writer) = writer {
            writer.wake();
        }
    }

    /// Nothing waits to be written or is being written.
    pub fn rests(&self) -> bool {
        let state = self.0.lock();
        state.pending.is_empty() && !state.writing
    }

    /// Writes frames until the queue is closed and empty, or the stream fails.
    pub async fn write_to(
        &self,
        mut io: impl AsyncWrite + Unpin,
        progress: &AtomicU64,
        user: &dyn User,
    ) -> io::Result<()> {
        let mut leaving = Leaving { queue: self, user, batch: Batch::default() };
        while self.next(&mut leaving.batch, user).await {
            while leaving.batch.has_remaining() {
                if io.write_buf(&mut leaving.batch).await? == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                progress.fetch_add(1, Ordering::Relaxed);
            }
            io.flush().await?;
            leaving.batch.leave(user);
        }
        io.shutdown().await
    }

    /// Swaps the written batch for the pending frames; false at the end.
    async fn next(&self, batch: &mut Batch, user: &dyn User) -> bool {
        batch.clear();
        let slept = {
            let mut state = self.0.lock();
            state.writing = false;
            state.pending.is_empty()
        };
        if slept {
            poll_fn(|cx| {
                let mut state = self.0.lock();
                if state.closed || !state.pending.is_empty() {
                    return Poll::Ready(());
                }
                state.writer = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
            if user.crowded() {
                // Let the tasks that are ready now push first: their frames go in the same write.
                tokio::task::yield_now().await;
            }
        }
        let mut state = self.0.lock();
        std::mem::swap(batch, &mut state.pending);
        state.writing = !batch.is_empty();
        state.writing
    }
}

#[cfg(test)]
mod tests;
