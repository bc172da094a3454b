//! What a commit led to, and what follows: it is visible, or goes again, or is put off or given up,
//! which is told (I8).

use super::buffer::BufferNo;
use super::inode::File;
use super::piece::{Batch, Piece};
use super::state::{State, follow};
use crate::cache::{ALL, Right};
use crate::types::Attr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, warn};
use weft_net::sync::MutexGuard;
use weft_proto::planted::{self, Bug};
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, Layout, Result, SessionId, v1};
use weft_segments::Segment;

/// How long a newer map is waited for at a time.
const NEWER_MAP_TIMEOUT: Duration = Duration::from_secs(1);

/// What a commit led to.
pub(super) enum Outcome {
    /// Nothing was left to commit.
    Empty,
    Committed,
    /// These have to be sent again, as they are marked already.
    Again(Vec<BufferNo>),
    /// Not in this place in the log: it stays for whoever commits it next.
    Later,
    /// Nothing more can be done now; the failure is noted.
    Failed,
}

impl File {
    pub(super) fn committed(
        &self,
        batch: Batch,
        attr: Attr,
        appended: Option<(u64, u64)>,
    ) -> Outcome {
        let mut state = self.state.lock();
        let mut pieces = batch.pieces;
        let dropped = state.dirty.forget(&batch.buffers);
        self.discard_unsent(dropped, &batch.segments);
        if let Some((base, landed)) = appended
            && base != landed
        {
            // What has been spilled meanwhile stays where it is.
            let spilled = state.dirty.drop_spilled();
            self.discard_unsent(spilled, &[]);
            let by = landed.wrapping_sub(base) as i64;
            state.dirty.shift(by);
            state.past.shift(base, by);
            // Who has read it meanwhile saw it where it is not.
            self.forget_behind(ALL);
            for Piece { range, .. } in &mut pieces {
                *range = range.start.saturating_add_signed(by)..range.end.saturating_add_signed(by);
            }
        }
        // Attributes alone count no version.
        if !pieces.is_empty() {
            let before = state.extents.version();
            state.extents.commit(attr.data_version, &pieces);
            self.context.pages.note_commit(self.ino, before, attr.data_version);
        }
        state.adopt(attr);
        follow(&mut state.lapsed_at, attr.data_version);
        match state.buffered_under.right {
            // Of that content all of it is, or none.
            Some(Right::GONE) => follow(&mut state.buffered_under.version, attr.data_version),
            _ => state.buffered_under.version = attr.data_version,
        }
        state.went_along();
        state.settled();
        drop(state);
        self.context.log.was_written(self.ino, attr.ctime_ns);
        self.commits.send_replace(());
        let (pieces, segments) = (pieces.len(), batch.segments.len());
        debug!(ino = %self.ino, pieces, segments, "committed");
        Outcome::Committed
    }

    /// What was set beside the data was not set: others have set it since (I8).
    pub(super) fn overtaken(&self) {
        let what = "attributes that were set here are lost: the cluster declared this mount dead \
                    before they were committed, and others have changed the file since";
        warn!(ino = %self.ino, what);
        self.lose(&mut self.state.lock(), &[], Error::new(ErrorKind::Stale, what));
    }

    pub(super) async fn refused(
        self: &Arc<Self>,
        batch: Batch,
        append: bool,
        session: SessionId,
        error: Error,
        ambiguous: bool,
    ) -> Outcome {
        if error.kind == ErrorKind::Misplaced {
            return self.place_again(&batch).await;
        }
        if error.kind == ErrorKind::InlineFull {
            // It had no effect, also if this was not its first answer.
            batch.segments.iter().for_each(|s| self.context.segments.discard(s.clone()));
            return self.write_again(&batch);
        }
        let passes = matches!(error.kind, ErrorKind::TimedOut | ErrorKind::Unavailable);
        if append && ambiguous {
            // Doing it again could append twice.
            return self.give_up(&batch, error, true);
        }
        if error.kind == ErrorKind::Invalid {
            return match self.asks_for_more_parity(&batch).await {
                Ok(true) => {
                    if !ambiguous {
                        let segments = &self.context.segments;
                        batch.segments.iter().for_each(|s| segments.discard(s.clone()));
                    }
                    self.write_again(&batch)
                }
                Ok(false) => self.give_up(&batch, error, ambiguous),
                // Nobody knows yet.
                Err(error) => self.put_off(&batch, error, ambiguous),
            };
        }
        if error.kind == ErrorKind::SessionExpired {
            let deadline = self.context.requests.deadline();
            return match self.context.sessions.replacement(session, deadline).await {
                Ok(_) => self.write_again(&batch),
                Err(error) => self.put_off(&batch, error, ambiguous),
            };
        }
        match passes {
            true => self.put_off(&batch, error, ambiguous),
            false => self.give_up(&batch, error, ambiguous),
        }
    }

    /// The data must go into new segments: the old ones cannot be committed, or there are none.
    pub(super) fn write_again(self: &Arc<Self>, batch: &Batch) -> Outcome {
        let (launched, dropped) = self.state.lock().dirty.relaunch(&batch.buffers);
        self.discard_unsent(dropped, &batch.segments);
        self.context
            .segments
            .counters()
            .rewritten
            .fetch_add(launched.len() as u64, Ordering::Relaxed);
        Outcome::Again(launched)
    }

    /// Whether the layout of the file, which is asked for, is one under which new data is to have
    /// more parity than this has: it may have been set on the directory, by whomever, before the
    /// group heard that the file was made. New segments have it. An error may pass.
    async fn asks_for_more_parity(&self, batch: &Batch) -> Result<bool> {
        use ErrorKind::{SessionExpired, TimedOut, Unavailable};
        let asked = Op::GetLayout(v1::GetLayoutOp { ino: self.ino.0 });
        let layout = match self.context.requests.ask_in_order(asked).await {
            Ok(Reply::Layout(layout)) => Layout::try_from(layout),
            Err(error) if matches!(error.kind, TimedOut | Unavailable | SessionExpired) => {
                return Err(error);
            }
            _ => return Ok(false),
        };
        let Ok(layout) = layout else { return Ok(false) };
        self.set_layout(layout);
        Ok(batch.segments.iter().any(|s| s.geometry.profile.m() < layout.profile.m()))
    }

    /// The commit had no effect, as a placement group that it names has been dropped, or gives
    /// seats away: the data goes to others. If all take new data by the map, a newer one is on its
    /// way, or its server is behind.
    async fn place_again(self: &Arc<Self>, batch: &Batch) -> Outcome {
        let segments = &self.context.segments;
        let map = segments.map().current();
        if batch.segments.iter().all(|segment| map.is_open(segment.pg))
            && !segments.map().newer(map.epoch, Instant::now() + NEWER_MAP_TIMEOUT).await
        {
            segments.map().follow_another();
        }
        let outcome = self.write_again(batch);
        batch.segments.iter().for_each(|segment| segments.discard_in(&map, segment.clone()));
        outcome
    }

    /// The data stays, in case the cluster comes back; the failure is told all the same. If the old
    /// segments may have been committed after all, it will be in new ones then; else in these, or
    /// each try of an outage would leave as much on the targets.
    fn put_off(&self, batch: &Batch, error: Error, ambiguous: bool) -> Outcome {
        warn!(ino = %self.ino, %error, "cannot commit written data; it will be tried again");
        let mut state = self.state.lock();
        let dropped = match planted::is(Bug::FailureNotTold) {
            false if ambiguous => state.dirty.ground(&batch.buffers),
            false => Vec::new(),
            true => state.dirty.forget(&batch.buffers),
        };
        if !planted::is(Bug::FailureNotTold) {
            state.failures.fail(error);
        }
        drop(state);
        self.discard_unsent(dropped, &batch.segments);
        Outcome::Failed
    }

    pub(super) fn give_up(&self, batch: &Batch, error: Error, ambiguous: bool) -> Outcome {
        // Who says that they were committed before may be right: then they are seen.
        let may_be_there = ambiguous || error.kind == ErrorKind::Invalid;
        let mut state = self.state.lock();
        let dropped = match may_be_there {
            true => state.dirty.forget(&batch.buffers),
            false => state.dirty.lose(&batch.buffers),
        };
        self.given_up(state, batch, error, dropped);
        if !may_be_there {
            batch.segments.iter().for_each(|s| self.context.segments.discard(s.clone()));
        }
        Outcome::Failed
    }

    /// [`Self::give_up`] of what was written in a session that is over, and was not sent in
    /// another: what was not committed before is not there, and its segments go with that session.
    pub(super) fn give_up_with_session(&self, batch: &Batch, error: Error) -> Outcome {
        let mut state = self.state.lock();
        let dropped = state.dirty.lose(&batch.buffers);
        self.given_up(state, batch, error, dropped);
        Outcome::Failed
    }

    fn given_up(
        &self,
        mut state: MutexGuard<'_, State>,
        batch: &Batch,
        error: Error,
        dropped: Vec<Segment>,
    ) {
        let what = "written data is lost; who wrote it, or syncs, will be told";
        warn!(ino = %self.ino, %error, "{what}");
        // What was set beside the data is asked for once more, without it.
        if batch.pieces.is_empty() || !state.waiting.is_more() {
            state.went_along();
        }
        state.settled();
        self.lose(&mut state, &batch.buffers, error);
        drop(state);
        self.commits.send_replace(());
        self.forget_behind(ALL);
        self.discard_unsent(dropped, &batch.segments);
    }

    /// Discards what the group was never told of: a buffer that was to be committed as inline data
    /// may have been sent to storage, too, while that was under way.
    pub(super) fn discard_unsent(&self, dropped: Vec<Segment>, sent: &[Segment]) {
        let session = self.context.sessions.current().id;
        let unsent = dropped.into_iter().filter(|s| sent.iter().all(|sent| sent.id != s.id));
        // Those of a session that has ended go with it, but for what was committed.
        unsent
            .filter(|s| s.id.session == session)
            .for_each(|segment| self.context.segments.discard(segment));
    }
}
