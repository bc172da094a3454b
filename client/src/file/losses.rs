//! What is lost of a file, and how that is told: to its handles, and to who syncs ([`Failures`]).
//!
//! Invariant: what who syncs has to be told is there for them before anybody can see that something
//! is lost, so that who waited for it misses nothing.
//!
//! [`Failures`]: super::failures::Failures

use super::buffer::BufferNo;
use super::inode::File;
use super::state::State;
use tracing::warn;
use weft_proto::{Error, InodeId, Result, v1};

impl File {
    /// This mount has made the file in this directory: who syncs that is told what is lost of it.
    pub(super) fn was_made_in(&self, dir: InodeId) {
        let _ = self.made_in.set(dir);
    }

    /// Failures that a new handle need not be told.
    pub fn failures(&self) -> u64 {
        self.state.lock().failures.count()
    }

    /// What failed after the first `seen`, which moves on.
    pub fn failure_since(&self, seen: &mut u64) -> Result<()> {
        self.state.lock().failures.since(seen)
    }

    /// What is in these buffers is lost, or what was set beside them.
    pub(super) fn lose(&self, state: &mut State, buffers: &[BufferNo], error: Error) {
        // It may be because of that.
        self.note_whether_made(state);
        if state.failures.lose(buffers, error.clone()) {
            self.tell_who_syncs(&error);
        }
    }

    /// Why the file could not be made is a failure of its handles.
    pub(super) fn note_not_made(&self) {
        if self.is_new() {
            self.note_whether_made(&mut self.state.lock());
        }
    }

    fn note_whether_made(&self, state: &mut State) {
        if let Some(error) = self.context.log.take_failure(self.ino) {
            warn!(ino = %self.ino, %error, "a new file is not made; who has it open will be told");
            state.failures.not_made(error);
        }
    }

    fn tell_who_syncs(&self, error: &Error) {
        self.context.log.lose(self.ino, self.made_in.get().copied(), error);
    }

    /// A handle that writes is no more. What nobody has heard of who wrote it is told to who syncs
    /// if this was the last.
    pub(super) fn tell_losses(&self, state: &mut State) {
        if let Some(error) = state.failures.end_to_write() {
            self.tell_who_syncs(&error);
        }
    }

    /// What of this the next process has to know.
    pub(super) fn hand_losses_over(&self, state: &State, of: &mut v1::OpenFile) {
        of.failure = state.failures.of_all().map(Into::into);
        of.heard = state.failures.are_heard();
        of.made_in = self.made_in.get().map_or(0, |dir| dir.0);
    }

    /// Takes [`Self::hand_losses_over`] over.
    pub(super) fn adopt_losses(&self, of: &v1::OpenFile) {
        if of.made_in != 0 {
            self.was_made_in(InodeId(of.made_in));
        }
        let Some(failure) = of.failure.clone().map(Error::from) else { return };
        // An older process keeps for who syncs, until the last leaves, what nobody is left to hear.
        let waits = !of.heard && of.handles.iter().any(|handle| handle.writes);
        self.state.lock().failures.adopt(failure.clone(), !waits);
        if !of.heard && !waits {
            self.tell_who_syncs(&failure);
        }
    }
}
