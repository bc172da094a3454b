//! One connection: what is posted to its queue pair, and what has come through it.
//!
//! Frames leave in messages of [`FRAGMENT`] bytes at most, many small ones in one and a long one in
//! several. Payloads are not in them: the server reads that of a request from the caller's memory
//! and writes that of an answer there, before the message with its frame.
//!
//! Invariants:
//! - no message is sent that the other side has no memory for: each message with parts of frames
//!   takes one of [`WINDOW`] credits, which come back when it was taken. Those with nothing but
//!   credits take none: each tells of half a window, so that two at most can be under way, which is
//!   what the other side keeps memory for besides;
//! - the card is posted no more than its queue holds, and has no more reads under way than the other
//!   side bears, so that nothing stands still behind them;
//! - memory that was posted, and memory that the other side was told of, is kept until the
//!   completion or the answer, or until the queue pair was destroyed.

use super::memory::{Domain, Registered};
use super::nic::{Completion, Done, Local, QueuePair};
use super::wire::{FRAGMENT, Piece};
use crate::aligned::AlignedBuf;
use crate::sync::Mutex;
use crate::transport::Progress;
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use tokio::sync::oneshot;

/// Messages with parts of frames that the other side takes without having said so.
pub(super) const WINDOW: usize = 14;
/// Messages that there is memory for.
pub(crate) const RECEIVES: usize = WINDOW + 2;
/// Credits that are told of by a message of their own.
pub(super) const OWED: usize = WINDOW / 2;
/// Requests that the queue of a card holds, besides those for messages with nothing but credits.
pub(super) const SLOTS: usize = 126;
/// What a card's queue for requests must hold.
pub(crate) const SENDS: usize = SLOTS + 2;
/// Writes in a row that the card does not tell of.
pub(super) const QUIET: usize = 16;

/// Which end this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Caller,
    Server,
}

pub(super) struct Connection {
    pub side: Side,
    pub(super) qp: Box<dyn QueuePair>,
    pub(super) domain: Arc<Domain>,
    pub(super) state: Mutex<State>,
    /// What came, and what left.
    pub heard: Progress,
    pub sent: Progress,
}

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

impl Connection {
    /// Takes over a queue pair that is connected, or is about to be: nothing has been posted to it.
    pub fn new(qp: Box<dyn QueuePair>, domain: Arc<Domain>, side: Side) -> io::Result<Arc<Self>> {
        let mut memory = AlignedBuf::take(RECEIVES * FRAGMENT);
        let (local, registered) = domain.local(memory.as_mut_ptr(), memory.as_ref().len())?;
        for slot in 0..RECEIVES {
            qp.receive(slot as u64, part(local, slot))?;
        }
        let state = State {
            credits: WINDOW,
            received: Some((memory, local)),
            _memory: registered.into_iter().collect(),
            ..State::default()
        };
        let (heard, sent) = (Progress::default(), Progress::default());
        Ok(Arc::new(Self { side, qp, domain, state: Mutex::new(state), heard, sent }))
    }

    pub fn queue_pair(&self) -> &dyn QueuePair {
        &*self.qp
    }

    /// Posts what there is room for. What is refused ends the connection.
    pub(super) fn posted(&self, mut state: std::sync::MutexGuard<'_, State>) -> bool {
        let posted = self.post(&mut state);
        let wakers = self.fail_on(&mut state, posted);
        let lives = state.over.is_none();
        drop(state);
        wake(wakers);
        lives
    }

    /// Takes what the card has done and posts what there is room for then. Answers whether there was
    /// anything, and what has left since this was last asked: frames with a cost, and their costs.
    pub fn advance(&self) -> io::Result<(bool, (usize, usize))> {
        let mut state = self.state.lock();
        if let Some(why) = &state.over {
            return Err(io::Error::other(why.to_string()));
        }
        let mut ended = std::mem::take(&mut state.ended);
        let polled = self.qp.poll(&mut ended);
        let any = !ended.is_empty();
        let mut taken = Ok(());
        for completion in ended.drain(..) {
            if taken.is_ok() {
                taken = self.take(&mut state, completion);
            }
        }
        state.ended = ended;
        let posted = taken.and(polled).and_then(|()| self.post(&mut state));
        let receiver = state.receiver.take_if(|_| any);
        let left = std::mem::take(&mut state.left);
        let wakers = self.fail_on(&mut state, posted);
        let why = state.over.clone();
        drop(state);
        if let Some(receiver) = receiver {
            receiver.wake();
        }
        wake(wakers);
        match why {
            Some(why) => Err(io::Error::other(why.to_string())),
            None => Ok((any, left)),
        }
    }

    fn take(&self, state: &mut State, completion: Completion) -> io::Result<()> {
        let Completion { id, done } = completion;
        match done {
            Done::Received(len) => {
                self.heard.fetch_add(1, Ordering::Relaxed);
                return self.take_message(state, id as usize, len);
            }
            Done::Read => {
                self.heard.fetch_add(1, Ordering::Relaxed);
                let fetch = state.being_read.remove(&id);
                state.reading -= 1;
                state.queued -= 1;
                fetch.iter().for_each(|fetch| fetch.one_more());
            }
            Done::Sent | Done::Written => {
                self.sent.fetch_add(1, Ordering::Relaxed);
                // All before it is done, too.
                while state.posted.front().is_some_and(|posted| posted.id <= id) {
                    let Some(posted) = state.posted.pop_front() else { break };
                    state.queued -= 1;
                    state.left.0 += posted.frames;
                    state.left.1 += posted.cost;
                }
            }
        }
        Ok(())
    }

    /// Nothing waits to leave or is leaving.
    pub fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.frames.is_empty() && state.posted.is_empty()
    }

    /// Takes no more frames.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let pump = state.pump.take();
        self.posted(state);
        pump.into_iter().for_each(Waker::wake);
    }

    /// Everything that was pushed has left, and so has the word that nothing more comes.
    pub fn has_left(&self) -> bool {
        let state = self.state.lock();
        state.last_posted && state.posted.is_empty()
    }

    /// Who takes what has come has found the end, or is gone.
    pub fn is_drained(&self) -> bool {
        self.state.lock().drained
    }

    /// Nobody takes what comes any more.
    pub fn drain(&self) {
        let mut state = self.state.lock();
        state.drained = true;
        wake(state.wakers());
    }

    /// The other side has said that nothing more comes.
    pub fn was_closed(&self) -> bool {
        self.state.lock().last_came
    }

    /// Who is woken when the connection is closed, or over.
    pub fn pump_waits(&self, waker: &Waker) {
        self.state.lock().pump = Some(waker.clone());
    }

    /// Ends the connection; when this has returned, nobody uses memory of it.
    pub fn end(&self, why: &str) {
        let mut state = self.state.lock();
        self.end_locked(&mut state, why);
        let wakers = state.wakers();
        drop(state);
        wake(wakers);
    }

    /// Ends the connection if something was refused. Answers whom to wake then.
    pub(super) fn fail_on(&self, state: &mut State, posted: io::Result<()>) -> Wakers {
        let Err(error) = posted else { return Wakers::default() };
        self.end_locked(state, &error.to_string());
        state.wakers()
    }

    fn end_locked(&self, state: &mut State, why: &str) {
        if state.over.is_some() {
            return;
        }
        state.over = Some(why.into());
        state.closed = true;
        self.qp.destroy();
        state.frames.clear();
        state.reads.clear();
        state.being_read.clear();
        state.posted.clear();
        state.exposed.clear();
        state.landings.clear();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end("dropped");
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

/// The memory of one message.
pub(super) fn part(all: Local, slot: usize) -> Local {
    // SAFETY: there are as many parts as slots.
    Local { start: unsafe { all.start.add(slot * FRAGMENT) }, len: FRAGMENT, key: all.key }
}
