//! A mount goes from the process that serves it to another: what this one gives.
//!
//! Whoever serves a session may send no request that the other does not know of, and must not give
//! back what the other believes to have. So this process comes to rest first: everything that was
//! written is committed, every task has ended, every request is answered, and none can be begun.
//! Only signs of life go on: they change nothing.
//!
//! Invariant: of two processes that have had a session, one sends requests with numbers in it, and
//! holds its leases: this one until the state was given and from [`Filesystem::resume`] on, the
//! other in between, once it was told that it may ([`super::Successor`]).

use super::facade::Filesystem;
use crate::meta::{RENEWAL_INTERVAL, renew};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};
use weft_proto::{Error, ErrorKind, Result, Uuid, v1};

/// How often is looked whether the mount is at rest.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

impl Filesystem {
    /// Has the group know of everything that was written and locked, as far as that is possible by
    /// `deadline`. Answers whether it does; failures are told to the handles alone.
    pub async fn commit_all(&self, deadline: Instant) -> bool {
        let inner = &self.inner;
        let committed = async {
            self.publish_atimes().await;
            // A failure was noted for the handles of its file.
            let _ = inner.files.commit_all().await;
            // What cannot be told is lost.
            if inner.group.leases.live() {
                inner.locks.publish_each().await;
            }
        };
        timeout_at(deadline, committed).await.is_ok()
    }

    /// Brings the mount to rest, for another process to go on with it. No operation may be under
    /// way, nor be begun before [`Self::resume`]. Errors: `Busy` if there is no rest by `deadline`,
    /// with what there is none of; the mount goes on then, as it does if this is dropped.
    pub async fn hand_over(&self, deadline: Instant) -> Result<v1::ClientState> {
        if !self.commit_all(deadline).await {
            return Err(busy("what was written is not committed yet"));
        }
        let resting = Resting(Some(self));
        self.inner.supervisor.rest().await;
        self.show_life();
        loop {
            match self.at_rest() {
                Ok(state) => {
                    resting.stay();
                    return Ok(state);
                }
                Err(why) if Instant::now() >= deadline => return Err(busy(&why)),
                Err(_) => sleep(LOOK_INTERVAL).await,
            }
        }
    }

    /// Renews the session until the mount is resumed or left.
    fn show_life(&self) {
        let (group, ttl) = (self.inner.group.clone(), self.inner.ttl());
        let showing = tokio::spawn(async move {
            loop {
                // The next one is tried.
                let _ = renew(&group, group.sessions.current().id, <_>::default(), ttl).await;
                sleep(RENEWAL_INTERVAL.min(ttl / 4)).await;
            }
        });
        self.life(Some(showing.abort_handle()));
    }

    fn life(&self, life: Option<AbortHandle>) {
        let before = std::mem::replace(&mut *self.inner.life.lock(), life);
        if let Some(before) = before {
            before.abort();
        }
    }

    /// What the next process goes on with, or why it cannot.
    fn at_rest(&self) -> Result<v1::ClientState, String> {
        self.inner.log.seal();
        self.look_at_rest().inspect_err(|_| self.inner.log.unseal())
    }

    fn look_at_rest(&self) -> Result<v1::ClientState, String> {
        let inner = &self.inner;
        let (sessions, leases) = (&inner.group.sessions, &inner.group.leases);
        // The other one has time to begin while they last.
        if leases.left() < inner.ttl() / 2 {
            return Err("no metadata leader answers".into());
        }
        let session = sessions.current();
        if sessions.is_over(session.id) || inner.opens.owes_declaration() {
            return Err("the cluster has declared this mount dead".into());
        }
        inner.files.sweep();
        let last_open =
            inner.opens.at_rest(inner.files.handles_open()).ok_or("a file is being closed")?;
        let (last_ticket, locks) = inner.locks.at_rest().ok_or("a lock is being changed")?;
        let (last_request, last_segment) =
            session.seal().ok_or("a request to the cluster is under way")?;
        let (files, directories) = inner.files.at_rest().map_err(|ino| {
            session.unseal();
            format!("inode {ino} is in use")
        })?;
        // After the files: what one of them loses until it rests is in there.
        let mut state = v1::ClientState::default();
        if !inner.log.hand_over(&mut state) {
            session.unseal();
            return Err("a new file is not known to the cluster".into());
        }
        let (leases, surplus) = leases.at_rest();
        state = v1::ClientState {
            session: session.id.0,
            last_request,
            last_segment,
            last_open,
            last_ticket,
            leases,
            surplus,
            files,
            directories,
            locks,
            ..state
        };
        inner.group.confinement.hand_over(&mut state);
        state.incarnation = inner.group.incarnation.get().copied().unwrap_or_default();
        Ok(state)
    }

    /// Goes on: no other process took over.
    pub fn resume(&self) {
        let inner = &self.inner;
        self.life(None);
        inner.group.sessions.current().unseal();
        inner.log.unseal();
        inner.supervisor.resume();
        inner.watch_map();
        inner.start();
        // What the tasks that were ended had begun.
        inner.group.leases.resume();
        inner.log.wake();
        if inner.group.leases.live() {
            inner.files.revive();
        }
    }

    /// Another process has taken over: this one sends nothing any more.
    pub fn leave(&self) {
        self.life(None);
        self.inner.supervisor.stop();
        self.inner.end();
    }

    /// Addresses of the metadata servers that there are now, and the cluster.
    pub fn cluster(&self) -> (Vec<String>, Option<Uuid>) {
        let servers = self.inner.segments.map().servers(&self.inner.options.metadata);
        (servers, self.inner.cluster())
    }
}

/// All tasks have ended. The mount goes on when this is dropped.
struct Resting<'a>(Option<&'a Filesystem>);

impl Resting<'_> {
    fn stay(mut self) {
        self.0 = None;
    }
}

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        if let Some(fs) = self.0 {
            fs.resume();
        }
    }
}

fn busy(why: &str) -> Error {
    Error::new(ErrorKind::Busy, format!("the mount does not come to rest: {why}"))
}
