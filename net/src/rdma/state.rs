//! What there is of a connection.

use super::memory::Registered;
use super::nic::{Completion, Local};
use super::wire::Piece;
use crate::aligned::AlignedBuf;
use crate::frame::{HEADER_LEN, Header, millis_left};
use crate::sync::Mutex;
use bytes::Bytes;
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use tokio::sync::oneshot;
use tokio::time::Instant;

#[derive(Default)]
pub(super) struct State {
    /// Why it is over.
    pub(super) over: Option<Arc<str>>,
    /// Takes no more frames.
    pub(super) closed: bool,
    /// The last message was posted; has come.
    pub(super) last_posted: bool,
    pub(super) last_came: bool,
    /// Nobody takes any more of what has come.
    pub(super) drained: bool,

    pub(super) credits: usize,
    /// Requests in the card's queue, and writes at its end that it does not tell of.
    pub(super) queued: usize,
    pub(super) quiet: usize,
    pub(super) frames: VecDeque<Outgoing>,
    /// What nobody waits for any more, until somebody frees it who does not hold up the others.
    pub(super) let_go: Vec<LetGo>,
    pub(super) reads: VecDeque<Read>,
    pub(super) reading: usize,
    /// By number; the card is done with them in this order, but for the reads.
    pub(super) posted: VecDeque<Posted>,
    pub(super) being_read: HashMap<u64, Fetched>,
    pub(super) next: u64,
    /// Memory of the messages that wait to be taken, in their order.
    pub(super) arrived: VecDeque<(usize, usize)>,
    pub(super) received: Option<(AlignedBuf, Local)>,
    /// Messages that were taken and not told of.
    pub(super) owed: usize,

    /// What the other side may use for a request, by the request's number.
    pub(super) exposed: HashMap<u64, Exposed>,
    /// Where the caller wants the payloads of answers, and of how many pieces that is.
    pub(super) landings: HashMap<u64, Vec<Piece>>,
    pub(super) landing_pieces: usize,

    pub(super) pump: Option<Waker>,
    pub(super) receiver: Option<Waker>,
    pub(super) ended: Vec<Completion>,
    /// Frames that have left and had a cost, and the sum of their costs.
    pub(super) left: (usize, usize),
    pub(super) _memory: Vec<Registered>,
}

/// A frame on its way out.
pub(super) struct Outgoing {
    pub(super) header: Header,
    /// All but payloads that cross by themselves, with room for the header.
    pub(super) bytes: Vec<u8>,
    /// Bytes that were posted.
    pub(super) at: usize,
    /// When its caller gives up. What has a cost has no such end.
    pub(super) until: Option<Instant>,
    /// What is written to the other side's memory before it.
    pub(super) writes: VecDeque<(Bytes, Piece)>,
    pub(super) cost: Option<usize>,
}

/// What the card was asked for, that it does in order.
pub(super) struct Posted {
    pub(super) id: u64,
    /// Of a message.
    pub(super) frames: usize,
    pub(super) cost: usize,
    pub(super) _keep: Keep,
}

/// What lies where the card is at work.
#[derive(Default)]
pub(super) struct Keep {
    pub(super) _buffer: Option<AlignedBuf>,
    pub(super) _bytes: Vec<Bytes>,
    pub(super) _registered: Vec<Registered>,
}

pub(super) struct Read {
    pub(super) from: Piece,
    pub(super) into: Local,
    pub(super) fetch: Fetched,
}

/// A payload that is being fetched; the last of its reads hands it over.
pub(super) type Fetched = Arc<Fetching>;

pub(super) struct Fetching(pub(super) Mutex<Option<Landing>>);

pub(super) struct Landing {
    pub(super) buffer: AlignedBuf,
    pub(super) _registered: Option<Registered>,
    pub(super) left: usize,
    pub(super) done: oneshot::Sender<AlignedBuf>,
}

/// What a request shows the other side of this process's memory.
pub(super) struct Exposed {
    /// All of the request has left, so that an answer may come.
    pub(super) asked: bool,
    /// Bytes that the payload of its answer has, if it is to be written.
    pub(super) landing: Option<usize>,
    pub(super) _sources: Vec<Bytes>,
    pub(super) _registered: Vec<Registered>,
    pub(super) _shown: Vec<Box<dyn Any + Send>>,
}

/// A request that does not leave, and what it showed the other side.
pub(super) type LetGo = (Outgoing, Option<Exposed>);

/// Who is woken: the pump, and the receiver.
pub(super) type Wakers = [Option<Waker>; 2];

impl Exposed {
    /// Nobody uses this memory any more.
    pub(super) fn hide(&mut self) {
        self._sources.clear();
        self._registered.clear();
        self._shown.clear();
    }
}

impl Outgoing {
    /// Nobody waits for its answer any more, and nothing of it has left.
    fn is_over(&self, now: Instant) -> bool {
        self.at == 0 && self.until.is_some_and(|until| until <= now)
    }

    /// The bytes that are to leave next. It says how much time its caller has left when the first
    /// do.
    pub(super) fn rest(&mut self, now: Instant) -> &[u8] {
        if self.at == 0 {
            if let Some(until) = self.until {
                self.header.deadline_ms = millis_left(until, now);
            }
            self.bytes[..HEADER_LEN].copy_from_slice(&self.header.encode());
        }
        &self.bytes[self.at..]
    }
}

impl State {
    /// The frame that leaves next. Those before it that nobody waits for any more are let go: they
    /// would be carried out for nobody, and perhaps after what undoes them. To forget their memory
    /// can take long, and is left to who has let go of the lock.
    pub(super) fn next_frame(&mut self, now: Instant) -> Option<&mut Outgoing> {
        while let Some(over) = self.frames.pop_front_if(|frame| frame.is_over(now)) {
            let exposed = self.exposed.remove(&over.header.id);
            self.let_go.push((over, exposed));
        }
        self.frames.front_mut()
    }

    /// Takes out where the payload of an answer goes.
    pub(super) fn landings_of(&mut self, id: u64) -> Option<Vec<Piece>> {
        let landings = self.landings.remove(&id);
        self.landing_pieces -= landings.as_ref().map_or(0, Vec::len);
        landings
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn wakers(&mut self) -> Wakers {
        [self.pump.take(), self.receiver.take()]
    }
}

pub(super) fn wake(wakers: Wakers) {
    wakers.into_iter().flatten().for_each(Waker::wake);
}
