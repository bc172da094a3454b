//! Shortening the log.
//!
//! Invariant: an entry is forgotten only when the state that includes it is durable: after a power
//! loss the state is rebuilt from the log.

use super::driver::{Driver, Side};
use super::setup::LogJob;
use crate::raftlog::Append;
use weft_proto::Result;
use weft_proto::planted::{self, Bug};

/// The log grows to so many times what it is shortened from while a snapshot is on its way.
const MAX_BEHIND: u64 = 16;

impl Driver {
    /// The index up to which the log may be forgotten: not what an active follower still needs,
    /// unless it is too far behind, in entries or in bytes. Nor what comes after a snapshot that is
    /// being made or sent, unless that is very much: it would be of no use without.
    pub(super) fn compactable(&self) -> u64 {
        let raft = &self.raw.raft;
        let (applied, config) = (raft.raft_log.applied, &self.node.config);
        let behind = |entries: u64, bytes: u64| {
            let by_bytes = self.raw.store().lengths().before_last(bytes);
            applied.saturating_sub(entries).max(by_bytes.min(applied))
        };
        let floor = behind(4 * config.log_entries, 4 * config.log_bytes);
        let needed = raft
            .prs()
            .iter()
            .filter(|(id, progress)| **id != raft.id && progress.recent_active)
            .map(|(_, progress)| progress.matched)
            .min()
            .filter(|_| self.leads.is_some());
        let spare = behind(config.log_entries / 2, config.log_bytes / 2);
        let to = needed.unwrap_or(applied).min(spare).max(floor);
        match self.raw.store().offered().or(self.making) {
            Some(at) => to.min(at.max(behind(u64::MAX, MAX_BEHIND * config.log_bytes))),
            None => to,
        }
    }

    /// Starts to shorten the log if it has grown: the state must be durable first, since it is
    /// rebuilt from the log after a power loss.
    pub(super) fn compact(&mut self) {
        if self.syncing {
            return;
        }
        let (store, config, to) = (self.raw.store(), &self.node.config, self.compactable());
        let entries = to.saturating_sub(store.truncated().index);
        if entries < config.log_entries && store.lengths().up_to(to) < config.log_bytes {
            return;
        }
        self.syncing = true;
        let (node, done) = (self.node.clone(), self.side_done.clone());
        tokio::spawn(async move {
            let state = node.state.clone();
            let sync = move || match planted::is(Bug::StateUnsynced) {
                false => state.sync(),
                true => Ok(state.applied()),
            };
            let _ = done.send(Side::Synced(node.env.blocking(sync).await));
        });
    }

    pub(super) fn truncate(&mut self, durable: u64) -> Result<()> {
        let to = self.compactable().min(durable).min(self.raw.raft.raft_log.applied);
        if to <= self.raw.store().truncated().index {
            return Ok(());
        }
        // An entry that does not read is told of; another comes next.
        let Ok(at) = self.raw.mut_store().truncate(to) else { return Ok(()) };
        let append = Append { truncate: Some(at), ..Append::default() };
        self.write(LogJob { number: 0, append })
    }
}
