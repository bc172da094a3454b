//! What there is of a connection.

use super::memory::Registered;
use super::nic::{Completion, Local};
use super::wire::Piece;
use crate::aligned::AlignedBuf;
use crate::sync::Mutex;
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use tokio::sync::oneshot;

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
    /// Where the caller wants the payloads of answers.
    pub(super) landings: HashMap<u64, Vec<Piece>>,

    pub(super) pump: Option<Waker>,
    pub(super) receiver: Option<Waker>,
    pub(super) ended: Vec<Completion>,
    /// Frames that have left and had a cost, and the sum of their costs.
    pub(super) left: (usize, usize),
    pub(super) _memory: Vec<Registered>,
}

/// A frame on its way out.
pub(super) struct Outgoing {
    /// All but payloads that cross by themselves.
    pub(super) bytes: Vec<u8>,
    pub(super) at: usize,
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
    /// Bytes that the payload of its answer has, if it is to be written.
    pub(super) landing: Option<usize>,
    pub(super) _sources: Vec<Bytes>,
    pub(super) _registered: Vec<Registered>,
}

/// Who is woken: the pump, and the receiver.
pub(super) type Wakers = [Option<Waker>; 2];

impl Exposed {
    /// Nobody uses this memory any more.
    pub(super) fn hide(&mut self) {
        self._sources.clear();
        self._registered.clear();
    }
}

impl State {
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
