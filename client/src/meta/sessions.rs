//! The session that this mount has now: one after the other, as the cluster declares them dead.

use super::session::Session;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use weft_proto::{Error, ErrorKind, Result, SegmentId, SessionId};
use weft_segments::Writer;

/// The session that this mount has now.
pub(crate) struct Sessions {
    current: watch::Sender<Arc<Session>>,
    dead: watch::Sender<SessionId>,
    /// There will be no other one: the mount is gone.
    ended: watch::Sender<bool>,
    /// Because the cluster was restored from a backup, which may lack what was durable before.
    stale: AtomicBool,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            current: watch::Sender::new(Arc::default()),
            dead: watch::Sender::new(SessionId(0)),
            ended: watch::Sender::new(false),
            stale: AtomicBool::new(false),
        }
    }
}

impl Writer for Sessions {
    fn next_segment(&self) -> SegmentId {
        self.current().next_segment()
    }

    fn session(&self) -> SessionId {
        self.current().id
    }

    fn has_ended(&self) -> bool {
        self.have_ended()
    }
}

impl Sessions {
    pub fn current(&self) -> Arc<Session> {
        self.current.borrow().clone()
    }

    /// Whether the session is over, as far as is known here.
    pub fn is_over(&self, id: SessionId) -> bool {
        self.have_ended() || *self.dead.borrow() >= id || self.current.borrow().id != id
    }

    /// The mount is gone: nobody waits any more.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    pub fn have_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// The cluster was restored from a backup: what was durable may be so no more.
    pub fn end_stale(&self) {
        self.stale.store(true, Ordering::Release);
        self.end();
    }

    /// Error: `Stale` if the cluster was restored since it was mounted.
    pub fn check(&self) -> Result<()> {
        match self.stale.load(Ordering::Acquire) {
            false => Ok(()),
            true => {
                let what = "the cluster was restored from a backup since it was mounted";
                Err(Error::new(ErrorKind::Stale, what))
            }
        }
    }

    /// Returns when the mount is gone.
    pub async fn ended(&self) {
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Waits for the session that replaces `dead`.
    pub async fn replacement(&self, dead: SessionId, deadline: Instant) -> Result<Arc<Session>> {
        self.dead.send_if_modified(|d| {
            let news = *d < dead;
            *d = dead.max(*d);
            news
        });
        let (mut current, mut ended) = (self.current.subscribe(), self.ended.subscribe());
        let session = tokio::select! {
            biased;
            session = current.wait_for(|s| s.id != dead) => session.ok().map(|s| s.clone()),
            _ = ended.wait_for(|ended| *ended) => None,
            () = sleep_until(deadline) => None,
        };
        match session {
            Some(session) => Ok(session),
            None => {
                let what = "of this mount dead, and no new one could be opened";
                let what = format!("the cluster declared session {dead} {what}");
                Err(Error::new(ErrorKind::SessionExpired, what))
            }
        }
    }

    /// What is newly known of the ends of sessions.
    pub fn deaths(&self) -> watch::Receiver<SessionId> {
        self.dead.subscribe()
    }

    /// The cluster has declared this session dead.
    pub fn died(&self, id: SessionId) {
        self.dead.send_replace(id);
    }

    /// The mount goes on in this session.
    pub fn begin(&self, id: SessionId) {
        self.current.send_replace(Arc::new(Session::new(id)));
    }

    /// The same, behind the last numbers that another process used.
    pub fn resume(&self, id: SessionId, last_request: u64, last_segment: u64) {
        let session = Session::resumed(id, last_request, last_segment);
        self.current.send_replace(Arc::new(session));
    }
}
