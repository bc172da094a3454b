//! A leader that cannot read what a follower needs of its log or its state: others have it whole,
//! and one of them is to lead.
//!
//! Invariants: it hands its lead only to who has all that is committed and has said nothing of the
//! kind of itself; it rests ever longer between two times, so that servers which are all damaged do
//! not hand the lead round.

use super::driver::Driver;
use tokio::time::Instant;
use weft_proto::NodeId;

impl Driver {
    /// Hands the lead to another, if this server is to lead no more and one is fit for it.
    pub(super) fn leave_as_damaged(&mut self) {
        let damage = &self.node.damage;
        if let Some(unread) = self.raw.store().take_unreadable() {
            damage.note_log(unread);
            self.group.leaving.wanted = true;
        }
        if let Some(why) = self.wiring.snapshots.take_unreadable() {
            tracing::error!("the state cannot be copied for a server that is behind: {why}");
            damage.note_copy(&why);
        }
        // By a backup, perhaps.
        self.group.leaving.wanted |= damage.take_noted();
        // After that: it may have been noted before it was forgotten.
        damage.forgets(self.raw.store().truncated().index);
        let now = Instant::now();
        self.group.leaving.wanted &= damage.what().is_some() && self.leads_still().is_some();
        if !self.group.leaving.wanted || !self.group.leaving.pause.is_over(now) {
            return;
        }
        if let Some(to) = self.whole_heir() {
            tracing::error!(to = to.0, "this server is damaged, and hands its lead over");
            self.group.leaving.wanted = false;
            self.group.leaving.pause.grow(now);
            self.begin_hand_over(to);
        }
    }

    /// Who has all that is committed, and can give it to others.
    fn whole_heir(&self) -> Option<NodeId> {
        let committed = self.raw.raft.raft_log.committed;
        let followers = self.node.followers();
        let fit = followers.iter().filter(|f| {
            let has_all = f.active && f.matched_index >= committed && !f.failed_heir;
            has_all && self.may_lead(f.id) && !self.group.leaving.damaged.contains(&f.id)
        });
        fit.max_by_key(|f| f.matched_index).map(|f| NodeId(f.id))
    }
}
