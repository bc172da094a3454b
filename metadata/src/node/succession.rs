//! Who follows a leader whose process has died, before an election timeout has passed.
//!
//! The kernel of its machine closes the connections of a process that dies. A follower whose
//! connection to the leader has ended, and that does not hear of it over the leader's own, stands
//! for election, and helps to elect another, after a short silence: one after the other, since two
//! at once would split the votes and wait for a timeout after all.
//!
//! Invariant: nobody elects another within the `least_silence` of its configuration after it heard
//! of the leader, who counts on the least of those when it answers reads ([`super::lease`]): each
//! says what its own is, and an older version, which does not, counts on election timeouts. That a
//! connection has ended is a reason to listen, and proves nothing.

use super::driver::Driver;
use super::group::Orphaned;
use raft::StateRole;
use raft::eraftpb::Message;
use tokio::time::Instant;
use weft_proto::NodeId;

impl Driver {
    /// The lease lasts as long as everybody waits at least, of those that have said so.
    pub(super) fn count_on_least(&self) {
        let others = self.group.least_silences.values().filter(|time| !time.is_zero());
        let own = self.node.config.least_silence();
        self.node.lease.count_on(others.fold(own, |least, time| least.min(*time)));
    }

    /// The connection to `peer` has ended.
    pub(super) fn on_ended(&mut self, peer: NodeId) {
        self.node.forget_known_entries(peer);
        self.announced.reconnects(peer.0);
        let raft = &self.raw.raft;
        if raft.state == StateRole::Follower && raft.leader_id == peer.0 {
            let (leader, term, since) = (raft.leader_id, raft.term, Instant::now());
            self.group.orphaned = Some(Orphaned { leader, term, since, next: since });
        }
    }

    /// When the leader that may be dead was last heard of.
    fn last_heard(&self) -> Option<Instant> {
        let (orphaned, raft) = (self.group.orphaned.as_ref()?, &self.raw.raft);
        let waits = match raft.state {
            StateRole::Follower => raft.leader_id == orphaned.leader,
            // It asks who would elect it.
            StateRole::PreCandidate => true,
            _ => false,
        };
        // One that does not say so counts on an election timeout.
        let counts_on = self.group.least_silences.get(&orphaned.leader);
        let counts_on_silence = counts_on.is_some_and(|time| !time.is_zero());
        (waits && raft.term == orphaned.term && counts_on_silence)
            .then(|| self.heard.get(&orphaned.leader).copied())
            .flatten()
    }

    /// When it has been silent for long enough that another may be elected.
    fn silent_at(&self) -> Option<Instant> {
        let (orphaned, heard) = (self.group.orphaned.as_ref()?, self.last_heard()?);
        let silence = self.node.config.least_silence();
        let speaks = heard > orphaned.since + silence;
        (!speaks).then_some(heard + silence)
    }

    /// Whether it is the leader, and may be dead.
    pub(super) fn seems_dead(&self, leader: NodeId) -> bool {
        let Some(orphaned) = &self.group.orphaned else { return false };
        // What it sent before comes within a moment.
        let heard_since = |heard| heard > orphaned.since + self.node.config.tick();
        orphaned.leader == leader.0 && self.last_heard().is_some_and(|heard| !heard_since(heard))
    }

    /// When this server stands for election, because the leader seems to be dead: until an
    /// election timeout does the same.
    pub(super) fn stands_at(&self) -> Option<Instant> {
        let (silent_at, orphaned) = (self.silent_at()?, self.group.orphaned.as_ref()?);
        let raft = &self.raw.raft;
        let mut voters: Vec<u64> = raft.prs().conf().voters().ids().iter().collect();
        voters.retain(|&id| id != orphaned.leader);
        voters.sort_unstable();
        let place = voters.iter().position(|&id| id == raft.id)?;
        let config = &self.node.config;
        let at = (silent_at + config.tick() * place as u32).max(orphaned.next);
        (at < silent_at + config.election_timeout()).then_some(at)
    }

    /// Stands for election, if it is time to.
    pub(super) fn stand(&mut self) {
        let now = Instant::now();
        if self.stands_at().is_none_or(|at| now < at) {
            return;
        }
        if let Some(orphaned) = &mut self.group.orphaned {
            // Who is asked may have heard of the leader a moment later, and says nothing.
            orphaned.next = now + self.node.config.tick() * 2;
        }
        if self.caught_up() {
            tracing::info!(
                id = self.raw.raft.id,
                "the leader's connections have ended: who leads?"
            );
            if let Err(e) = self.raw.campaign() {
                tracing::debug!("raft stands for no election: {e}");
            }
        }
    }

    /// Whether this server may vote for who asks for that; see [`crate::join`].
    pub(super) fn may_elect(&self, asks: &Message) -> bool {
        let admitted = self.wiring.admitted;
        let reaches = (asks.log_term, asks.index) >= (admitted.term, admitted.index);
        let muted = self.mute_until.is_some_and(|until| Instant::now() < until);
        !muted && (self.caught_up() || admitted.term > 0 && reaches)
    }

    /// Before a vote: whether another may be elected is not a matter of a timeout any more, if the
    /// leader seems to be dead.
    pub(super) fn give_up_leader(&mut self) {
        if self.silent_at().is_some_and(|at| at <= Instant::now()) {
            let elapsed = &mut self.raw.raft.election_elapsed;
            *elapsed = (*elapsed).max(self.node.config.election_ticks());
        }
    }
}
