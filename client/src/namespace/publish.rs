//! Tells the metadata group of what is in the log: what goes together in one request, one request
//! at a time for each of [`Of`].

use super::entries::Of;
use super::log::{BATCH, ChangeLog};
use crate::meta::{Failed, Session};
use crate::options::FOR_EVER;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep_until, timeout_at};
use weft_net::trace::carried;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, v1};

/// What is ready waits no longer for the content of files that come behind it.
const FILL_TIMEOUT: Duration = Duration::from_millis(5);

impl ChangeLog {
    /// Returns when the group knows of all that was done to these inodes, or why it does not.
    pub async fn settle(self: &Arc<Self>, inos: &[InodeId]) -> Result<()> {
        match inos.is_empty() || self.is_empty() {
            true => Ok(()),
            false => self.settle_those(Some(inos)).await,
        }
    }

    /// [`Self::settle`] for all that was done, with content that has lost its place. Not for who
    /// commits content.
    pub async fn settle_all(self: &Arc<Self>) -> Result<()> {
        self.settle_log().await?;
        self.pay().await
    }

    /// [`Self::settle`] for all that is in the log.
    pub async fn settle_log(self: &Arc<Self>) -> Result<()> {
        match self.is_empty() {
            true => Ok(()),
            false => self.settle_those(None).await,
        }
    }

    async fn settle_those(self: &Arc<Self>, inos: Option<&[InodeId]>) -> Result<()> {
        let deadline = self.group.deadline();
        // More may be done meanwhile.
        let [this, earlier] = self.table.lock().concerned(inos)?;
        let settle = async {
            if let Some(last) = this {
                self.settle_through(Of::This, last).await?;
            }
            // What was of this session may be of an earlier one now.
            match this.max(earlier) {
                Some(last) => self.settle_through(Of::Earlier, last).await,
                None => Ok(()),
            }
        };
        match timeout_at(deadline, settle).await {
            Ok(Ok(())) if this.max(earlier).is_some() && self.group.sessions.have_ended() => {
                Err(Error::new(ErrorKind::Unavailable, "the mount has ended"))
            }
            Ok(settled) => settled,
            Err(_) => {
                let what = "the metadata group has not answered yet what was done here";
                Err(Error::new(ErrorKind::TimedOut, what))
            }
        }
    }

    /// Tells all up to an entry.
    async fn settle_through(self: &Arc<Self>, of: Of, last: u64) -> Result<()> {
        let waits = || {
            let first = self.table.lock().queue(of).front().map(|entry| entry.seq);
            first.is_some_and(|first| first <= last)
        };
        while waits() {
            let turn = self.turns[of as usize].clone().lock_owned().await;
            if !waits() {
                break;
            }
            match self.publish(turn, of).await {
                // In the next session, if there is one.
                Err(error)
                    if error.kind == ErrorKind::SessionExpired
                        && !self.group.sessions.have_ended() => {}
                told => told?,
            }
        }
        Ok(())
    }

    /// Returns when something is to be told that nobody waits for. Only one may wait.
    pub async fn is_due(&self, of: Of) {
        loop {
            let at = {
                let mut table = self.table.lock();
                let many = table.len() >= BATCH || self.hurry.load(Ordering::Acquire);
                let first = table.queue(of).front();
                first.map(|entry| (entry.at + self.publish_age, many || of == Of::Earlier))
            };
            match at {
                Some((at, many)) if many || at <= Instant::now() => return,
                Some((at, _)) => tokio::select! {
                    biased;
                    () = self.due[of as usize].notified() => {}
                    () = sleep_until(at) => {}
                },
                None => self.due[of as usize].notified().await,
            }
        }
    }

    /// Tells what there is by now.
    pub async fn publish_behind(self: &Arc<Self>, of: Of) -> Result<()> {
        if of == Of::This {
            self.hurry.store(false, Ordering::Release);
        }
        let last = self.table.lock().tail();
        self.settle_through(of, last).await
    }

    /// One request for what comes first, by whoever has the turn. Others wait for what it is told:
    /// it goes on whatever the caller does.
    async fn publish(self: &Arc<Self>, turn: OwnedMutexGuard<()>, of: Of) -> Result<()> {
        let log = self.clone();
        let publishing = tokio::spawn(carried(async move {
            let _turn = turn;
            log.publish_batch(of).await
        }));
        let ended = |error| Error::new(ErrorKind::Unavailable, format!("the mount ends: {error}"));
        publishing.await.map_err(ended)?
    }

    async fn publish_batch(self: &Arc<Self>, of: Of) -> Result<()> {
        let session = self.group.sessions.current();
        let has_earlier = {
            let mut table = self.table.lock();
            if table.part(session.id) {
                self.owe();
            }
            !table.earlier.is_empty()
        };
        if of == Of::This && has_earlier {
            self.due[Of::Earlier as usize].notify_one();
        }
        if of == Of::This {
            self.are_filled(&session).await;
        }
        let (steps, waiters, owner) = self.table.lock().batch(of, session.id);
        if steps.is_empty() {
            // Content goes with the session, and what else there is, is told in the next one.
            if self.group.sessions.is_over(session.id) {
                self.group.sessions.replacement(session.id, self.group.deadline()).await?;
            }
            return Ok(());
        }
        let count = steps.len();
        let op = Op::Batch(v1::BatchOp { steps, session: owner.0, ..Default::default() });
        // What it tells of was answered long ago, and is not given up.
        let answer = self.group.change_in(&session, op, Instant::now() + FOR_EVER).await;
        let reply = match answer {
            Ok(Reply::Batch(reply)) if reply.done.len() <= count => Ok(reply),
            Ok(_) => {
                let error = Error::new(ErrorKind::Protocol, "the reply to a batch is another's");
                Err(Failed { error, ambiguous: true })
            }
            Err(failed) => Err(failed),
        };
        let outcome = match reply {
            Ok(reply) => {
                self.were_told(of, reply, waiters);
                Ok(())
            }
            Err(failed) => {
                let error = failed.error.clone();
                self.were_not_told(of, &failed, waiters);
                if error.kind == ErrorKind::SessionExpired {
                    // The rest is told in the next one.
                    let _ =
                        self.group.sessions.replacement(session.id, self.group.deadline()).await;
                }
                Err(error)
            }
        };
        self.counted(&self.table.lock());
        outcome
    }

    /// Asks for content, and waits until what comes next can be told, or the session is over.
    async fn are_filled(self: &Arc<Self>, session: &Session) {
        loop {
            let (first, all) = self.call();
            if all || self.group.sessions.is_over(session.id) {
                return;
            }
            // What is ready need not wait long for what is not.
            if first {
                let soon = Instant::now() + FILL_TIMEOUT;
                if timeout_at(soon, self.filled.notified()).await.is_err() {
                    return;
                }
            } else {
                self.filled.notified().await;
            }
        }
    }
}
