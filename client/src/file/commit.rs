//! From dirty buffers to committed extents: launch, wait until durable, commit, in order.
//!
//! Invariants: an extent is sent to the metadata group only after its segment is durable (I1), and
//! in the session that wrote the segment (I5); bytes stay in memory until the commit is answered,
//! so that a lost session costs a rewrite and not the data; what is given up is told (I8).

use super::buffer::BufferNo;
use super::flight::Flight;
use super::inode::File;
use super::next::Next;
use super::outcome::Outcome;
use super::piece::{Batch, PieceSource};
use super::waiting::Waiting;
use crate::locks::lost_locks;
use crate::meta::unexpected;
use crate::namespace::Slot;
use crate::types::Attr;
use std::sync::Arc;
use tokio::time::Instant;
use weft_net::trace::carried;
use weft_proto::planted::{self, Bug};
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, SegmentId, v1};

impl File {
    /// [`Self::commit_durable`] in the background.
    pub fn commit_behind(self: &Arc<Self>) {
        let file = self.clone();
        tokio::spawn(carried(async move { file.commit_durable().await }));
    }

    /// Commits what was written so far, in its place in the log if it has one. What is not
    /// committed when this ends is noted as a failure, unless the session of the place is over:
    /// then it stays. The caller holds `order`, and has waited for the log before if it has no
    /// place.
    pub(super) async fn flush_in_order(self: &Arc<Self>, slot: Option<&Slot>) {
        let (launched, below, failures, place) = {
            let state = &mut *self.state.lock();
            (self.close_all(state), state.dirty.next(), state.failures.count(), state.place)
        };
        self.launch(launched);
        let deadline = self.context.requests.deadline();
        loop {
            self.landed(below).await;
            match self.commit(below, slot).await {
                Outcome::Later => {
                    self.state.lock().displaced = true;
                    return;
                }
                Outcome::Committed => {}
                // Another close has launched what was to be inline.
                Outcome::Empty if self.state.lock().dirty.is_flying(below) => {}
                // Each time because a session died or a placement group was dropped.
                Outcome::Again(_) if Instant::now() < deadline => {}
                _ => break,
            }
        }
        let mut state = self.state.lock();
        let is_left = state.dirty.is_left(below) || state.waiting.is_more();
        // What comes from now on has no place yet.
        state.place = state.place.filter(|at| is_left || Some(*at) != place);
        state.displaced = is_left && (state.displaced || slot.is_some());
        if state.failures.count() == failures && state.dirty.is_left(below) {
            let what = "written data could not be committed in time; it will be tried again";
            state.failures.fail(Error::new(ErrorKind::TimedOut, what));
        }
    }

    /// Sends buffers that were just closed to storage.
    pub(super) fn launch(self: &Arc<Self>, buffers: Vec<BufferNo>) {
        for no in buffers {
            let (file, flight) = (self.clone(), Flight::new(self.clone(), no));
            tokio::spawn(carried(async move {
                let durable = flight.land().await;
                if durable.is_some_and(|durable| file.context.budget.wants_commit(durable)) {
                    file.commit_durable().await;
                }
            }));
        }
    }

    /// Waits until no buffer below `below` flies.
    async fn landed(&self, below: BufferNo) {
        let mut landings = self.state.lock().dirty.landings();
        // The sender lives as long as `self`.
        while self.state.lock().dirty.is_flying(below) && landings.changed().await.is_ok() {}
    }

    /// One commit of what is durable of the buffers below `below`. The caller holds `order`.
    pub(super) async fn commit(self: &Arc<Self>, below: BufferNo, slot: Option<&Slot>) -> Outcome {
        let mut outcome = self.try_commit(below, slot).await;
        if let Outcome::Again(buffers) = &mut outcome {
            self.launch(std::mem::take(buffers));
        }
        outcome
    }

    async fn try_commit(self: &Arc<Self>, below: BufferNo, slot: Option<&Slot>) -> Outcome {
        let session = self.context.sessions.current();
        let (Next { batch, append, placed, expects }, waiting, guard, moved) = {
            let mut state = self.state.lock();
            let next = self.next_commit(&mut state, below);
            if next.batch.pieces.is_empty() {
                state.forget_times();
            }
            let under = state.buffered_under;
            let mut waiting = state.waiting;
            if next.batch.pieces.is_empty() {
                // Nothing was written: that time stays.
                waiting.mtime_ns.get_or_insert(state.attr.mtime_ns);
            }
            // With that session went the lease that kept others from writing.
            let moved = under.session != session.id;
            let kept = |right| self.context.leases.keeps(self.ino, right);
            let unguarded = moved || under.right.is_some_and(|right| !kept(right));
            (next, waiting, unguarded.then_some(under), moved)
        };
        // Those of a session that has ended may have been committed, whatever was answered; if they
        // were not, they go with it.
        for segment in batch.dead.iter().filter(|s| s.id.session == session.id) {
            self.context.segments.discard(segment.clone());
        }
        let first = match batch.pieces.first() {
            Some(piece) => piece.range.start,
            // The data that they waited for was given up, or they are of a new file.
            None if waiting.is_more() => 0,
            None => return Outcome::Empty,
        };
        let locks = &self.context.locks;
        if moved && locks.lost_on(self.ino) {
            // It may have been written by who was alone then, and is so no more.
            return self.give_up_with_session(&batch, lost_locks());
        }
        if batch.segments.iter().any(|s| s.id.session != session.id) {
            let unsent = batch.segments.iter().filter(|s| s.id.session == session.id);
            unsent.for_each(|s| self.context.segments.discard(s.clone()));
            return self.write_again(&batch);
        }
        if let Some(slot) = slot {
            if (guard.is_some() && !append) || moved || slot.session != session.id {
                return Outcome::Later;
            }
            let base = if append { first } else { 0 };
            let mut op = commit_op(self.ino, &batch, append, base, &waiting);
            op.expect_version = expects;
            let committed = slot.commit(op).await;
            self.may_be_placed(placed, expects, &batch, &committed);
            return match committed {
                Ok(attr) => {
                    let end = batch.pieces.last().map_or(base, |piece| piece.range.end);
                    let landed = attr.size.saturating_sub(end - base);
                    self.committed(batch, attr, append.then_some((base, landed)))
                }
                Err(f) if expects.is_some() && f.error.kind == ErrorKind::Stale => {
                    self.ends_elsewhere()
                }
                // Appended once more, it could be there twice.
                Err(f) if append && f.ambiguous => self.give_up(&batch, f.error, true),
                Err(f) if f.error.kind == ErrorKind::SessionExpired => Outcome::Later,
                Err(f) => self.refused(batch, append, session.id, f.error, f.ambiguous).await,
            };
        }
        let base = if append { first } else { 0 };
        let mut op = commit_op(self.ino, &batch, append, base, &waiting);
        op.expect_version = guard.filter(|_| !append).map(|under| under.version).or(expects);
        op.attr_was = guard.and(waiting.was).map(|was| was.op(self.ino));
        let requests = &self.context.requests;
        let op = Op::CommitExtents(op);
        let committed = requests.commit_in_order(&session, op, requests.deadline()).await;
        self.may_be_placed(placed, expects, &batch, &committed);
        match committed {
            Ok(Reply::CommitExtents(v1::CommitExtentsReply {
                attr: Some(attr),
                base: landed,
                overtaken,
            })) => match Attr::try_from(attr) {
                Ok(attr) => {
                    if overtaken {
                        self.overtaken();
                    }
                    self.committed(batch, attr, append.then_some((base, landed)))
                }
                Err(error) => self.give_up(&batch, error, true),
            },
            Ok(_) => self.give_up(&batch, unexpected("a commit"), true),
            Err(f) if expects.is_some() && f.error.kind == ErrorKind::Stale => {
                self.ends_elsewhere()
            }
            Err(failed) => {
                self.refused(batch, append, session.id, failed.error, failed.ambiguous).await
            }
        }
    }
}

fn commit_op(
    ino: InodeId,
    batch: &Batch,
    append: bool,
    base: u64,
    waiting: &Waiting,
) -> v1::CommitExtentsOp {
    let (append, base) = match planted::is(Bug::AppendAtOldEnd) {
        false => (append, base),
        true => (false, 0),
    };
    let extents = batch.pieces.iter().map(|piece| {
        let source = match &piece.source {
            PieceSource::Segment { segment, at } => v1::extent::Source::Segment(v1::SegmentPart {
                id: Some(SegmentId::into(segment.id)),
                off: *at,
            }),
            PieceSource::Inline(bytes) => v1::extent::Source::Inline(bytes.clone()),
        };
        v1::Extent {
            file_off: piece.range.start - base,
            len: piece.range.end - piece.range.start,
            source: Some(source),
        }
    });
    v1::CommitExtentsOp {
        ino: ino.0,
        extents: extents.collect(),
        segments: batch.segments.iter().map(|s| s.to_wire()).collect(),
        append,
        min_size: 0,
        mtime_ns: waiting.mtime_ns.unwrap_or(0),
        expect_version: None,
        attr: waiting.op(ino),
        changed_ns: waiting.changed_ns.unwrap_or(0),
        attr_was: None,
    }
}
