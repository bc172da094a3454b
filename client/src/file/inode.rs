//! An open file: one state per inode, shared by all its handles.
//!
//! Invariants: what this client wrote is seen by its own reads and attributes at once; commits of
//! the inode are made one after the other, under `order`; every failure to make written data
//! durable is remembered and told ([`super::losses`], I8).

use super::above::Above;
use super::buffer::BufferNo;
use super::context::Context;
use super::state::{State, Under};
use super::waiting::Waiting;
use crate::cache::{Leases, Right};
use crate::types::Attr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;
use tokio::time::Instant;
use weft_net::sync::Mutex;
use weft_proto::{InodeId, Layout, Result, SessionId, v1};

/// A file that is open on this mount.
pub(crate) struct File {
    pub ino: InodeId,
    pub(super) context: Arc<Context>,
    pub(super) state: Mutex<State>,
    /// Held by whoever commits or resizes.
    pub(super) order: tokio::sync::Mutex<()>,
    /// What was written was committed, or given up.
    pub(super) commits: watch::Sender<()>,
    /// How many change the file as a whole, or wait to.
    pub(super) wholes: AtomicUsize,
    pub above: Above,
    /// Until then no lease to write is asked for, for an append and for other writes: it was
    /// refused.
    pub(super) refused_until: Mutex<[Option<Instant>; 2]>,
    /// Somebody waits to commit behind what is in the log.
    pub(super) comes_behind: AtomicBool,
    /// Handles that are open for writing.
    pub(super) writers: AtomicUsize,
    /// The directory in which this mount has made it: who syncs that is told what is lost of it.
    pub(super) made_in: OnceLock<InodeId>,
}

impl File {
    pub fn new(context: Arc<Context>, attr: Attr, layout: Layout) -> Self {
        Self {
            ino: attr.ino,
            context,
            state: Mutex::new(State::new(attr, layout)),
            order: tokio::sync::Mutex::default(),
            commits: watch::Sender::default(),
            wholes: AtomicUsize::new(0),
            above: Above::default(),
            refused_until: Mutex::default(),
            comes_behind: AtomicBool::new(false),
            writers: AtomicUsize::new(0),
            made_in: OnceLock::new(),
        }
    }

    pub fn is_in_doubt(&self) -> bool {
        let state = self.state.lock();
        let kept = |right| self.context.leases.keeps(self.ino, right);
        state.is_dirty() && state.buffered_under.right.is_some_and(|right| !kept(right))
    }

    /// Whether something waits that was kept in doubt in this session, and under no right that it
    /// keeps.
    pub fn is_in_doubt_since(&self, session: SessionId) -> bool {
        let state = self.state.lock();
        let Under { session: since, right, .. } = state.buffered_under;
        state.is_dirty() && right == Some(Right::GONE) && since == session
    }

    /// The time of all leases is over.
    pub fn lapsed(&self) {
        let mut state = self.state.lock();
        state.lapsed_at = state.attr.data_version;
    }

    /// They turn out to have lasted.
    pub fn revived(&self) {
        self.state.lock().lapsed_at = u64::MAX;
    }

    /// Takes over what an open answered.
    pub fn opened(
        &self,
        attr: Attr,
        layout: Layout,
        extents: Option<v1::ExtentsReply>,
    ) -> Result<Attr> {
        let mut state = self.state.lock();
        state.layout = layout;
        if let Some(mut reply) = extents {
            let data_version = attr.data_version;
            reply.attr.get_or_insert_with(|| v1::Attr { data_version, ..Default::default() });
            let empty_and_cut = reply.truncated && reply.extents.is_empty();
            if !empty_and_cut {
                state.extents.learn(0, u64::MAX, reply)?;
            }
        }
        self.adopt_told(&mut state, attr);
        Ok(self.view(&state))
    }

    /// Attributes as this mount sees them. What was kept under a right that is gone nobody may see
    /// before all do, by its commit (I6).
    pub(super) fn view(&self, state: &State) -> Attr {
        let gone = |right| !self.context.leases.keeps(self.ino, right);
        match state.buffered_under.right.is_some_and(gone) {
            true => state.attr,
            false => state.view(),
        }
    }

    /// Size with what is not committed yet, as far as is known here.
    pub fn size(&self) -> u64 {
        self.state.lock().size()
    }

    /// The size, and the right under which nobody else changes it, if this mount has that.
    pub fn size_alone(&self) -> Option<(Right, u64)> {
        let state = &mut *self.state.lock();
        let right = self.context.leases.right_to_write(self.ino)?;
        // The right may have come with another answer than one to this file.
        state.adopt(self.context.leases.attr_before_changes(self.ino)?);
        let other_right = state.is_dirty() && state.buffered_under.right != Some(right);
        (!other_right).then(|| (right, state.size()))
    }

    /// Size of what is committed, as far as is known here.
    pub(super) fn committed_size(&self) -> u64 {
        self.state.lock().attr.size
    }

    /// As [`Self::told`], unless what was written under a right that is gone has to be committed
    /// first: it was closed, and is not to seem lost.
    pub fn told_now(&self, attr: Attr) -> Option<Attr> {
        let mut state = self.state.lock();
        self.adopt_told(&mut state, attr);
        let gone = |right| !self.context.leases.keeps(self.ino, right);
        let doubtful = state.is_dirty() && state.buffered_under.right.is_some_and(gone);
        (!doubtful).then(|| state.view())
    }

    /// Takes over attributes that a server told, and answers how this mount sees them.
    pub fn told(&self, attr: Attr) -> Attr {
        let mut state = self.state.lock();
        self.adopt_told(&mut state, attr);
        self.view(&state)
    }

    /// Takes over what a server told, or what is known better, since this mount alone changes it:
    /// an answer from before such a change may come after it.
    pub(super) fn adopt_told(&self, state: &mut State, told: Attr) {
        let leases = &self.context.leases;
        let older = told.age() < state.attr.age();
        match leases.attr_before_changes(self.ino) {
            None if leases.has_right_to_write(self.ino) && older => {}
            _ => state.adopt(leases.newest(told)),
        }
    }

    /// Takes over what a lease says of the file. Answers whether one does.
    pub fn adopt_known(&self, known: impl FnOnce(&Leases) -> Option<Attr>) -> bool {
        // Under this lock, so that nothing newer is taken over in between.
        let mut state = self.state.lock();
        let attr = known(&self.context.leases);
        attr.inspect(|attr| state.adopt(*attr)).is_some()
    }

    /// As this mount sees them.
    pub fn attr(&self) -> Attr {
        self.view(&self.state.lock())
    }

    /// The group was told of an access.
    pub fn published_atime(&self, at: i64) {
        self.state.lock().attr.adopt_atime(at);
    }

    pub fn segment_len(&self) -> u64 {
        self.state.lock().layout.segment_len
    }

    pub fn set_layout(&self, layout: Layout) {
        self.state.lock().layout = layout;
    }

    /// Whether there is something that the metadata group does not know, if only that the file was
    /// made.
    pub fn is_dirty(&self) -> bool {
        self.is_new() || self.state.lock().is_dirty()
    }

    /// Whether something was written that is not committed.
    pub fn has_unwritten(&self) -> bool {
        self.state.lock().is_dirty()
    }

    /// Nobody wants what was written.
    pub fn abandon(&self) {
        let mut state = self.state.lock();
        state.dirty.cut(0..u64::MAX);
        let dead = state.dirty.batch(BufferNo::MAX, usize::MAX).dead;
        state.waiting = Waiting::default();
        drop(state);
        self.commits.send_replace(());
        dead.into_iter().for_each(|segment| self.context.segments.discard(segment));
    }

    /// Whether a handle is open for writing.
    pub fn has_writers(&self) -> bool {
        self.writers.load(Ordering::Acquire) > 0
    }

    /// Whether the metadata group has not heard of the file, or its handles of its failure.
    pub fn is_new(&self) -> bool {
        self.context.log.has(self.ino)
    }

    /// Whether a close has nothing to wait for: what was written is in the log by now, unless
    /// closes are to wait.
    pub fn is_closed(self: &Arc<Self>) -> bool {
        self.note_not_made();
        match self.context.close_sync {
            true => !self.is_dirty(),
            false => self.defer(),
        }
    }

    /// Whether something waits that was kept under a right to write. Without that right, it would
    /// come after what others did meanwhile.
    pub fn owes(&self) -> bool {
        let state = self.state.lock();
        state.is_dirty() && state.buffered_under.right.is_some()
    }

    /// Whether attributes wait for a commit that a change elsewhere must not overtake.
    pub fn has_waiting(&self) -> bool {
        self.state.lock().waiting.is_more()
    }

    pub fn has_durable(&self) -> bool {
        self.state.lock().dirty.durable() > 0
    }

    pub fn has_flying(&self) -> bool {
        self.state.lock().dirty.is_flying(BufferNo::MAX)
    }

    /// When the oldest was written that is not committed.
    pub fn oldest(&self) -> Option<Instant> {
        let state = self.state.lock();
        let written = state.dirty.oldest();
        written.into_iter().chain(state.waiting.since).min()
    }

    /// What is cached above of `range` is good no more. Does not wait until it is gone: who asks
    /// may hold it.
    pub fn forget_behind(&self, range: Range<u64>) {
        self.context.pages.forget_behind(self.ino, range);
    }

    /// Whether anything of the content may be cached above.
    pub(super) fn is_cached(&self) -> bool {
        self.context.pages.cache().is_some() && self.above.is_filled()
    }
}
