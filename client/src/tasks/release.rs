//! What has to be done before a lease is given back.
//!
//! Invariant (I6): a recall is answered after everything that was buffered or made under the lease
//! is committed, or given up and its failure noted, also what was written back in doubt; and what
//! was locked under it is told; and after nothing that was cached under it is used any more, here
//! or above ([`crate::ContentCache`]). What cannot be told keeps the lease here, until the session
//! ends with it.
//!
//! What may have been stored in memory above is written back first, while
//! it may be buffered: else each page would be a commit of its own. Of a file whose pages go with
//! the right to write nothing is there without that, and its recall waits for nobody who fills
//! pages: who does waits for that right, and so perhaps for whoever recalls.

use crate::cache::{Answering, Leases};
use crate::file::{File, Files, Taken};
use crate::locks::Locks;
use crate::meta::Sessions;
use crate::namespace::{ChangeLog, Opens, Requests};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tracing::debug;
use v1::recalls_reply::Recall;
use v1::return_leases_op::Item;
use weft_net::buggify::{self, Point};
use weft_proto::planted::{self, Bug};
use weft_proto::v1::meta_request::Op;
use weft_proto::{ErrorKind, InodeId, SessionId, v1};

/// Pause before what could not be told is told again.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Leases that are given back in one request.
pub(super) const MAX_BATCH: usize = 4096;

/// What the leader is told, and what waits until it was: who wants a new lease, and who would cache
/// above.
pub(super) type Return<'a> = (Item, Answering<'a>, Option<Taken>);

/// Gives leases back.
pub(crate) struct Releaser {
    pub requests: Arc<Requests>,
    pub log: Arc<ChangeLog>,
    pub opens: Arc<Opens>,
    pub locks: Arc<Locks>,
    pub sessions: Arc<Sessions>,
    pub leases: Arc<Leases>,
}

impl Releaser {
    /// Tells what was made in a directory, or what was buffered of a file. Answers whether all was
    /// told or given up, which the handles will be told.
    async fn publish_all(&self, ino: InodeId, file: Option<&Arc<File>>) -> bool {
        // Whoever wants to see the directory sees what was made in it.
        if let Err(error) = self.log.settle(&[ino]).await {
            debug!(%ino, %error, "what was made here is not told yet");
        }
        // Not for what is written without a right: its commit may be waiting for another mount that
        // waits for this one.
        if let Some(file) = file {
            file.write_back_owed().await;
        }
        !self.log.is_unpublished(ino) && !file.is_some_and(|file| file.owes_recall())
    }

    /// The same until it is so. Answers whether the session lasts.
    async fn publish(&self, session: SessionId, ino: InodeId, file: Option<Arc<File>>) -> bool {
        loop {
            let is_told =
                planted::is(Bug::RecallBeforeFlush) || self.publish_all(ino, file.as_ref()).await;
            if self.sessions.is_over(session) {
                self.leases.keep_ranges(ino);
                return false;
            }
            if is_told {
                return true;
            }
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// Does what has to be done before a lease of this session is given back. Answers what the
    /// leader is to be told; `None` if the session has ended, and the lease with it.
    pub async fn release<'a>(
        &'a self,
        session: SessionId,
        files: &Files,
        recall: Recall,
    ) -> Option<Return<'a>> {
        let (ino, leases) = (InodeId(recall.ino), &self.leases);
        let _turn = leases.begin_release(session, ino).await;
        if self.sessions.is_over(session) {
            return None;
        }
        let (mut taken, mut seq): (Option<Taken>, u64) = (None, recall.seq);
        loop {
            let file = files.get(ino);
            let is_taken =
                |file: &&Arc<File>| taken.as_ref().is_some_and(|taken| taken.is_of(file));
            let left = file.as_ref().filter(|file| !is_taken(file));
            if let Some(file) = left.filter(|file| file.is_mapped_under_lease(recall.keep_read)) {
                taken = Some(file.take_mapped_back().await);
                continue;
            }
            // The right to write may come meanwhile.
            let ready = left.is_none_or(|file| !file.is_cached_alone());
            let newest = leases.newest_grant(ino);
            if self.sessions.is_over(session) {
                return None;
            }
            let Some(buffered) = leases.stop_buffering(ino, ready, recall.keep_read) else {
                continue;
            };
            // More of them may have been granted since it was said that they are to go.
            seq = seq.max(newest);
            // What was written without a lease to write is on its way already, and must not be
            // waited for: its commit may be waiting for another mount that waits for this one.
            let owing = |files: &Files| files.get(ino).filter(|_| buffered);
            if !self.publish(session, ino, owing(files)).await {
                return None;
            }
            self.locks.publish(ino).await;
            taken = self.forget_cached(files, &recall, taken).await;
            // And what the cache wrote back meanwhile. The session may be over by now.
            if !recall.keep_read && !self.publish(session, ino, owing(files)).await {
                return None;
            }
            if leases.flushed(ino, recall.keep_read) {
                break;
            }
        }
        // What was opened, or given, meanwhile.
        taken = self.forget_cached(files, &recall, taken).await;
        // What was stored under the lease when that may have been over is refused once others have
        // changed the file. Only who has the right to map it can have such: no two mounts wait for
        // each other.
        while let Some(file) = files.get(ino).filter(|file| file.is_in_doubt_since(session)) {
            if !self.publish_all(ino, Some(&file)).await {
                sleep(RETRY_INTERVAL).await;
            }
            if self.sessions.is_over(session) {
                return None;
            }
        }
        buggify::pause(Point::RecallLate).await;
        let answering = leases.answering(ino);
        let Recall { ino: number, keep_read, .. } = recall;
        let (open_seq, maps) = (self.opens.tell(ino), self.opens.maps(ino));
        let item = Item { ino: number, seq, keep_read, open_seq, maps, of_map: false };
        Some((item, answering, taken))
    }

    /// Has all be forgotten that is cached above of an inode, besides what is `taken` already, if
    /// the right to read it goes. To be called while that answers who asks: the kernel takes in no
    /// attributes that were asked for before it has heard of this, and would go on with an old size
    /// if they were those of after the recall.
    async fn forget_cached(
        &self,
        files: &Files,
        recall: &Recall,
        taken: Option<Taken>,
    ) -> Option<Taken> {
        if recall.keep_read {
            return taken;
        }
        self.leases.forget_above(InodeId(recall.ino)).await;
        self.take_rest(files, InodeId(recall.ino), taken).await
    }

    /// Takes back what was cached of a file besides `taken`: it may have been opened meanwhile,
    /// also so that it may be mapped; or closed, and opened as another, while that was taken back.
    async fn take_rest(
        &self,
        files: &Files,
        ino: InodeId,
        mut taken: Option<Taken>,
    ) -> Option<Taken> {
        let is_left = |file: &Arc<File>, taken: &Option<Taken>| {
            !taken.as_ref().is_some_and(|taken| taken.is_of(file)) && !file.is_cached_alone()
        };
        while let Some(file) = files.get(ino).filter(|file| is_left(file, &taken)) {
            taken = Some(match self.opens.may_be_mapped(ino) {
                true => file.take_mapped_back().await,
                false => file.take_back().await,
            });
        }
        taken
    }

    /// Tells the leader what is given back of a session, until it has heard of it.
    pub async fn return_items(&self, session: SessionId, returns: Vec<Return<'_>>) {
        let items = returns.iter().map(|(item, ..)| *item).collect();
        let (answering, mut taken): (Vec<_>, Vec<_>) =
            returns.into_iter().map(|(_, answering, taken)| (answering, taken)).unzip();
        // Who reads or writes meanwhile asks for a new lease, which has a time limit.
        self.tell(session, items, || taken.clear()).await;
        drop(answering);
    }

    /// Tells the leader, as often as it takes to reach it: it asks for nothing twice, and others
    /// wait. When the session has ended, that has told it, and in the next one what was open then
    /// would be so for ever. Calls `late` at each failure.
    pub async fn tell(&self, session: SessionId, items: Vec<Item>, mut late: impl FnMut()) {
        let op = Op::ReturnLeases(v1::ReturnLeasesOp { items });
        while let Err(error) = self.requests.ask_in(session, &op).await {
            late();
            let passes = matches!(error.kind, ErrorKind::TimedOut | ErrorKind::Unavailable);
            if !passes || self.sessions.is_over(session) {
                debug!(%error, "leases were not returned");
                return;
            }
            debug!(%error, "leases are not returned yet; trying on");
            sleep(RETRY_INTERVAL).await;
        }
    }
}
