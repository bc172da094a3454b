//! Cards in memory.

use super::memory::Memory;
use crate::rdma::{Completion, Done, Local, Piece, QueuePair, RECEIVES, SENDS};
use crate::sync::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

/// Requests that a card does in a row, and reads that it has under way.
const BURST: usize = 2;
const READS: usize = 4;

/// A connection.
#[derive(Default)]
struct Wire {
    /// The caller's end and the server's.
    cards: [Card; 2],
    /// Why it is over, as far as both know.
    broken: Option<String>,
}

#[derive(Default)]
struct Card {
    /// What was posted and not done; done and not told of; and that has ended.
    requests: VecDeque<(u64, Request)>,
    quiet: usize,
    ended: VecDeque<Completion>,
    /// Memory for messages.
    receives: VecDeque<(u64, Local)>,
    waits: Option<Waker>,
    destroyed: bool,
}

enum Request {
    Send(Local),
    Write(Local, Piece, bool),
    Read(Local, Piece),
}

/// One end.
pub(super) struct End {
    wire: Arc<Mutex<Wire>>,
    side: usize,
    /// Of the caller and of the server.
    memory: [Memory; 2],
    armed: Arc<AtomicU64>,
}

impl Card {
    fn wake(&mut self) {
        self.waits.take().into_iter().for_each(Waker::wake);
    }
}

impl Wire {
    fn fail(&mut self, why: &str) {
        self.broken.get_or_insert_with(|| why.into());
        self.cards.iter_mut().for_each(Card::wake);
    }
}

impl End {
    /// Both ends of a connection, the caller's and the server's, with what their cards know.
    pub fn pair(memory: &[Memory; 2], armed: &Arc<AtomicU64>) -> [Self; 2] {
        let wire = Arc::<Mutex<Wire>>::default();
        let end =
            |side| Self { wire: wire.clone(), side, memory: memory.clone(), armed: armed.clone() };
        [0, 1].map(end)
    }

    fn post(&self, id: u64, request: Request) -> io::Result<()> {
        let mut wire = self.wire.lock();
        let card = &mut wire.cards[self.side];
        assert!(!card.destroyed, "posted to what was destroyed");
        if card.requests.len() + card.quiet >= SENDS {
            return Err(io::Error::other("the queue of the card is full"));
        }
        card.requests.push_back((id, request));
        card.wake();
        Ok(())
    }

    fn local(&self, at: Local) -> Result<*mut u8, String> {
        let found = self.memory[self.side].known().find(at.key, at.start.addr(), at.len);
        found.ok_or_else(|| format!("local memory {at:?} is not known"))
    }

    /// Uses memory of the other side, which its card does not forget meanwhile.
    fn remote(&self, at: Piece, act: impl FnOnce(*mut u8)) -> Result<(), String> {
        let known = self.memory[1 - self.side].known();
        let found = known.find(at.key, at.address as usize, at.len as usize);
        let Some(found) = found else {
            known.devices.strays.fetch_add(1, Ordering::SeqCst);
            return Err(format!("memory {at:?} of the other side is not known"));
        };
        act(found);
        Ok(())
    }

    /// Does one request. Whoever posted it keeps the memory while the connection is not over.
    fn step(&self, wire: &mut Wire, id: u64, request: Request) -> Result<(), String> {
        let copy = |from: *mut u8, to: *mut u8, len: usize| {
            // SAFETY: both runs are known to their cards, and kept while this lock is held.
            unsafe { std::ptr::copy(from, to, len) };
        };
        let (done, told) = match request {
            Request::Send(message) => {
                let other = &mut wire.cards[1 - self.side];
                let (at, into) = other.receives.pop_front().ok_or("nobody takes this message")?;
                if message.len > into.len {
                    return Err(format!("a message of {} bytes", message.len));
                }
                let known = self.memory[1 - self.side].known();
                if known.find(into.key, into.start.addr(), into.len).is_none() {
                    return Err("memory for messages that is not known".into());
                }
                drop(known);
                copy(self.local(message)?, into.start, message.len);
                other.ended.push_back(Completion { id: at, done: Done::Received(message.len) });
                other.wake();
                (Done::Sent, true)
            }
            Request::Write(from, to, told) => {
                let from_at = self.local(from)?;
                self.remote(to, |to| copy(from_at, to, from.len))?;
                (Done::Written, told)
            }
            Request::Read(into, from) => {
                let into_at = self.local(into)?;
                self.remote(from, |from| copy(from, into_at, into.len))?;
                (Done::Read, true)
            }
        };
        let card = &mut wire.cards[self.side];
        if told {
            card.ended.push_back(Completion { id, done });
            card.quiet = if done == Done::Read { card.quiet } else { 0 };
        } else {
            card.quiet += 1;
        }
        Ok(())
    }
}

// SAFETY: memory is used only under the lock, while this end is not destroyed.
unsafe impl QueuePair for End {
    fn send(&self, id: u64, message: Local) -> io::Result<()> {
        self.post(id, Request::Send(message))
    }

    fn write(&self, id: u64, from: Local, to: Piece, told: bool) -> io::Result<()> {
        self.post(id, Request::Write(from, to, told))
    }

    fn read(&self, id: u64, into: Local, from: Piece) -> io::Result<()> {
        self.post(id, Request::Read(into, from))
    }

    fn receive(&self, id: u64, into: Local) -> io::Result<()> {
        let mut wire = self.wire.lock();
        let receives = &mut wire.cards[self.side].receives;
        receives.push_back((id, into));
        match receives.len() > RECEIVES {
            true => Err(io::Error::other("more memory for messages than the card takes")),
            false => Ok(()),
        }
    }

    fn poll(&self, ended: &mut Vec<Completion>) -> io::Result<()> {
        let mut wire = self.wire.lock();
        for _ in 0..BURST {
            if wire.broken.is_some() {
                break;
            }
            if wire.cards[1 - self.side].destroyed {
                break;
            }
            let Some((id, request)) = wire.cards[self.side].requests.pop_front() else { break };
            if let Err(why) = self.step(&mut wire, id, request) {
                tracing::warn!(why, "a connection of the fabric ends");
                wire.fail(&why);
            }
        }
        let other_gone = wire.cards[1 - self.side].destroyed;
        ended.extend(wire.cards[self.side].ended.drain(..));
        match (&wire.broken, other_gone && ended.is_empty()) {
            (Some(why), _) => Err(io::Error::other(why.clone())),
            (None, true) => Err(io::ErrorKind::ConnectionReset.into()),
            (None, false) => Ok(()),
        }
    }

    fn arm(&self) -> io::Result<()> {
        self.armed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut wire = self.wire.lock();
        let over = wire.broken.is_some() || wire.cards[1 - self.side].destroyed;
        let card = &mut wire.cards[self.side];
        if over || !card.ended.is_empty() || !card.requests.is_empty() {
            return Poll::Ready(Ok(()));
        }
        card.waits = Some(cx.waker().clone());
        Poll::Pending
    }

    fn reads(&self) -> usize {
        READS
    }

    fn disconnect(&self) {}

    fn destroy(&self) {
        let mut wire = self.wire.lock();
        wire.cards[self.side].destroyed = true;
        wire.cards.iter_mut().for_each(Card::wake);
    }
}
