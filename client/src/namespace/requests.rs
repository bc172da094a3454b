//! The requests of this mount's operations: the group hears first of what was done here, and then
//! of the request.

use super::log::ChangeLog;
use crate::meta::{Failed, Group, Session};
use std::sync::Arc;
use tokio::time::Instant;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{InodeId, Kind, Result, SessionId, v1};

/// Asks the group, and changes what it keeps.
pub(crate) struct Requests {
    group: Arc<Group>,
    log: Arc<ChangeLog>,
}

impl Requests {
    pub fn new(group: Arc<Group>, log: Arc<ChangeLog>) -> Self {
        Self { group, log }
    }

    /// When an operation that starts now fails.
    pub fn deadline(&self) -> Instant {
        self.group.deadline()
    }

    /// A request that changes nothing that is replicated.
    pub fn ask(&self, op: Op) -> impl Future<Output = Result<Reply>> + Send {
        // Boxed, so that futures around it stay small: leases answer most.
        Box::pin(async move {
            let deadline = self.deadline();
            // What is done here after that the group need not have heard of when it answers.
            let start = self.group.leases.start();
            self.settle_for(&op).await?;
            self.group.ask(op, start, deadline, |reply| self.doubt_untold(reply)).await
        })
    }

    /// As [`Self::ask`], in this session or not at all.
    pub async fn ask_in(&self, session: SessionId, op: &Op) -> Result<Reply> {
        let (deadline, start) = (self.deadline(), self.group.leases.start());
        self.settle_for(op).await?;
        let heard = |reply: &v1::MetaReply| self.doubt_untold(reply);
        Box::pin(self.group.ask_in(session, op, start, deadline, heard)).await
    }

    /// What was done here in a session that is over, and is told later, is not in what the group
    /// answers to who asked by other inodes or names: that teaches nothing of what it was done to.
    fn doubt_untold(&self, reply: &v1::MetaReply) {
        if self.log.is_empty() {
            return;
        }
        let of = |attr: &v1::Attr| InodeId(attr.ino);
        let inos: Vec<InodeId> = match &reply.result {
            Some(Reply::Attr(attr)) => vec![of(attr)],
            Some(Reply::Open(found)) => found.attr.iter().map(of).collect(),
            Some(Reply::LookupMany(found)) => {
                let found = found.items.iter().filter_map(|item| item.found.as_ref());
                found.filter_map(|found| found.attr.as_ref()).map(of).collect()
            }
            Some(Reply::LeaseMany(found)) => found.attrs.iter().map(of).collect(),
            Some(Reply::ReadDir(page)) => {
                page.entries.iter().filter_map(|entry| entry.attr.as_ref()).map(of).collect()
            }
            _ => Vec::new(),
        };
        let leases = &self.group.leases;
        let untold = |ino: &InodeId| !leases.writes(*ino) && self.log.is_unpublished(*ino);
        inos.into_iter().filter(untold).for_each(|ino| leases.unsure_of(ino));
    }

    /// A request that works long on its server.
    pub async fn ask_patiently(&self, op: Op) -> Result<Reply> {
        self.settle_for(&op).await?;
        self.group.ask_patiently(op).await
    }

    /// A request that changes something, once (I4), after all that was done before.
    pub async fn change(&self, op: Op) -> Result<Reply> {
        let deadline = self.deadline();
        loop {
            // In each session anew: more may have been done while the last one was ending.
            self.settle_for(&op).await?;
            let session = self.group.sessions.current();
            match self.group.change_in(&session, op.clone(), deadline).await {
                Err(failed) => self.group.may_repeat(failed, &session, deadline).await?,
                Ok(reply) => return Ok(reply),
            }
        }
    }

    /// [`Self::ask`] by who holds a file in order, and has waited for the log before.
    pub async fn ask_in_order(&self, op: Op) -> Result<Reply> {
        let start = self.group.leases.start();
        self.group.ask(op, start, self.deadline(), |_| ()).await
    }

    /// [`Self::change`] by who holds a file in order, and has waited for the log before: places in
    /// that wait for the file now.
    pub async fn change_in_order(&self, op: Op) -> Result<Reply> {
        self.group.change(op, self.deadline()).await
    }

    /// As [`Self::change`], in this session or not at all.
    pub async fn change_in(
        &self,
        session: &Arc<Session>,
        op: Op,
        deadline: Instant,
    ) -> Result<Reply, Failed> {
        let settled = self.settle_for(&op).await;
        settled.map_err(|error| Failed { error, ambiguous: false })?;
        self.group.change_in(session, op, deadline).await
    }

    /// As [`Self::change_in_order`], in this session or not at all.
    pub async fn commit_in_order(
        &self,
        session: &Arc<Session>,
        op: Op,
        deadline: Instant,
    ) -> Result<Reply, Failed> {
        self.group.change_in(session, op, deadline).await
    }

    /// Returns when the group knows of everything that a request is about, or why it does not. What
    /// changes names or inodes comes after everything.
    pub async fn settle_for(&self, op: &Op) -> Result<()> {
        if self.log.is_empty() && !self.log.owes() {
            return Ok(());
        }
        let footprint = op.footprint();
        let changes = !footprint.names.is_empty() || !footprint.changes.is_empty();
        match footprint.below || (changes && op.kind() == Kind::Change) {
            true => self.log.settle_all().await,
            false => self.log.settle(&footprint.concerns().collect::<Vec<_>>()).await,
        }
    }
}
