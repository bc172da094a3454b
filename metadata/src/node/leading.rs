//! What comes with leading a term: the soft state that begins and ends with it, and the rounds of
//! messages that prove, for reads, that nobody else leads.

use super::announced::Announced;
use super::driver::Driver;
use super::{View, map_of};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;
use tokio::time::Instant;
use weft_proto::{NodeId, Result};

impl Driver {
    pub(super) fn on_reader(&mut self, reader: oneshot::Sender<Result<()>>) {
        if self.leads.is_none() {
            let _ = reader.send(Err(self.not_leader()));
        } else {
            self.readers.push((self.round + 1, reader));
        }
    }

    /// Starts a round for readers that came since the last was sent.
    pub(super) fn ask_for_readers(&mut self) {
        if self.readers.last().is_some_and(|(round, _)| *round > self.round) {
            self.start_round();
        }
    }

    pub(super) fn start_round(&mut self) {
        if self.leads_still().is_none() {
            return; // Who waits is answered when that is published.
        }
        self.round += 1;
        self.rounds.insert(self.round, Instant::now());
        self.raw.read_index(self.round.to_be_bytes().to_vec());
    }

    pub(super) fn on_round(&mut self, context: &[u8]) {
        let Ok(round) = context.try_into().map(u64::from_be_bytes) else { return };
        let sent = self.rounds.get(&round).copied();
        self.rounds = self.rounds.split_off(&(round + 1));
        // Not before this server has applied what its predecessors acknowledged; who waits gets a
        // later round.
        if let (true, Some(sent)) = (self.ready, sent) {
            self.node.lease.extend(sent);
            for (_, reader) in self.readers.extract_if(.., |(first, _)| *first <= round) {
                let _ = reader.send(Ok(()));
            }
        }
    }

    /// Tells the rest of the server what changed.
    pub(super) fn publish(&mut self) -> Result<()> {
        let raft = &self.raw.raft;
        // Nobody is sent to who seems to be dead: it is known soon who leads instead.
        let leads = |id: &NodeId| id.0 != 0 && !self.seems_dead(*id);
        let (term, leader) = (raft.term, Some(NodeId(raft.leader_id)).filter(leads));
        let leads = self.answers_as_leader().then_some(term);
        self.node.commit.store(raft.raft_log.committed, Ordering::Relaxed);
        if leads != self.leads {
            self.leads = leads;
            self.ready = false;
            self.end_term();
        }
        if leads.is_some() && !self.ready && self.raw.raft.apply_to_current_term() {
            let sessions = self.node.state.clients()?;
            self.node.soft.with(|s| s.start(Instant::now(), term, sessions));
            self.ready = true;
        }
        let serving = self.ready && self.node.epoch().0 > 0;
        let view = View { term, leader, ready: self.ready, serving };
        self.node.view.send_if_modified(|seen| {
            let changed = *seen != view;
            if changed {
                tracing::info!(
                    id = self.node.config.id.0,
                    term,
                    leader = view.leader.map_or(0, |l| l.0),
                    ready = view.ready,
                    "raft view"
                );
            }
            *seen = view;
            changed
        });
        Ok(())
    }

    pub(super) fn end_term(&mut self) {
        self.node.lease.end();
        self.node.soft.with(|s| s.start(Instant::now(), 0, Vec::new()));
        self.rounds.clear();
        self.announced = Announced::default();
        self.raw.mut_store().rest(BTreeSet::new());
        let error = self.not_leader();
        self.pending.fail(|| super::in_doubt(&error));
        for (_, reader) in self.readers.drain(..) {
            let _ = reader.send(Err(error.clone()));
        }
    }

    pub(super) fn publish_map(&mut self) -> Result<()> {
        let (map, before) = (map_of(&self.node.state)?, self.node.map());
        if map.epoch > before.epoch {
            self.node.map_changes.lock().note(&before, &map);
            self.node.map.send_replace(Arc::new(map));
            self.publish_members()?;
        }
        Ok(())
    }
}
