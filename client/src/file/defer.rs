//! Written data on its way into the log of changes, and out of it: who syncs waits for the log, who
//! closes does not, and what is old is committed behind both.
//!
//! Invariant: who waits for the log does not hold `order`.

use super::buffer::BufferNo;
use super::inode::File;
use super::outcome::Outcome;
use crate::namespace::Slot;
use crate::to_the_end::to_the_end;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_net::trace::{Span, carried};
use weft_proto::Result;
use weft_proto::planted::{self, Bug};

impl File {
    /// Everything written so far is durable and visible, and so is all that was done on this mount
    /// before; or the failure is answered and noted. Goes on if its caller does not wait.
    pub async fn flush(self: &Arc<Self>) -> Result<()> {
        let file = self.clone();
        to_the_end(async move {
            let mut seen = file.failures();
            let log = &file.context.log;
            // With what comes before, if there is anything.
            let settled = match log.is_empty() {
                true => Ok(()),
                false if planted::is(Bug::SyncForgetsLog) => Ok(()),
                false => {
                    file.defer();
                    log.settle_log().await
                }
            };
            file.note_not_made();
            // What is left was not in the log.
            let failed = file.failures() != seen;
            if settled.is_ok() && !failed && file.state.lock().is_dirty() {
                let _order = file.order.lock().await;
                file.flush_in_order(None).await;
            }
            file.failure_since(&mut seen).and(settled)
        })
        .await
    }

    /// Everything written so far is visible, or the failure is noted; whatever else was done before
    /// on this mount may come later.
    pub async fn write_back(self: &Arc<Self>) -> Result<()> {
        let file = self.clone();
        to_the_end(async move {
            let mut seen = file.failures();
            let settled = file.context.log.settle(&[file.ino]).await;
            file.note_not_made();
            if settled.is_ok() && file.state.lock().is_dirty() {
                let _order = file.order.lock().await;
                file.flush_in_order(None).await;
            }
            file.failure_since(&mut seen).and(settled)
        })
        .await
    }

    /// [`Self::write_back`] of what has to be before a lease is given back. A failure is noted for
    /// the handles. Ends as soon as that is committed by whomever: who changes the file as a whole
    /// commits it first, and then holds `order` while others give up theirs.
    pub async fn write_back_owed(self: &Arc<Self>) {
        let (mut commits, mut written) = (self.commits.subscribe(), pin!(self.write_back()));
        while self.is_new() || self.owes_recall() {
            tokio::select! {
                _ = &mut written => return,
                // The sender lives as long as `self`.
                _ = commits.changed() => {}
            }
        }
    }

    /// Puts what was written so far into the log: it is sent to storage now, and committed when it
    /// is its turn there. Answers whether nothing is left to wait for. Not without the right to
    /// buffer writes of the whole file, nor while there may be no room for it, or a quota leaves
    /// none: then who writes has to hear of that.
    pub fn defer(self: &Arc<Self>) -> bool {
        let (launched, deferred) = {
            let state = &mut *self.state.lock();
            if !state.is_dirty() {
                return true;
            }
            let under = state.buffered_under;
            let kept = |right| self.context.leases.keeps(self.ino, right);
            let session = self.context.sessions.current().id;
            let in_ranges = |right| self.context.leases.is_of_ranges(self.ino, right);
            let right = under.right.filter(|right| kept(*right) && !in_ranges(*right));
            if under.session != session || right.is_none() || self.context.log.owes() {
                return false;
            }
            let no_credit = self.context.leases.has_no_credit(self.ino, state.owner());
            if no_credit || self.context.is_short_of_room() || !self.context.log.is_known() {
                return false;
            }
            let launched = self.close_all(state);
            let file = self.clone();
            let call = Box::new(move |seq, session| {
                // Others wait for it from now on.
                let slot = Slot::new(file.context.log.clone(), seq, session);
                drop(tokio::spawn(carried(file.fill(slot))));
            });
            state.place = Some(self.context.log.content(self.ino, state.place, call));
            (launched, true)
        };
        self.launch(launched);
        deferred
    }

    /// It is the turn of this file's place in the log.
    async fn fill(self: Arc<Self>, slot: Slot) {
        let _order = self.order.lock().await;
        self.flush_in_order(Some(&slot)).await;
        // Before who waits for the place goes on.
        if self.is_displaced() {
            self.context.log.owe();
        }
    }

    /// Whether there is content that has lost its place in the log.
    pub fn is_displaced(&self) -> bool {
        let (displaced, place) = {
            let state = self.state.lock();
            (state.displaced && state.is_dirty(), state.place.filter(|_| state.is_dirty()))
        };
        displaced || place.is_some_and(|seq| !self.context.log.has_place(seq))
    }

    /// Commits what is durable by now, unless someone else is committing.
    pub async fn commit_durable(self: &Arc<Self>) {
        if !self.come_behind().await {
            return;
        }
        let Ok(_order) = self.order.try_lock() else { return };
        while matches!(self.commit(BufferNo::MAX, None).await, Outcome::Committed) {}
    }

    /// [`Self::write_back`] in the background, unless someone flushes or commits already. A failure
    /// is noted.
    pub fn flush_behind(self: &Arc<Self>) {
        if self.context.log.is_unpublished(self.ino) && self.defer() {
            return self.context.log.wake();
        }
        let file = self.clone();
        let mut span = Span::root("write back");
        span.note("weft.inode", file.ino.0);
        tokio::spawn(span.around(async move {
            if !file.come_behind().await {
                return;
            }
            let Ok(_order) = file.order.try_lock() else { return };
            file.flush_in_order(None).await;
        }));
    }

    /// Waits until what was done to the file before is told, unless somebody does already. Answers
    /// whether it was.
    async fn come_behind(&self) -> bool {
        if !self.context.log.is_unpublished(self.ino) && !self.is_new() {
            return true;
        }
        if self.comes_behind.swap(true, Ordering::AcqRel) {
            return false;
        }
        let settled = self.context.log.settle(&[self.ino]).await;
        self.comes_behind.store(false, Ordering::Release);
        self.note_not_made();
        settled.is_ok()
    }
}
