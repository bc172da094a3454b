//! Shortening the log.
//!
//! Invariant: an entry is forgotten only when the state that includes it is durable: after a power
//! loss the state is rebuilt from the log.

use super::driver::{Driver, Side, raft_failed};
use super::setup::LogJob;
use crate::raftlog::Append;
use weft_proto::Result;

impl Driver {
    /// The index up to which the log may be forgotten: not what an active follower still needs,
    /// unless it is too far behind.
    fn compactable(&self) -> u64 {
        let raft = &self.raw.raft;
        let (applied, keep) = (raft.raft_log.applied, self.node.config.log_entries);
        let floor = applied.saturating_sub(4 * keep);
        let needed = raft
            .prs()
            .iter()
            .filter(|(id, progress)| **id != raft.id && progress.recent_active)
            .map(|(_, progress)| progress.matched)
            .min()
            .filter(|_| self.leads.is_some());
        needed.unwrap_or(applied).min(applied.saturating_sub(keep / 2)).max(floor)
    }

    /// Starts to shorten the log if it has grown: the state must be durable first, since it is
    /// rebuilt from the log after a power loss.
    pub(super) fn compact(&mut self) {
        let begins = self.raw.store().truncated().index;
        if self.syncing || self.compactable() < begins + self.node.config.log_entries {
            return;
        }
        self.syncing = true;
        let (node, done) = (self.node.clone(), self.side_done.clone());
        tokio::spawn(async move {
            let state = node.state.clone();
            let _ = done.send(Side::Synced(node.env.blocking(move || state.sync()).await));
        });
    }

    pub(super) fn truncate(&mut self, durable: u64) -> Result<()> {
        let to = self.compactable().min(durable).min(self.raw.raft.raft_log.applied);
        if to <= self.raw.store().truncated().index {
            return Ok(());
        }
        let at = self.raw.mut_store().truncate(to).map_err(raft_failed)?;
        let append = Append { truncate: Some(at), ..Append::default() };
        self.write(LogJob { number: 0, append })
    }
}
