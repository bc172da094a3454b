//! The calls of one connection that are in flight, and the memory that their answers land in.
//!
//! Invariants: every call ends exactly once, by its answer, by being left, or by the end of the
//! connection. Memory that was given to a call belongs to the connection until the answer came or
//! nobody can write to it any more, whether somebody still waits for it or not.

use crate::buffer::Buffer;
use crate::sync::Mutex;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use tokio::sync::oneshot;
use weft_proto::{Error, Result};

/// Most bytes of memory of calls that were left, which the other side does not answer. More are
/// worth a new connection.
const MAX_LEFT: usize = 256 << 20;

/// An answer as it came.
pub(super) struct Raw {
    pub head: Bytes,
    pub payload: Vec<Buffer>,
}

/// A call that has not ended, or memory of one that was left.
pub(super) struct Call {
    pub into: Vec<Buffer>,
    /// Bytes of its payload, which the other side may still read.
    pub sent: usize,
    /// Who waits for the answer.
    pub caller: Option<oneshot::Sender<Result<Raw>>>,
}

#[derive(Default)]
struct State {
    // Ordered: when all of them fail, they do so in the order in which they were asked.
    calls: BTreeMap<u64, Call>,
    /// Bytes of memory of calls that were left.
    left: usize,
    /// Why no call can start any more.
    dead: Option<Error>,
}

#[derive(Default)]
pub(super) struct Calls(Mutex<State>);

impl Calls {
    /// Enters a call with so many bytes of payload and has it sent; `ask` is shown its memory,
    /// which stays where it is. Error: why the connection is over.
    pub fn begin(
        &self,
        id: u64,
        into: Vec<Buffer>,
        sent: usize,
        ask: impl FnOnce(&[Buffer]),
    ) -> Result<oneshot::Receiver<Result<Raw>>> {
        let (caller, answered) = oneshot::channel();
        let mut state = self.0.lock();
        if let Some(error) = &state.dead {
            return Err(error.clone());
        }
        let empty = into.is_empty();
        let call = state.calls.entry(id).or_insert(Call { into, sent, caller: Some(caller) });
        if empty {
            drop(state);
            ask(&[]);
        } else {
            // Under the lock, so that the end of the connection does not take the memory away.
            ask(&call.into);
        }
        Ok(answered)
    }

    /// The call whose answer came. `None`: it ended before.
    pub fn answered(&self, id: u64) -> Option<Call> {
        let mut state = self.0.lock();
        let call = state.calls.remove(&id)?;
        if call.caller.is_none() {
            state.left -= call.bytes();
        }
        Some(call)
    }

    /// Nobody waits for this answer any more. `keeps`: its memory may still be written to. False:
    /// so much of that was left that it is time to end the connection.
    pub fn leave(&self, id: u64, keeps: bool) -> bool {
        let mut state = self.0.lock();
        let Entry::Occupied(mut call) = state.calls.entry(id) else { return true };
        if !keeps || call.get().bytes() == 0 {
            call.remove();
            return true;
        }
        call.get_mut().caller = None;
        let bytes = call.get().bytes();
        state.left += bytes;
        state.left <= MAX_LEFT
    }

    /// From now on no call starts. Answers those in flight, with their memory; `None` if this was
    /// said before.
    pub fn end(&self, why: &Error) -> Option<impl ExactSizeIterator<Item = Call> + use<>> {
        let mut state = self.0.lock();
        if state.dead.is_some() {
            return None;
        }
        state.dead = Some(why.clone());
        state.left = 0;
        Some(std::mem::take(&mut state.calls).into_values())
    }

    /// Why no call can start any more.
    pub fn why_dead(&self) -> Option<Error> {
        self.0.lock().dead.clone()
    }
}

impl Call {
    fn bytes(&self) -> usize {
        self.sent + self.into.iter().map(|buffer| buffer.len()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_proto::ErrorKind;

    #[test]
    fn memory_of_calls_that_were_left_is_bounded() {
        let calls = Calls::default();
        let begin = |id| drop(calls.begin(id, vec![Buffer::take(64 << 20)], 0, |_| {}).unwrap());
        (0..5).for_each(begin);
        assert!((0..4).all(|id| calls.leave(id, true)));
        let answered = calls.answered(0).unwrap();
        assert!(answered.caller.is_none() && answered.bytes() == 64 << 20);
        assert!(calls.leave(4, true) && calls.leave(99, true));
        begin(5);
        assert!(!calls.leave(5, true));
        let end = Error::new(ErrorKind::Unavailable, "over");
        begin(6);
        assert!(calls.leave(6, false), "nobody writes to it");
        assert_eq!(calls.end(&end).unwrap().len(), 5);
        assert!(calls.end(&end).is_none());
        assert_eq!(calls.begin(7, Vec::new(), 0, |_| {}).err(), Some(end));
    }
}
