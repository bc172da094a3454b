//! Frames on their way out: any task pushes, one writer task takes many at a time and writes them
//! in one vectored write.
//!
//! Headers and small pieces are gathered in one run of bytes; large pieces stay where they are.
//! Invariants: frames leave whole and in the order of the pushes. A request whose caller has given
//! up before its first byte was taken does not leave at all, and its memory does not wait for the
//! other side to take what is before it.

mod batch;
mod waiting;

use crate::frame::{Frame, Head};
use crate::sync::Mutex;
use crate::transport::User;
use batch::Batch;
use bytes::Buf;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;
use waiting::Waiting;

/// The frame with which a batch has so many bytes is its last.
const TOGETHER: usize = 256 << 10;
/// So many bytes may wait before it is looked whether somebody still waits for them.
const UNSEEN: usize = 1 << 20;
/// Room for so many frames is kept when none waits.
const KEEP: usize = 1024;

/// What the writer has taken. When it ends, however that comes, nothing leaves any more: what waits
/// is let go at once, though requests of the connection may be at work for long.
struct Leaving<'a> {
    queue: &'a SendQueue,
    user: &'a dyn User,
    batch: Batch,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.queue.0.lock();
            (state.closed, state.writing, state.bytes) = (true, false, 0);
            std::mem::take(&mut state.waiting)
        };
        self.batch.leave(self.user);
        let costs: Vec<usize> = waiting.iter().filter_map(|frame| frame.cost).collect();
        if !costs.is_empty() {
            self.user.left(costs.len(), costs.iter().sum());
        }
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    /// Of all that waits.
    bytes: usize,
    /// With more than this it is looked for what is over.
    unseen: usize,
    writer: Option<Waker>,
    closed: bool,
    /// The writer has a batch that is not written yet.
    writing: bool,
}

impl State {
    /// Takes out what nobody waits for any more. What stays may double before the next look, so
    /// that a frame is looked at once or twice, however many wait.
    fn sift(&mut self, now: Instant) -> VecDeque<Waiting> {
        let all = std::mem::take(&mut self.waiting).into_iter();
        let (over, waiting): (VecDeque<_>, _) = all.partition(|frame| frame.is_over(now));
        self.waiting = waiting;
        self.bytes = self.waiting.iter().map(Waiting::len).sum();
        self.unseen = UNSEEN.max(2 * self.bytes);
        over
    }

    /// Moves what is to be written together to `taken`, and what is over before it.
    fn take(&mut self, taken: &mut Vec<Waiting>, now: Instant) {
        let mut bytes = 0;
        while bytes < TOGETHER {
            let Some(frame) = self.waiting.pop_front() else { break };
            self.bytes -= frame.len();
            bytes += if frame.is_over(now) { 0 } else { frame.len() };
            taken.push(frame);
        }
        self.writing = bytes > 0;
        if self.waiting.is_empty() {
            self.waiting.shrink_to(KEEP);
            self.unseen = UNSEEN;
        }
    }
}

/// The sending side of one connection.
#[derive(Default)]
pub(super) struct SendQueue(Mutex<State>);

impl SendQueue {
    /// Appends a frame. False: the connection is closed and the frame dropped.
    pub fn push(&self, frame: Frame<'_>, cost: Option<usize>) -> bool {
        let Frame { header, head, payload, until } = frame;
        // Before the lock: encoding must not hold up the others.
        let head = match head {
            Head::Message(message) => {
                let mut bytes = Vec::with_capacity(header.head_len as usize);
                message.encode(&mut bytes);
                bytes.into()
            }
            Head::Bytes(bytes) => bytes,
        };
        let frame = Waiting { header, head, payload, until, cost };
        let mut state = self.0.lock();
        if state.closed {
            return false;
        }
        state.bytes += frame.len();
        state.waiting.push_back(frame);
        let over = (state.bytes > state.unseen).then(|| state.sift(Instant::now()));
        let writer = state.writer.take();
        drop(state);
        // Freed while others push.
        drop(over);
        if let Some(writer) = writer {
            writer.wake();
        }
        true
    }

    /// Takes out a request that nobody waits for any more, unless the writer has it.
    pub fn take_back(&self, id: u64) {
        let mut state = self.0.lock();
        let Some(at) = state.waiting.iter().position(|frame| frame.header.id == id) else { return };
        let taken_back = state.waiting.remove(at);
        state.bytes -= taken_back.as_ref().map_or(0, Waiting::len);
        drop(state);
        // Freed while others push.
        drop(taken_back);
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
        state.waiting.is_empty() && !state.writing
    }

    /// Writes frames until the queue is closed and empty, or the stream fails.
    pub async fn write_to(
        &self,
        mut io: impl AsyncWrite + Unpin,
        progress: &AtomicU64,
        user: &dyn User,
    ) -> io::Result<()> {
        let mut leaving = Leaving { queue: self, user, batch: Batch::default() };
        let mut taken = Vec::new();
        while let Some(now) = self.next(&mut taken, user).await {
            leaving.batch.clear();
            let frames = taken.drain(..).filter(|frame| !frame.is_over(now));
            frames.for_each(|frame| leaving.batch.add(frame, now));
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

    /// Takes the next frames, and says when; `None` at the end.
    async fn next(&self, taken: &mut Vec<Waiting>, user: &dyn User) -> Option<Instant> {
        let slept = {
            let mut state = self.0.lock();
            state.writing = false;
            state.waiting.is_empty()
        };
        if slept {
            poll_fn(|cx| {
                let mut state = self.0.lock();
                if state.closed || !state.waiting.is_empty() {
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
        let now = Instant::now();
        let mut state = self.0.lock();
        state.take(taken, now);
        (!taken.is_empty() || !state.closed).then_some(now)
    }
}

#[cfg(test)]
mod tests;
