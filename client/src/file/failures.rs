//! The failures of one file, and who was told of them.
//!
//! Invariant (I8): each handle is told of a failure once. Of what is lost by it those are told who
//! wrote it, as long as they have the file open; if one of them has closed it since, or the last
//! leaves before any has heard of it, who syncs is told.

use super::buffer::BufferNo;
use weft_proto::{Error, Result};

#[derive(Default)]
pub(super) struct Failures {
    /// How many there were, and the last.
    count: u64,
    last: Option<Error>,
    /// The last by which something was lost, and by what.
    lost: u64,
    loss: Option<Error>,
    /// The first by which something was lost that nobody has heard of who wrote it, or syncs.
    unheard: Option<u64>,
    /// What is in buffers with lower numbers was closed by who wrote it.
    closed_below: BufferNo,
    /// Handles that write.
    writers: usize,
    /// The file could not be made, as who syncs was told: with it goes what is written to it.
    not_made: bool,
}

impl Failures {
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether nobody has to hear any more of what is lost.
    pub fn are_heard(&self) -> bool {
        self.unheard.is_none()
    }

    /// The failure of which whoever has heard of none is told.
    pub fn of_all(&self) -> Option<Error> {
        self.since(&mut 0).err()
    }

    /// Something failed, and is tried again.
    pub fn fail(&mut self, error: Error) {
        self.count += 1;
        self.last = Some(error);
    }

    /// Something is lost: what is in these buffers. Answers whether who syncs has to be told.
    pub fn lose(&mut self, buffers: &[BufferNo], error: Error) -> bool {
        self.fail(error.clone());
        self.lost = self.count;
        if self.not_made {
            return false;
        }
        self.loss = Some(error);
        let closed = buffers.iter().any(|no| *no < self.closed_below);
        if closed || self.writers == 0 {
            self.unheard = None;
            return true;
        }
        self.unheard.get_or_insert(self.count);
        false
    }

    /// The file could not be made.
    pub fn not_made(&mut self, error: Error) {
        self.lose(&[], error);
        (self.not_made, self.unheard) = (true, None);
    }

    /// What failed after the first `seen`, which moves on: what is lost by that, or the last.
    pub fn since(&self, seen: &mut u64) -> Result<()> {
        let before = std::mem::replace(seen, self.count);
        let error = match before {
            before if before == self.count => return Ok(()),
            before if before < self.lost => &self.loss,
            _ => &self.last,
        };
        error.clone().map_or(Ok(()), Err)
    }

    /// [`Self::since`] for who writes.
    pub fn tell_writer(&mut self, seen: &mut u64) -> Result<()> {
        let before = *seen;
        // Others have to hear of what was lost before it came.
        self.unheard = self.unheard.filter(|first| *first <= before);
        self.since(seen)
    }

    /// A handle writes from now on.
    pub fn begin_to_write(&mut self) {
        self.writers += 1;
    }

    /// What was written so far, to buffers with lower numbers, was closed.
    pub fn closed(&mut self, below: BufferNo) {
        self.closed_below = below;
    }

    /// A handle that writes has left. Answers what who syncs has to be told.
    pub fn end_to_write(&mut self) -> Option<Error> {
        self.writers -= 1;
        match self.writers {
            0 => self.unheard.take().and(self.loss.clone()),
            _ => None,
        }
    }

    /// The same file in another process: it had this failure, of which who writes has heard or not.
    pub fn adopt(&mut self, error: Error, heard: bool) {
        self.loss = Some(error.clone());
        self.fail(error);
        self.lost = self.count;
        self.unheard = (!heard).then_some(self.count);
    }
}
