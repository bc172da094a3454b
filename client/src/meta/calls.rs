//! One request to the group and its answer, from which the leases learn.
//!
//! Invariants: a request that changes something carries its session and a number that no other
//! request of the session has, the same on every retry (I4); when its session dies while it is
//! unknown whether the request took effect, the caller gets an error and never a second effect; a
//! change that was sent is followed to its end, and what it did is known here, also if its caller
//! is gone.

use super::group::{ATTEMPT_TIMEOUT, Failed, Group};
use super::session::Session;
use crate::cache::Start;
use crate::options::after;
use crate::to_the_end::to_the_end;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use weft_net::buggify::{self, Point};
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, Result, SessionId, v1};

/// What works long on a server gets this long.
const LONG_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(600);

impl Group {
    /// A request that changes nothing that is replicated. What the answer says is believed of what
    /// has not changed here since `start`, after `heard` was called with it.
    pub async fn ask(
        &self,
        op: Op,
        start: Start,
        deadline: Instant,
        heard: impl Fn(&v1::MetaReply),
    ) -> Result<Reply> {
        loop {
            let session = self.sessions.current().id;
            match self.ask_in(session, &op, start, deadline, &heard).await {
                Err(error) if error.kind == ErrorKind::SessionExpired => {
                    self.sessions.replacement(session, deadline).await?;
                }
                answer => return answer,
            }
        }
    }

    /// As [`Self::ask`], in this session or not at all.
    pub async fn ask_in(
        &self,
        session: SessionId,
        op: &Op,
        start: Start,
        deadline: Instant,
        heard: impl Fn(&v1::MetaReply),
    ) -> Result<Reply> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let (session, of) = (session.0, Some(op.clone()));
        let request = v1::MetaRequest { session, op: of, ..Default::default() };
        let answered = self.send(&request, ATTEMPT_TIMEOUT, deadline).await?;
        heard(&answered.reply);
        self.leases.learn(start, op, &answered.reply);
        answered.result()
    }

    /// A request that works long on its server.
    pub async fn ask_patiently(&self, op: Op) -> Result<Reply> {
        let deadline = after(self.op_deadline.saturating_mul(10));
        loop {
            let session = self.sessions.current().id;
            let op = Some(op.clone());
            let request = v1::MetaRequest { session: session.0, op, ..Default::default() };
            match self.send(&request, LONG_ATTEMPT_TIMEOUT, deadline).await {
                Err(f) if f.error.kind == ErrorKind::SessionExpired => {
                    self.sessions.replacement(session, deadline).await?;
                }
                answer => return answer?.result(),
            }
        }
    }

    /// A request that changes something, once (I4).
    pub async fn change(self: &Arc<Self>, op: Op, deadline: Instant) -> Result<Reply> {
        loop {
            let session = self.sessions.current();
            match self.change_in(&session, op.clone(), deadline).await {
                Err(failed) => self.may_repeat(failed, &session, deadline).await?,
                Ok(reply) => return Ok(reply),
            }
        }
    }

    /// Returns when a change that failed in this session can be repeated in the next one. Errors:
    /// those of the change; `Io` if it may have taken effect.
    pub async fn may_repeat(
        &self,
        failed: Failed,
        session: &Session,
        deadline: Instant,
    ) -> Result<()> {
        if failed.error.kind != ErrorKind::SessionExpired {
            return Err(failed.error);
        }
        self.sessions.replacement(session.id, deadline).await?;
        if failed.ambiguous {
            return Err(Error::new(
                ErrorKind::Io,
                "the cluster declared this mount dead while a request was under way; whether it \
                 took effect is not known: check and repeat it",
            ));
        }
        Ok(())
    }

    /// As [`Self::change`], in this session or not at all.
    pub async fn change_in(
        self: &Arc<Self>,
        session: &Arc<Session>,
        op: Op,
        deadline: Instant,
    ) -> Result<Reply, Failed> {
        let (group, session) = (self.clone(), session.clone());
        to_the_end(async move { group.change_once(&session, op, deadline).await }).await
    }

    async fn change_once(
        &self,
        session: &Session,
        op: Op,
        deadline: Instant,
    ) -> Result<Reply, Failed> {
        let number = session.number(deadline).await;
        let number = number.map_err(|error| Failed { error, ambiguous: false })?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        let request = v1::MetaRequest {
            session: session.id.0,
            number: number.get(),
            acked_below: number.acked_below(),
            op: Some(op.clone()),
        };
        let _in_flight = self.leases.in_flight(&op).await;
        let start = self.leases.start();
        match self.send(&request, ATTEMPT_TIMEOUT, deadline).await {
            Ok(answered) => {
                self.leases.changed(start, &op, &answered.reply);
                if answered.repeated || buggify::fires(Point::Forgetful) {
                    // The leader that answered need not know what the change touched.
                    self.leases.unsure();
                }
                Ok(answered.result().map_err(|error| Failed { error, ambiguous: true })?)
            }
            Err(failed) => {
                match failed.ambiguous {
                    true => self.leases.unsure(),
                    false => self.leases.refused(&op),
                }
                Err(failed)
            }
        }
    }
}
