//! From dirty buffers to committed extents: launch, wait until durable, commit, in order.
//!
//! Invariants: an extent is sent to the metadata group only after its segment is durable (I1), and
//! in the session that wrote the segment (I5); bytes stay in memory until the commit is answered, so
//! that a lost session costs a rewrite and not the data; what is given up is told (I8).

use super::above::ALL;
use super::dirty::{Batch, BufferNo, Piece, PieceSource};
use super::{File, Waiting, follow};
use crate::leases::Right;
use crate::locks::lost_locks;
use crate::meta::Meta;
use crate::to_the_end::to_the_end;
use crate::types::{Attr, SetAttr, SetTime};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, warn};
use weft_proto::mode::mode_after;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, SegmentId, SessionId, v1};

/// How long a newer map is waited for at a time.
const NEWER_MAP: Duration = Duration::from_secs(1);
/// Pieces in one commit.
const MOST_PIECES: usize = 4096;

/// What a commit led to.
enum Outcome {
    /// Nothing was left to commit.
    Empty,
    Committed,
    /// Some of it flies again.
    Again,
    /// Nothing more can be done now; the failure is noted.
    Failed,
}

impl File {
    /// Everything written so far is durable and visible, or the failure is answered and noted.
    /// Goes on if its caller does not wait.
    pub async fn flush(self: &Arc<Self>) -> Result<()> {
        let file = self.clone();
        to_the_end(async move {
            let _order = file.order.lock().await;
            let mut seen = file.failures();
            file.flush_in_order().await;
            file.failure_since(&mut seen)
        })
        .await
    }

    /// Commits what is durable by now, unless someone else is committing.
    pub async fn commit_durable(self: &Arc<Self>) {
        let Ok(_order) = self.order.try_lock() else { return };
        while matches!(self.commit(BufferNo::MAX).await, Outcome::Committed) {}
    }

    /// [`Self::flush`] in the background, unless someone flushes or commits already. A failure is
    /// noted.
    pub fn flush_behind(self: &Arc<Self>) {
        let file = self.clone();
        tokio::spawn(async move {
            let Ok(_order) = file.order.try_lock() else { return };
            file.flush_in_order().await;
        });
    }

    /// [`Self::commit_durable`] in the background.
    pub fn commit_behind(self: &Arc<Self>) {
        let file = self.clone();
        tokio::spawn(async move { file.commit_durable().await });
    }

    /// Commits what was written so far. What is not committed when this ends is noted as a failure.
    pub(super) async fn flush_in_order(self: &Arc<Self>) {
        let (launched, below, failures) = {
            let state = &mut *self.state.lock();
            let (limit, inline) = (u64::from(state.layout.inline_limit), state.attr.inline_bytes);
            let whole = state.dirty.covers(state.attr.size);
            let fits = |bytes: u64| bytes <= limit && (whole || inline + bytes <= limit);
            let launched = state.dirty.close_all(fits, state.layout.segment_len);
            (launched, state.dirty.next(), state.failures)
        };
        self.launch(launched);
        let deadline = self.mount.meta.deadline();
        loop {
            self.landed(below).await;
            match self.commit(below).await {
                Outcome::Committed => {}
                // Each time because a session died or a placement group was dropped.
                Outcome::Again if Instant::now() < deadline => {}
                _ => break,
            }
        }
        let mut state = self.state.lock();
        if state.failures == failures && state.dirty.is_left(below) {
            let what = "written data could not be committed in time; it will be tried again";
            state.fail(Error::new(ErrorKind::TimedOut, what));
        }
    }

    /// Sends buffers that were just closed to storage.
    pub(super) fn launch(self: &Arc<Self>, buffers: Vec<BufferNo>) {
        for no in buffers {
            let flight = Flight { file: self.clone(), no, over: false };
            tokio::spawn(flight.fly());
        }
    }

    /// Waits until no buffer below `below` flies.
    async fn landed(&self, below: BufferNo) {
        let mut landings = self.state.lock().dirty.landings();
        // The sender lives as long as `self`.
        while self.state.lock().dirty.is_flying(below) && landings.changed().await.is_ok() {}
    }

    /// One commit of what is durable of the buffers below `below`. The caller holds `order`.
    async fn commit(self: &Arc<Self>, below: BufferNo) -> Outcome {
        let session = self.mount.meta.sessions.current();
        let (batch, append, waiting, expect_version, moved) = {
            let mut state = self.state.lock();
            let batch = state.dirty.batch(below, MOST_PIECES);
            let (append, under) = (state.dirty.append, state.buffered_under);
            let mut waiting = state.waiting;
            if batch.pieces.is_empty() {
                // Nothing was written: that time stays.
                waiting.mtime_ns.get_or_insert(state.attr.mtime_ns);
            }
            // With that session went the lease that kept others from writing.
            let moved = under.session != session.id;
            let kept = |right| self.mount.meta.leases.keeps(self.ino, right);
            let unguarded = moved || under.right.is_some_and(|right| !kept(right));
            let expect = (unguarded && !append).then_some(under.version);
            (batch, append, waiting, expect, moved)
        };
        for segment in &batch.dead {
            self.mount.segments.discard(segment.clone());
        }
        let meta = &self.mount.meta;
        let first = match batch.pieces.first() {
            Some(piece) => piece.range.start,
            // The data that they waited for was given up, or they are of a new file.
            None if waiting.is_more() => 0,
            None if meta.creates.has(self.ino) => return self.make_empty().await,
            None => return Outcome::Empty,
        };
        let locks = &self.mount.locks;
        if moved && locks.lost_on(&self.mount.meta.sessions, self.ino) {
            // It may have been written by who was alone then, and is so no more.
            return self.give_up(&batch, lost_locks(), true);
        }
        if batch.segments.iter().any(|s| s.id.session != session.id) {
            return self.write_again(&batch.buffers);
        }
        if meta.creates.has(self.ino) {
            let op = commit_op(self.ino, &batch, false, 0, &waiting);
            match meta.make_with(op, session.id).await {
                Some(Ok(Some(attr))) => return self.committed(batch, attr, None),
                Some(Ok(None)) => {
                    let what = "a file was made without attributes";
                    return self.give_up(&batch, Error::new(ErrorKind::Protocol, what), true);
                }
                Some(Err(f)) => {
                    return self.refused(batch, false, session.id, f.error, f.ambiguous).await;
                }
                None => {}
            }
        }
        let base = if append { first } else { 0 };
        let mut op = commit_op(self.ino, &batch, append, base, &waiting);
        op.expect_version = expect_version;
        match meta.change_in(&session, Op::CommitExtents(op), meta.deadline()).await {
            Ok(Reply::CommitExtents(v1::CommitExtentsReply { attr: Some(attr), base: landed })) => {
                match Attr::try_from(attr) {
                    Ok(attr) => self.committed(batch, attr, append.then_some((base, landed))),
                    Err(error) => self.give_up(&batch, error, true),
                }
            }
            Ok(_) => {
                let what = "the reply to a commit is of another kind";
                self.give_up(&batch, Error::new(ErrorKind::Protocol, what), true)
            }
            Err(failed) => {
                self.refused(batch, append, session.id, failed.error, failed.ambiguous).await
            }
        }
    }

    /// The group is told of a new file that nothing was written to yet.
    async fn make_empty(&self) -> Outcome {
        let meta = &self.mount.meta;
        let Err(error) = meta.settle(&[self.ino]).await else { return Outcome::Empty };
        warn!(ino = %self.ino, %error, "a new file is not made; whoever has it open will be told");
        self.state.lock().fail(error);
        // Unless it is tried again.
        meta.creates.forget_failed(self.ino);
        Outcome::Failed
    }

    fn committed(&self, batch: Batch, attr: Attr, appended: Option<(u64, u64)>) -> Outcome {
        let mut state = self.state.lock();
        let mut pieces = batch.pieces;
        state.dirty.forget(&batch.buffers);
        if let Some((base, landed)) = appended
            && base != landed
        {
            let by = landed.wrapping_sub(base) as i64;
            state.dirty.shift(by);
            state.past.shift(base, by);
            // Who has read it meanwhile saw it where it is not.
            self.forget_behind(ALL);
            for Piece { range, .. } in &mut pieces {
                *range = range.start.saturating_add_signed(by)..range.end.saturating_add_signed(by);
            }
        }
        let before = state.extents.version();
        state.extents.commit(attr.data_version, &pieces);
        self.mount.note_commit(self.ino, before, attr.data_version);
        state.adopt(attr);
        follow(&mut state.lapsed_at, attr.data_version);
        match state.buffered_under.right {
            // Of that content all of it is, or none.
            Some(Right::GONE) => follow(&mut state.buffered_under.version, attr.data_version),
            _ => state.buffered_under.version = attr.data_version,
        }
        state.went_along();
        debug!(ino = %self.ino, pieces = pieces.len(), segments = batch.segments.len(), "committed");
        Outcome::Committed
    }

    async fn refused(
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
        let passes = matches!(error.kind, ErrorKind::TimedOut | ErrorKind::Unavailable);
        if append && ambiguous {
            // Doing it again could append twice.
            return self.give_up(&batch, error, true);
        }
        if error.kind == ErrorKind::InlineFull {
            return self.write_again(&batch.buffers);
        }
        if error.kind == ErrorKind::SessionExpired {
            let deadline = self.mount.meta.deadline();
            return match self.mount.meta.sessions.replacement(session, deadline).await {
                Ok(_) => self.write_again(&batch.buffers),
                Err(error) => self.put_off(&batch, error),
            };
        }
        if passes { self.put_off(&batch, error) } else { self.give_up(&batch, error, ambiguous) }
    }

    /// The data must go into new segments: the old ones cannot be committed, or there are none.
    fn write_again(self: &Arc<Self>, buffers: &[BufferNo]) -> Outcome {
        let launched = self.state.lock().dirty.relaunch(buffers);
        self.mount
            .segments
            .counters()
            .rewritten
            .fetch_add(launched.len() as u64, Ordering::Relaxed);
        self.launch(launched);
        Outcome::Again
    }

    /// The commit had no effect, as a placement group that it names has been dropped: the data goes to others. If
    /// the map has them all yet, a newer one is on its way, or its server is behind.
    async fn place_again(self: &Arc<Self>, batch: &Batch) -> Outcome {
        let segments = &self.mount.segments;
        let map = segments.map().current();
        if batch.segments.iter().all(|segment| map.has(segment.pg))
            && !segments.map().newer(map.epoch, Instant::now() + NEWER_MAP).await
        {
            segments.map().follow_another();
        }
        let outcome = self.write_again(&batch.buffers);
        batch.segments.iter().for_each(|segment| segments.discard_in(&map, segment.clone()));
        outcome
    }

    /// The data stays, in case the cluster comes back; the failure is told all the same. It will be
    /// in new segments then: the old ones may have been committed after all.
    fn put_off(&self, batch: &Batch, error: Error) -> Outcome {
        warn!(ino = %self.ino, %error, "cannot commit written data; it will be tried again");
        let mut state = self.state.lock();
        state.dirty.ground(&batch.buffers);
        state.fail(error);
        Outcome::Failed
    }

    fn give_up(&self, batch: &Batch, error: Error, ambiguous: bool) -> Outcome {
        warn!(ino = %self.ino, %error, "written data is lost; the writer will be told");
        let kind = error.kind;
        let mut state = self.state.lock();
        state.dirty.forget(&batch.buffers);
        // What was set beside the data is asked for once more, without it.
        if batch.pieces.is_empty() || !state.waiting.is_more() {
            state.went_along();
        }
        state.fail(error);
        drop(state);
        self.forget_behind(ALL);
        self.mount.meta.creates.forget_failed(self.ino);
        // Who says that they were committed before may be right: then they are seen.
        if !ambiguous && kind != ErrorKind::Invalid {
            batch.segments.iter().for_each(|s| self.mount.segments.discard(s.clone()));
        }
        Outcome::Failed
    }

    /// Changes attributes in order with what was written: a new size cuts what lies beyond, a new
    /// time is not overwritten by data that was written before. What is no size waits with the data.
    pub async fn set_attr(self: &Arc<Self>, change: SetAttr) -> Result<Attr> {
        let file = self.clone();
        to_the_end(async move { file.set_attr_in_order(change).await }).await
    }

    async fn set_attr_in_order(self: &Arc<Self>, change: SetAttr) -> Result<Attr> {
        let _order = self.order.lock().await;
        if let Some(attr) = self.keep(&change) {
            return Ok(attr);
        }
        let (append, more) = {
            let state = self.state.lock();
            (state.dirty.append, state.waiting.is_more())
        };
        let mut seen = self.failures();
        let timed = change.mtime.is_some() || change.atime.is_some();
        if timed || more || (append && change.size.is_some()) {
            self.flush_in_order().await;
        }
        self.failure_since(&mut seen)?;
        let attr = set_attr(&self.mount.meta, self.ino, change).await?;
        let mut state = self.state.lock();
        if let Some(size) = change.size {
            state.dirty.cut(size..u64::MAX);
            // What stays is committed later, and was written before.
            let waiting = &mut state.waiting;
            waiting.mtime_ns = waiting.mtime_ns.map(|written| written.max(attr.mtime_ns));
            state.changed(&self.mount, attr, |e| e.resize(attr.data_version, size));
        }
        state.adopt(attr);
        Ok(state.view())
    }

    /// Changes attributes here, for the commit of data that waits under a lease to write, or of a new file.
    /// `None`, with nothing changed, where there is none, and where only the group can say what the change
    /// does.
    fn keep(&self, change: &SetAttr) -> Option<Attr> {
        let is_new = self.mount.meta.creates.has(self.ino);
        let state = &mut *self.state.lock();
        let owner = [change.uid, change.gid];
        let simple = change.size.is_none() && !owner.contains(&Some(u32::MAX));
        // A mode changes the list, and an owner nothing of it; who has a list is rare.
        let listed = state.attr.acls && (change.mode.is_some() || owner != [None, None]);
        let is_more = change.mode.is_some() || owner != [None, None] || change.atime.is_some();
        let waits = (!state.dirty.is_empty() || is_new && is_more) && !state.dirty.append;
        // As in `put_in`: nothing that is kept is missed by a recall.
        let right = self.mount.meta.leases.right_to_write(self.ino);
        let alike = !state.is_dirty() || state.buffered_under.right == right;
        if !simple || listed || !waits || right.is_none() || !alike {
            return None;
        }
        state.keeps_under(self.mount.meta.sessions.current().id, right);
        let now = (self.mount.options.clock)();
        let time = |time: SetTime| match time {
            SetTime::At(ns) => ns,
            SetTime::Now => now,
        };
        let waiting = &mut state.waiting;
        let chowned = owner != [None, None];
        if change.mode.is_some() || chowned {
            let mode = waiting.mode.unwrap_or(state.attr.mode);
            waiting.mode = Some(mode_after(mode, false, change.mode, chowned));
        }
        waiting.uid = change.uid.or(waiting.uid);
        waiting.gid = change.gid.or(waiting.gid);
        waiting.atime_ns = change.atime.map(time).or(waiting.atime_ns);
        waiting.mtime_ns = change.mtime.map(time).or(waiting.mtime_ns);
        waiting.changed_ns = waiting.changed_ns.max(Some(now));
        Some(state.view())
    }
}

/// A buffer on its way to storage, which it is no longer when this ends, however it does.
struct Flight {
    file: Arc<File>,
    no: BufferNo,
    /// It has ended, and the buffer may be on another.
    over: bool,
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut state = self.file.state.lock();
        if !self.over && state.dirty.crashed(self.no) {
            let what = "written data did not get to storage; it will be sent again";
            state.fail(Error::new(ErrorKind::Io, what));
        }
    }
}

impl Flight {
    async fn fly(self) {
        let file = self.file.clone();
        let durable = self.land().await;
        if durable.is_some_and(|durable| file.mount.budget.wants_commit(durable)) {
            file.commit_durable().await;
        }
    }

    /// Answers how many bytes of the file are durable then, unless nobody wants the buffer any more.
    async fn land(mut self) -> Option<u64> {
        let Self { file, no, over } = &mut self;
        let (payload, layout) = {
            let state = file.state.lock();
            (state.dirty.payload(*no)?, state.layout)
        };
        let deadline = file.mount.meta.deadline();
        let sent = file.mount.segments.put(&layout, &payload, deadline).await;
        drop(payload);
        let (unwanted, durable) = {
            let mut state = file.state.lock();
            *over = true;
            let unwanted = match sent {
                Ok(segments) => state.dirty.landed(*no, segments),
                Err(error) => {
                    warn!(ino = %file.ino, %error, "written data is lost; the writer will be told");
                    state.dirty.forget(&[*no]);
                    state.fail(error);
                    file.forget_behind(ALL);
                    Vec::new()
                }
            };
            (unwanted, state.dirty.durable())
        };
        unwanted.into_iter().for_each(|segment| file.mount.segments.discard(segment));
        Some(durable)
    }
}

/// Asks the metadata group to change attributes.
pub(crate) async fn set_attr(meta: &Arc<Meta>, ino: InodeId, change: SetAttr) -> Result<Attr> {
    let at = |t: Option<SetTime>| match t {
        Some(SetTime::At(ns)) => Some(ns),
        _ => None,
    };
    let op = v1::SetAttrOp {
        ino: ino.0,
        mode: change.mode,
        uid: change.uid,
        gid: change.gid,
        size: change.size,
        atime_ns: at(change.atime),
        mtime_ns: at(change.mtime),
        atime_now: change.atime == Some(SetTime::Now),
        mtime_now: change.mtime == Some(SetTime::Now),
    };
    match meta.change(Op::SetAttr(op)).await? {
        Reply::Attr(attr) => attr.try_into(),
        _ => Err(Error::new(
            ErrorKind::Protocol,
            "the reply to setting attributes is of another kind",
        )),
    }
}

fn commit_op(
    ino: InodeId,
    batch: &Batch,
    append: bool,
    base: u64,
    waiting: &Waiting,
) -> v1::CommitExtentsOp {
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
    }
}
