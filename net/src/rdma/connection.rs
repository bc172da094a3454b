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
//! - the card is posted no more than its queue holds, and has no more reads under way than the
//!   other side bears, so that nothing stands still behind them;
//! - memory that was posted, and memory that the other side was told of, is kept until the
//!   completion or the answer, or until the queue pair was destroyed.

use super::memory::Domain;
use super::nic::{Completion, Done, Local, QueuePair};
use super::state::{Exposed, State, Wakers, wake};
use super::wire::FRAGMENT;
use crate::aligned::AlignedBuf;
use crate::sync::{Mutex, MutexGuard};
use crate::transport::Progress;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

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

impl Connection {
    /// Takes over a queue pair that is connected, or is about to be: nothing has been posted to it.
    pub fn new(qp: Box<dyn QueuePair>, domain: Arc<Domain>, side: Side) -> io::Result<Arc<Self>> {
        let mut memory = AlignedBuf::take(RECEIVES * FRAGMENT);
        let (local, registered) = domain.local(memory.as_mut_ptr(), memory.as_ref().len())?;
        let posted = (0..RECEIVES).try_for_each(|at| qp.receive(at as u64, part(local, at)));
        // Before the memory of those that it has taken is given back.
        posted.inspect_err(|_| qp.destroy())?;
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
    pub(super) fn posted(&self, mut state: MutexGuard<'_, State>) {
        let posted = self.post(&mut state);
        let wakers = self.fail_on(&mut state, posted);
        let let_go = std::mem::take(&mut state.let_go);
        drop(state);
        wake(wakers);
        drop(let_go);
    }

    /// Takes what the card has done and posts what there is room for then. Answers whether there
    /// was anything.
    pub fn advance(&self) -> io::Result<bool> {
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
        let wakers = self.fail_on(&mut state, posted);
        let why = state.over.clone();
        let let_go = std::mem::take(&mut state.let_go);
        drop(state);
        if let Some(receiver) = receiver {
            receiver.wake();
        }
        wake(wakers);
        drop(let_go);
        match why {
            Some(why) => Err(io::Error::other(why.to_string())),
            None => Ok(any),
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
        let wakers = state.wakers();
        drop(state);
        wake(wakers);
    }

    /// The other side has said that nothing more comes.
    pub fn was_closed(&self) -> bool {
        self.state.lock().last_came
    }

    /// What has left, or does not leave any more, since this was last asked: frames with a cost,
    /// and their costs.
    pub fn take_left(&self) -> (usize, usize) {
        std::mem::take(&mut self.state.lock().left)
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
        // What does not leave any more is nobody's to wait for.
        for cost in state.frames.drain(..).filter_map(|frame| frame.cost) {
            state.left = (state.left.0 + 1, state.left.1 + cost);
        }
        for posted in state.posted.drain(..) {
            state.left = (state.left.0 + posted.frames, state.left.1 + posted.cost);
        }
        state.reads.clear();
        state.being_read.clear();
        // Answers that came are still to be taken: how long they are is kept.
        state.exposed.values_mut().for_each(Exposed::hide);
        state.landings.clear();
        state.landing_pieces = 0;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end("dropped");
        // Before the queue pair, which may be the last to keep the device open.
        let state = self.state.get_mut();
        state._memory.clear();
        state.posted.clear();
        state.exposed.clear();
    }
}

/// The memory of one message.
pub(super) fn part(all: Local, slot: usize) -> Local {
    // SAFETY: there are as many parts as slots.
    Local { start: unsafe { all.start.add(slot * FRAGMENT) }, len: FRAGMENT, key: all.key }
}
