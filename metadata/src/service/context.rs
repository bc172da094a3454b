//! One request of a client, and what its answer is made with.

use super::long_reads::LongReads;
use crate::conflicts;
use crate::node::Node;
use crate::soft::leases::Mode;
use crate::soft::targets::Targets;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_net::buggify::{self, Point};
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, v1};

/// Who waits for others is answered so long before its deadline, if there is nothing to tell.
const WAIT_SLACK: Duration = Duration::from_secs(1);

/// One request of a client, and what its answer is made with.
pub struct RequestContext<'a> {
    pub node: &'a Arc<Node>,
    pub targets: &'a Targets,
    pub shutdown: &'a watch::Receiver<bool>,
    /// Room for reads that look at very much.
    pub long_reads: &'a LongReads,
    /// Who asks; 0: nobody who is to be kept in step with others.
    pub session: SessionId,
    pub deadline: Instant,
    pub request: v1::MetaRequest,
}

impl RequestContext<'_> {
    /// Returns the term when this server leads.
    pub async fn lead(&self) -> Result<u64> {
        self.node.lead(self.deadline).await
    }

    /// What is asked for.
    pub fn op(&self) -> Result<&Op> {
        let missing = || Error::new(ErrorKind::Protocol, "a metadata request without an operation");
        self.request.op.as_ref().ok_or_else(missing)
    }

    /// What the state answers.
    pub fn read(&self) -> Result<v1::MetaReply> {
        self.node.state.read(&self.request)
    }

    /// Until when who waits for others is kept waiting for an answer that says that there is none
    /// yet.
    pub fn wait_until(&self) -> Instant {
        self.deadline.checked_sub(WAIT_SLACK).unwrap_or(self.deadline)
    }

    /// Grants a lease to who asks, if nothing stands against it or `must` is set.
    pub fn grant(&self, ino: InodeId, mode: Mode, must: bool) -> Option<v1::Grant> {
        if !must && buggify::fires(Point::GrantWithheld) {
            return None;
        }
        self.node.soft.with(|s| s.leases.grant(Instant::now(), self.session, ino, mode, must))
    }

    /// Returns when this server leads, holds all that was acknowledged, knows what all sessions
    /// hold, and nobody else buffers writes of `ino` or makes files in it on its own. Without a
    /// session nobody is asked to flush: checks and listings want the committed state.
    pub async fn may_read(&self, ino: Option<InodeId>) -> Result<()> {
        self.lead().await?;
        self.node.read_barrier().await?;
        if self.session.0 == 0 {
            return Ok(());
        }
        conflicts::all_declared(self.node, self.session, self.deadline).await?;
        match ino {
            Some(ino) => conflicts::readable(self.node, self.session, ino, self.deadline).await,
            None => Ok(()),
        }
    }

    /// Grants the right to write, and with it that to lock without asking if nobody else holds or
    /// wants a lock. The state is read after the grant, which is refused while another locks.
    pub fn grant_to_write(&self, ino: InodeId) -> Result<Option<v1::Grant>> {
        let Some(mut grant) = self.grant(ino, Mode::Write, false) else { return Ok(None) };
        let wanted = self.node.soft.with(|s| s.locks.others_wait(self.session, ino));
        grant.locks = !wanted && !self.node.state.others_hold_locks(self.session, ino)?;
        Ok(Some(grant))
    }

    /// Grants the right to change names in a directory without asking.
    pub fn grant_to_make(&self, dir: InodeId) -> Result<Option<v1::Grant>> {
        let Some(mut grant) = self.grant(dir, Mode::Write, false) else { return Ok(None) };
        grant.layout = self.node.state.layout(dir)?;
        Ok(Some(grant))
    }
}

/// An answer without leases.
pub fn reply(result: Reply) -> v1::MetaReply {
    v1::MetaReply { result: Some(result), ..Default::default() }
}

/// An answer with leases.
pub fn granted(result: Reply, grants: Vec<v1::Grant>) -> v1::MetaReply {
    v1::MetaReply { result: Some(result), grants, ..Default::default() }
}

/// The answer of what answers nothing.
pub fn empty() -> v1::MetaReply {
    reply(Reply::Empty(v1::Empty {}))
}

/// What only comes along with an answer may be missing: what was asked for was done, and that must
/// be told.
pub fn without(extra: Result<()>, what: &str) {
    if let Err(e) = extra {
        tracing::error!("an answer goes without {what}: {e}");
    }
}
