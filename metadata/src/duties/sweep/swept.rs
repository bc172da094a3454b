//! How far the looks at targets have come: one at all that a target holds, in steps between which
//! others have their turn, and then those for the sessions that end.
//!
//! What was done stays done, whatever fails behind it, as long as the target is the same opening of
//! it and does not go away: what it holds may be something else then. Bounded: a look is a place in
//! the order of chunks, and of sessions only so many are remembered for each target.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tokio::time::Instant;
use weft_proto::{ChunkId, SessionId, TargetId};

/// A target that is suspected is looked at as a whole no more often than this.
pub(super) const SUSPECT_INTERVAL: Duration = Duration::from_secs(10);
/// When all of a target is looked at once more.
const WHOLE_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// Most sessions that have ended and for which a target was not looked at yet: with more, all of it
/// is.
const MAX_ENDED: usize = 4096;

/// A target that is up.
pub(super) struct Up {
    pub address: String,
    /// The number that its daemon gave to opening it: fences are forgotten then, and with an index
    /// that was lost, chunks come back that were deleted.
    pub opened: u64,
}

/// A look at all of a target that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    /// The sessions that did not live were fenced off.
    pub is_fenced: bool,
    /// What lies behind this is still to be looked at.
    pub after: Option<ChunkId>,
    /// It finds what the target lacks, too.
    pub finds: bool,
    /// Nothing that it lacks was passed over.
    pub all_found: bool,
    /// It began while the target was given up.
    pub returns: bool,
}

/// What was seen of one opening of a target.
struct Seen {
    opened: u64,
    /// When it was last looked at as a whole.
    whole: Option<Instant>,
    pass: Option<Pass>,
    /// Sessions for which it was not looked at since they ended, and so far for the first.
    ended: VecDeque<SessionId>,
    after: Option<ChunkId>,
}

/// What was looked at already, and what is to be.
#[derive(Default)]
pub(super) struct Swept {
    /// Not those that have been away since.
    seen: BTreeMap<TargetId, Seen>,
    /// As which opening of them all was found out that targets lack: they may lose something when
    /// they are opened.
    known: BTreeMap<TargetId, u64>,
    /// Targets that failed, and until when they are left alone.
    resting: BTreeMap<TargetId, Instant>,
    /// When targets were last looked at, or could not be.
    tried: BTreeMap<TargetId, Instant>,
    /// Something was passed over, since nothing might be deleted.
    held: bool,
}

impl Swept {
    /// Targets to be looked at as a whole, of those that are up. Those of which it is not known yet
    /// what they lack are, too, if there is room to note it. Those that are waited for come first,
    /// and of the others the one that was not looked at for longest.
    pub fn whole_due(
        &mut self,
        now: Instant,
        up: &BTreeMap<TargetId, Up>,
        returning: &BTreeSet<TargetId>,
        has_room: impl Fn(TargetId) -> bool,
    ) -> Vec<TargetId> {
        self.seen.retain(|id, seen| up.get(id).is_some_and(|up| up.opened == seen.opened));
        self.resting.retain(|_, until| now < *until);
        self.tried.retain(|id, _| up.contains_key(id));
        let is_done = |id: &TargetId, seen: &Seen, at: Instant| {
            let is_known = self.known.get(id) == Some(&seen.opened) || !has_room(*id);
            now - at < SUSPECT_INTERVAL || (is_known && now - at < WHOLE_INTERVAL)
        };
        let due = |id: &&TargetId| {
            let seen = self.seen.get(id).filter(|seen| seen.pass.is_none());
            let at = seen.and_then(|seen| Some((seen, seen.whole?)));
            let done = at.is_some_and(|(seen, at)| is_done(id, seen, at));
            !done && !self.resting.contains_key(id)
        };
        let mut due: Vec<_> = up.keys().filter(due).copied().collect();
        due.sort_by_key(|id| (!returning.contains(id), self.tried.get(id).copied()));
        due
    }

    /// A look at all of a target goes on, or begins. Answers how far it is.
    pub fn go_on(&mut self, now: Instant, target: TargetId, opened: u64, returns: bool) -> Pass {
        self.tried.insert(target, now);
        let finds = self.known.get(&target) != Some(&opened);
        let (whole, pass, ended, after) = Default::default();
        let seen = self.seen.entry(target).or_insert(Seen { opened, whole, pass, ended, after });
        let new = Pass { is_fenced: false, after: None, finds, all_found: true, returns };
        // What was seen of it before it was given up may be something else by now.
        let goes_on = seen.pass.filter(|pass| pass.returns || !returns);
        *seen.pass.insert(goes_on.unwrap_or(new))
    }

    /// A look has come so far.
    pub fn came_to(&mut self, target: TargetId, pass: Pass) {
        if let Some(seen) = self.seen.get_mut(&target) {
            seen.pass = Some(pass);
        }
    }

    /// A target was looked at as a whole, or met a hold (`held`): nothing may be deleted now, and
    /// what was not looked at yet is passed over. Only who asked then knows: the clock may be set
    /// back.
    pub fn looked(&mut self, now: Instant, target: TargetId, pass: Pass, held: bool) {
        self.held |= held;
        let Some(seen) = self.seen.get_mut(&target) else { return };
        (seen.whole, seen.pass) = (Some(now), None);
        if pass.all_found {
            self.known.insert(target, seen.opened);
        }
    }

    /// As which opening of it a target was looked at as a whole, and not found wanting since.
    pub fn looked_at(&self, target: TargetId) -> Option<u64> {
        let seen = self.seen.get(&target)?;
        seen.whole.map(|_| seen.opened)
    }

    /// A target may hold what has no business there. Answers whether it is looked at soon: not if
    /// it was a moment ago, since many moves end one after another, nor if it just is.
    pub fn suspect(&mut self, now: Instant, target: TargetId) -> bool {
        let Some(seen) = self.seen.get_mut(&target) else { return true };
        let lately = seen.whole.is_some_and(|at| now - at < SUSPECT_INTERVAL);
        if lately || seen.pass.is_some() {
            return false;
        }
        seen.whole = None;
        true
    }

    /// A target is looked at from its beginning.
    pub fn forget(&mut self, target: TargetId) {
        self.seen.remove(&target);
    }

    /// If anything was passed over, all are looked at from the beginning, and for what they lack.
    pub fn hold_is_over(&mut self) {
        if std::mem::take(&mut self.held) {
            self.seen.clear();
            self.known.clear();
        }
    }

    /// Something failed: it is tried again then, where it was.
    pub fn failed(&mut self, target: TargetId, until: Instant) {
        self.resting.insert(target, until);
    }

    /// These sessions have ended: what they left is looked for wherever that is not done by a look
    /// that has not begun.
    pub fn ended(&mut self, sessions: &[SessionId]) {
        for seen in self.seen.values_mut() {
            seen.ended.extend(sessions);
            if seen.ended.len() > MAX_ENDED {
                (seen.whole, seen.pass, seen.after) = (None, None, None);
                seen.ended.clear();
            }
        }
    }

    /// Targets that are to be looked at for sessions that have ended.
    pub fn ended_due(&self) -> Vec<TargetId> {
        let due = |(id, seen): &(&TargetId, &Seen)| {
            !seen.ended.is_empty() && !self.resting.contains_key(id)
        };
        self.seen.iter().filter(due).map(|(id, _)| *id).collect()
    }

    /// Some of the sessions for which a target is to be looked at, and so far it was for the first.
    pub fn some_ended(&self, target: TargetId, most: usize) -> (Vec<SessionId>, Option<ChunkId>) {
        let Some(seen) = self.seen.get(&target) else { return Default::default() };
        (seen.ended.iter().take(most).copied().collect(), seen.after)
    }

    /// A look for a session that has ended met a hold: it is not looked for now, but all is after
    /// that.
    pub fn held_ended(&mut self, target: TargetId, session: SessionId) {
        self.held = true;
        self.came_to_ended(target, session, None);
    }

    /// A look for a session that has ended has come so far; `None`: to its end.
    pub fn came_to_ended(&mut self, target: TargetId, session: SessionId, after: Option<ChunkId>) {
        let Some(seen) = self.seen.get_mut(&target) else { return };
        if seen.ended.front() != Some(&session) {
            return;
        }
        if after.is_none() {
            seen.ended.pop_front();
        }
        seen.after = after;
    }
}

#[cfg(test)]
mod tests;
