//! What goes into the next commit, and where what was appended goes.
//!
//! Invariant: what was appended is in the file once. Where it goes to the end, whatever that is,
//! and nobody knows whether it did, it is not sent again; where it goes to a place, it goes to no
//! other.

use super::buffer::BufferNo;
use super::inode::File;
use super::outcome::Outcome;
use super::piece::Batch;
use super::state::State;
use crate::meta::Failed;
use weft_net::buggify::{self, Point};
use weft_proto::ErrorKind;

/// Pieces in one commit.
const MAX_PIECES: usize = 4096;

/// What is committed next.
pub(super) struct Next {
    pub batch: Batch,
    /// It goes wherever the file ends.
    pub append: bool,
    /// It was appended, and goes where the file ended.
    pub placed: bool,
    /// And only if nothing has changed the file since this version.
    pub expects: Option<u64>,
}

impl File {
    /// What is committed next. What was appended goes to its place where that is the end of the
    /// file for certain, or if it may be there already: told twice, it is there once. Else it goes
    /// wherever the file ends.
    pub(super) fn next_commit(&self, state: &mut State, below: BufferNo) -> Next {
        // What comes behind a buffer that was lost goes by itself.
        let first = state.dirty.placed_below().or_else(|| state.dirty.first_gap());
        let below = first.map_or(below, |first| first.min(below));
        let mut batch = state.dirty.batch(below, most_pieces());
        if state.dirty.are_spilled(&batch.buffers) {
            // What it was to make room for is committed, or lost.
            self.drop_spilled(state, &mut batch, below);
        }
        if !state.dirty.append || batch.pieces.is_empty() {
            return Next { batch, append: false, placed: false, expects: None };
        }
        if state.dirty.placed_below().is_some() {
            return Next { batch, append: false, placed: true, expects: None };
        }
        let size = state.attr.size;
        let follows = state.dirty.appended_in(&batch.buffers).is_none_or(|start| start == size);
        if follows && self.is_alone(state) {
            let expects = Some(state.attr.data_version);
            return Next { batch, append: false, placed: true, expects };
        }
        self.drop_spilled(state, &mut batch, below);
        Next { append: !batch.pieces.is_empty(), batch, placed: false, expects: None }
    }

    /// What lies inline stays there.
    fn drop_spilled(&self, state: &mut State, batch: &mut Batch, below: BufferNo) {
        if !state.dirty.has_spilled() {
            return;
        }
        let segments = state.dirty.drop_spilled();
        self.discard_unsent(segments, &[]);
        let dead = std::mem::take(&mut batch.dead);
        *batch = state.dirty.batch(below, most_pieces());
        batch.dead.extend(dead);
        state.forget_times();
    }

    /// The file is not as it was known: an earlier append of this mount, that was given up, came
    /// late. What was to go to the old end goes to the new one, wherever that is.
    pub(super) fn ends_elsewhere(&self) -> Outcome {
        self.context.leases.unsure_of(self.ino);
        Outcome::Again(Vec::new())
    }

    /// What was appended may be where it was thought to go, although that was not answered: it goes
    /// nowhere else from now on.
    pub(super) fn may_be_placed<T>(
        &self,
        placed: bool,
        expects: Option<u64>,
        batch: &Batch,
        committed: &Result<T, Failed>,
    ) {
        // These had no effect, whenever they were answered.
        let none = |kind| match kind {
            ErrorKind::InlineFull | ErrorKind::Misplaced => true,
            ErrorKind::Stale => expects.is_some(),
            _ => false,
        };
        if let Err(Failed { error, ambiguous: true }) = committed
            && placed
            && !none(error.kind)
        {
            self.state.lock().dirty.place(&batch.buffers);
        }
    }
}

fn most_pieces() -> usize {
    if buggify::fires(Point::TwoPieces) { 2 } else { MAX_PIECES }
}
