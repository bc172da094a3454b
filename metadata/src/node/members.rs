//! The group as it changes: who may take part, and how a leader hands its lead to another.
//!
//! Invariants: Raft's configuration is what the replicated state says as of the last applied entry;
//! a leader that hands its lead over answers nobody from then on, and does not come back to it in
//! that term: the other may begin to lead at any moment, without waiting for leases to run out.

use super::apply::Applied;
use super::driver::{Driver, raft_failed};
use super::group::{Farewell, HandOver, MAX_GROUPS};
use super::{Abdication, Node, membership_of};
use crate::config::Member;
use crate::folder::MOVE_AWAY;
use crate::replication::Speaker;
use crate::tables::members::{Membership, same};
use raft::StateRole;
use raft::eraftpb::{Message, MessageType};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use weft_proto::{Error, ErrorKind, NodeId, Result, v1};

/// Whoever did not take the lead is not offered it again for this long.
const FAILED_HEIR_INTERVAL: Duration = Duration::from_secs(60);
/// Ticks between the moment when a leader answers nobody any more and that when another may lead:
/// what it was about to answer is on its way then.
const QUIET_TICKS: u32 = 2;

impl Node {
    /// The address of a member.
    pub fn address_of(&self, id: NodeId) -> Option<String> {
        self.membership().get(id.0).map(|m| m.address.clone())
    }

    /// Who belongs to the group, as last applied here.
    pub fn membership(&self) -> Arc<Membership> {
        self.membership.lock().clone()
    }

    /// What is known of the other servers; of the leader's only.
    pub fn followers(&self) -> Vec<v1::MemberStat> {
        self.followers.lock().clone()
    }

    /// Says for people what a change of the group waits for; empty: nothing.
    pub fn say_waits(&self, what: String) {
        *self.waits.lock() = what;
    }

    /// What a change of the group waits for.
    pub fn waits(&self) -> String {
        self.waits.lock().clone()
    }

    /// Becomes true when this server has left the group.
    pub fn watch_removed(&self) -> watch::Receiver<bool> {
        self.removed.subscribe()
    }

    /// Hands the lead to `to`, or to who is furthest; answers to whom. It is done when another
    /// leads; if that fails, the group elects whom it wants. Errors: `NotLeader`; `NotFound`, that
    /// has no vote; `Unavailable`, it does not answer.
    pub async fn abdicate(&self, to: Option<NodeId>) -> Result<NodeId> {
        let (reply, answer) = oneshot::channel();
        self.abdications.send((to, reply)).await.map_err(|_| super::stopping())?;
        answer.await.map_err(|_| super::stopping())?
    }
}

impl Driver {
    /// Carries out what the state says has changed of the group.
    pub(super) fn on_members(&mut self, applied: &Applied) -> Result<()> {
        // A snapshot that is about to be installed has brought a later configuration.
        let newer = self.raw.snap().map_or(0, |snapshot| snapshot.get_metadata().index);
        let last = applied.members.last().map(|(index, _)| *index);
        for (index, change) in applied.members.iter().filter(|(index, _)| *index > newer) {
            let conf = self.raw.apply_conf_change(change).map_err(raft_failed)?;
            tracing::info!(index, ?conf, "the group has changed");
            let recorded = applied.conf.as_ref().filter(|_| last == Some(*index));
            if let Some(recorded) = recorded.filter(|recorded| !same(recorded, &conf)) {
                let what = format!(
                    "Raft's configuration here is {conf:?} and the group's is {recorded:?}: this \
                     server began in another group; {MOVE_AWAY}"
                );
                return Err(Error::new(ErrorKind::Corrupt, what));
            }
            let raft = &mut self.raw.raft;
            let votes = conf.voters.contains(&raft.id) || conf.voters_outgoing.contains(&raft.id);
            if raft.state == StateRole::Leader && !votes {
                raft.become_follower(raft.term, raft::INVALID_ID);
            }
            self.raw.mut_store().set_conf_state(conf);
            // Who has just come must find itself in the snapshot that it is sent.
            self.raw.mut_store().offer_snapshot(None);
            self.wiring.snapshots.discard();
        }
        Ok(())
    }

    /// The state says who belongs to the group, and where they are.
    pub(super) fn publish_members(&mut self) -> Result<()> {
        let members = Arc::new(membership_of(&self.node.state, &self.node.config)?);
        let me = self.node.config.id;
        let others = members.members.iter().filter(|m| m.id != me.0);
        self.wiring
            .links
            .set(others.map(|m| Member { id: NodeId(m.id), address: m.address.clone() }));
        if members.removed.contains(&me.0) {
            self.leave(members.members.clone());
        }
        *self.node.membership.lock() = members;
        Ok(())
    }

    /// This server has left the group that these belong to now.
    fn leave(&mut self, members: Vec<v1::NodeInfo>) {
        for m in members.iter().filter(|m| m.id != self.node.config.id.0) {
            self.wiring.links.hear(Member { id: NodeId(m.id), address: m.address.clone() });
        }
        let farewell = self.group.farewell.get_or_insert_with(|| Farewell {
            groups: Vec::new(),
            told: BTreeSet::new(),
            next: Instant::now(),
        });
        if !members.is_empty() && !farewell.groups.contains(&members) {
            farewell.groups.push(members);
            let old = farewell.groups.len().saturating_sub(MAX_GROUPS);
            farewell.groups.drain(..old);
        }
    }

    /// What a server answered to a message.
    pub(super) fn on_ack(&mut self, peer: NodeId, ack: v1::RaftAck) {
        self.node.note_low(peer, ack.low_on_room && !ack.removed);
        self.node.note_known_entries(peer, ack.known_entries);
        self.announced.hear(peer.0, ack.cannot_fetch);
        match ack.damaged {
            true => self.group.leaving.damaged.insert(peer.0),
            false => self.group.leaving.damaged.remove(&peer.0),
        };
        // Nor may one come back that would pass over what all others know.
        if ack.changes_members && ack.known_entries >= self.node.once_known() {
            self.group.old_versions.remove(&peer.0);
            self.group.withheld.remove(&peer.0);
        } else {
            self.group.old_versions.insert(peer.0);
        }
        if !ack.removed {
            return;
        }
        self.leave(ack.members);
        let Some(farewell) = &mut self.group.farewell else { return };
        farewell.told.insert(peer.0);
        let told = |members: &Vec<v1::NodeInfo>| {
            let vote = |m: &&v1::NodeInfo| {
                matches!(m.role(), v1::MemberRole::Voter | v1::MemberRole::Incoming)
            };
            let voters: Vec<u64> = members.iter().filter(vote).map(|m| m.id).collect();
            2 * voters.iter().filter(|id| farewell.told.contains(id)).count() > voters.len()
        };
        if farewell.groups.iter().any(told) {
            self.node.removed.send_replace(true);
        }
    }

    /// Asks those that stay whether they know that this server has left.
    pub(super) fn say_farewell(&mut self) {
        let Some(farewell) = &mut self.group.farewell else { return };
        if Instant::now() < farewell.next {
            return;
        }
        farewell.next = Instant::now() + self.node.config.election_timeout();
        let raft = &self.raw.raft;
        let all: BTreeSet<u64> = farewell.groups.iter().flatten().map(|m| m.id).collect();
        for id in all.into_iter().filter(|id| *id != raft.id) {
            if let Some(link) = self.wiring.links.get(id) {
                // Changes nothing for whoever takes it.
                let mut message = Message { from: raft.id, to: id, ..Default::default() };
                message.set_msg_type(MessageType::MsgHeartbeatResponse);
                message.term = raft.term;
                link.send(message);
            }
        }
    }

    /// A server that may be unknown here says where it is.
    pub(super) fn on_sender(&mut self, sender: Speaker) {
        let Speaker { member, least_silence } = sender;
        if self.raw.raft.prs().get(member.id.0).is_some() {
            self.group.least_silences.insert(member.id.0, least_silence);
            self.count_on_least();
        }
        self.wiring.links.hear(member);
    }

    /// What the leader knows of the others, for whoever changes the group.
    pub(super) fn note_followers(&mut self) {
        let raft = &self.raw.raft;
        let patience = self.node.config.election_timeout();
        let stat = |(&id, progress): (&u64, &raft::Progress)| v1::MemberStat {
            id,
            matched_index: progress.matched,
            active: self.heard.get(&id).is_some_and(|heard| heard.elapsed() < patience),
            old_version: self.group.old_versions.contains(&id),
            failed_heir: self.failed(id),
        };
        let others = raft.prs().iter().filter(|(id, _)| **id != raft.id);
        let followers = if self.leads.is_some() { others.map(stat).collect() } else { Vec::new() };
        *self.node.followers.lock() = followers;
    }

    pub(super) fn on_abdication(&mut self, (to, reply): Abdication) {
        let heir = self.heir(to);
        if let Ok(to) = &heir {
            tracing::info!(to = to.0, "this server hands its lead over");
            self.begin_hand_over(*to);
        }
        // Who asked may have gone.
        let _ = reply.send(heir);
    }

    pub(super) fn begin_hand_over(&mut self, to: NodeId) {
        let begins = Instant::now() + self.node.config.tick() * QUIET_TICKS;
        let term = self.raw.raft.term;
        self.group.hands_over = Some(HandOver { term, to, begins, ordered: false });
    }

    /// Whether another server has a vote, and knows what a leader must.
    pub(super) fn may_lead(&self, id: u64) -> bool {
        let role = self.node.membership().get(id).map(v1::NodeInfo::role);
        let votes = matches!(role, Some(v1::MemberRole::Voter | v1::MemberRole::Incoming));
        id != self.node.config.id.0 && votes && !self.group.old_versions.contains(&id)
    }

    fn heir(&self, to: Option<NodeId>) -> Result<NodeId> {
        if self.leads_still().is_none() {
            return Err(self.not_leader());
        }
        if let Some(to) = to.filter(|to| !self.may_lead(to.0)) {
            let what = format!("server {to} is not another one with a vote in the group");
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        let followers = self.node.followers();
        let wanted = |id: u64| to.map_or(!self.failed(id), |to| to.0 == id);
        let fit = followers.iter().filter(|f| f.active && self.may_lead(f.id) && wanted(f.id));
        let heir = fit.max_by_key(|f| f.matched_index);
        heir.map(|f| NodeId(f.id)).ok_or_else(|| {
            let what = "no server that the lead could go to answers now";
            Error::new(ErrorKind::Unavailable, what)
        })
    }

    /// Whether a server did not take the lead when it was offered that.
    fn failed(&self, heir: u64) -> bool {
        let at = self.group.failed_heirs.get(&heir);
        at.is_some_and(|at| at.elapsed() < FAILED_HEIR_INTERVAL)
    }

    /// Whether this server leads for the others to see.
    pub(super) fn answers_as_leader(&self) -> bool {
        let raft = &self.raw.raft;
        raft.state == StateRole::Leader
            && self.group.hands_over.as_ref().is_none_or(|over| over.term != raft.term)
    }

    /// Goes on with handing the lead over.
    pub(super) fn hand_over(&mut self) {
        let Some(hand_over) = &mut self.group.hands_over else { return };
        let raft = &mut self.raw.raft;
        if raft.state != StateRole::Leader || raft.term != hand_over.term {
            self.group.hands_over = None;
        } else if !hand_over.ordered {
            if Instant::now() >= hand_over.begins {
                hand_over.ordered = true;
                let to = hand_over.to;
                self.raw.transfer_leader(to.0);
            }
        } else if raft.lead_transferee.is_none() {
            tracing::warn!(to = hand_over.to.0, "it did not take the lead: the group elects");
            self.group.failed_heirs.insert(hand_over.to.0, Instant::now());
            raft.become_follower(raft.term, raft::INVALID_ID);
            self.group.hands_over = None;
        }
    }
}
