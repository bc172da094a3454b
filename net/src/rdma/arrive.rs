//! What comes: messages with parts of frames, and payloads that are fetched.

use super::connection::{Connection, WINDOW, part};
use super::nic::Local;
use super::state::{Fetching, Landing, Read, State, wake};
use super::wire::{FRAGMENT, Kind, PREFIX, Piece, Prefix};
use crate::aligned::AlignedBuf;
use crate::frame::Broken;
use crate::sync::Mutex;
use std::io;
use std::sync::Arc;
use std::task::Waker;
use tokio::sync::oneshot;

/// Pieces of memory that the requests of one connection may name for their answers, all together:
/// what they take here is in nobody's budget.
pub(super) const MAX_LANDINGS: usize = 16 << 10;

impl Connection {
    /// Fetches the payload of a request, from where its caller says that it is.
    pub fn fetch(
        &self,
        mut into: AlignedBuf,
        sources: Vec<Piece>,
    ) -> Result<oneshot::Receiver<AlignedBuf>, Broken> {
        let len = into.as_ref().len();
        let start = into.as_mut_ptr();
        // Its caller would wait for ever for an answer that nobody gives.
        let known = self.domain.local(start, len).inspect_err(|error| self.end(&error.to_string()));
        let (local, registered) = known?;
        let (done, fetched) = oneshot::channel();
        let left = sources.len();
        let landing = Landing { buffer: into, _registered: registered, left, done };
        let fetch = Arc::new(Fetching(Mutex::new(Some(landing))));
        let mut state = self.state.lock();
        if let Some(why) = &state.over {
            return Err(Broken::Io(io::Error::other(why.to_string())));
        }
        let mut at = 0;
        for from in sources {
            // SAFETY: the pieces together are as long as the buffer.
            let start = unsafe { local.start.add(at) };
            at += from.len as usize;
            let into = Local { start, len: from.len as usize, key: local.key };
            state.reads.push_back(Read { from, into, fetch: fetch.clone() });
        }
        self.posted(state);
        Ok(fetched)
    }

    pub(super) fn take_message(
        &self,
        state: &mut State,
        slot: usize,
        len: usize,
    ) -> io::Result<()> {
        let garbage = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let (memory, _) = state.received.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let at = slot * FRAGMENT;
        let message = memory.as_ref().get(at..at + len.min(FRAGMENT));
        let message =
            message.ok_or_else(|| garbage(format!("memory {slot}, which is not there")))?;
        let prefix = Prefix::decode(message).map_err(|e| garbage(e.to_string()))?;
        state.credits += usize::from(prefix.credits);
        if state.credits > WINDOW {
            return Err(garbage(format!("{} credits of {WINDOW}", state.credits)));
        }
        match prefix.kind {
            Kind::Credits => self.receive_again(state, slot)?,
            Kind::Frames => state.arrived.push_back((slot, len)),
            Kind::Last => state.last_came = true,
        }
        Ok(())
    }

    fn receive_again(&self, state: &State, slot: usize) -> io::Result<()> {
        let (_, local) = state.received.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        self.qp.receive(slot as u64, part(*local, slot))
    }

    /// Appends what the next message has of frames. `Ok(false)`: nothing has come, and who asks is
    /// woken when something does. Error: nothing comes any more.
    pub fn take_arrived(&self, to: &mut Vec<u8>, waker: &Waker) -> Result<bool, Broken> {
        let mut state = self.state.lock();
        let Some((slot, len)) = state.arrived.pop_front() else {
            let broken = match &state.over {
                _ if state.last_came => Broken::Closed,
                Some(why) => Broken::Io(io::Error::other(why.to_string())),
                None => {
                    state.receiver = Some(waker.clone());
                    return Ok(false);
                }
            };
            state.drained = true;
            let wakers = state.wakers();
            drop(state);
            wake(wakers);
            return Err(broken);
        };
        let (memory, _) = state.received.as_ref().ok_or(Broken::Closed)?;
        let at = slot * FRAGMENT;
        to.extend_from_slice(&memory.as_ref()[at + PREFIX..at + len]);
        if state.over.is_none() {
            let again = self.receive_again(&state, slot);
            state.owed += 1;
            let posted = again.and_then(|()| self.post(&mut state));
            let wakers = self.fail_on(&mut state, posted);
            let let_go = std::mem::take(&mut state.let_go);
            drop(state);
            wake(wakers);
            drop(let_go);
        }
        Ok(true)
    }

    /// The other side has answered a request: it uses nothing of it any more. Answers how long the
    /// payload is that it was to write. Error: `Garbage`, it cannot know this request yet, of which
    /// it would be told with memory that is somebody else's by then.
    pub fn answered(&self, id: u64) -> Result<Option<usize>, Broken> {
        let mut state = self.state.lock();
        // That ends the connection, and the memory with it: some of it may be told of until then.
        if state.exposed.get(&id).is_some_and(|exposed| !exposed.asked) {
            return Err(Broken::Garbage("an answer to a request that has not left".into()));
        }
        let exposed = state.exposed.remove(&id);
        drop(state);
        Ok(exposed.and_then(|exposed| exposed.landing))
    }

    /// A request has come: the payload of its answer goes there. One that asks for too many pieces
    /// gets it after the head.
    pub fn land_at(&self, id: u64, landings: Vec<Piece>) {
        if id == 0 || landings.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        drop(state.landings_of(id));
        if state.landing_pieces + landings.len() <= MAX_LANDINGS {
            state.landing_pieces += landings.len();
            state.landings.insert(id, landings);
        }
    }
}

impl Fetching {
    /// One more of its reads has ended.
    pub(super) fn one_more(&self) {
        let mut landing = self.0.lock();
        let Some(mut now) = landing.take() else { return };
        now.left -= 1;
        if now.left > 0 {
            *landing = Some(now);
            return;
        }
        drop(landing);
        // Who waits for it may be gone.
        let _ = now.done.send(now.buffer);
    }
}
