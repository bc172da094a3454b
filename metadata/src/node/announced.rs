//! Snapshots that were announced to followers: who fetches, who does not, and how long such a one
//! is left alone; the same of a leader that can make none.
//!
//! Invariants: a follower that fetches nothing holds up no other, and makes ever less work: its
//! pause is its own, and grows; it ends when the follower reads, says that it can again, has what
//! it needs, or comes back on another connection.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// A follower that reads nothing of its snapshot for this long has given up.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);
/// The first pause, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// How long something rests that has failed: twice as long each time.
#[derive(Default)]
pub struct Pause {
    failures: u32,
    until: Option<Instant>,
}

impl Pause {
    /// It has failed once more.
    pub fn grow(&mut self, now: Instant) {
        let pause = FIRST_PAUSE * (1 << self.failures.min(16));
        self.failures += 1;
        self.until = Some(now + pause.min(LONGEST_PAUSE));
    }

    pub fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// It is tried at once; the next pause is as long as it would have been.
    pub fn end(&mut self) {
        self.until = None;
    }
}

#[derive(Default)]
struct Follower {
    /// Since when it waits for a snapshot that was announced to it.
    since: Option<Instant>,
    /// When it was given up, unless it has read since.
    failed: Option<Instant>,
    pause: Pause,
    /// It says that it cannot fetch.
    cannot: bool,
}

/// What a leader knows of those to whom it announces snapshots.
#[derive(Default)]
pub struct Announced {
    followers: BTreeMap<u64, Follower>,
    /// Of the leader, which could make none.
    pub making: Pause,
}

impl Announced {
    /// What was announced did not get there, or the follower starts with nothing, or has all that
    /// it needs.
    pub fn forget(&mut self, follower: u64) {
        self.followers.remove(&follower);
    }

    /// The connection to a follower has ended: it may be another one from now on.
    pub fn reconnects(&mut self, follower: u64) {
        if let Some(known) = self.followers.get_mut(&follower) {
            *known = Follower { since: known.since, ..Follower::default() };
        }
    }

    /// A follower says whether it cannot fetch. Who can again is tried at once.
    pub fn hear(&mut self, follower: u64, cannot: bool) {
        if !cannot && !self.followers.contains_key(&follower) {
            return;
        }
        let known = self.followers.entry(follower).or_default();
        if known.cannot && !cannot {
            known.pause = Pause::default();
        }
        known.cannot = cannot;
    }

    /// Looks at all. `waiting`: those that have a snapshot announced to them and not installed;
    /// `read`: when each read last. Answers those that are given up now.
    pub fn look(
        &mut self,
        now: Instant,
        waiting: &BTreeSet<u64>,
        read: impl Fn(u64) -> Option<Instant>,
    ) -> Vec<u64> {
        for id in waiting {
            self.followers.entry(*id).or_default().since.get_or_insert(now);
        }
        let mut given_up = Vec::new();
        for (&id, follower) in &mut self.followers {
            let last = read(id);
            if follower.failed.is_some_and(|failed| last > Some(failed)) {
                // It was slow, and goes on.
                follower.failed = None;
                follower.pause.end();
            }
            let Some(since) = follower.since else { continue };
            if !waiting.contains(&id) {
                // It has the snapshot, or needs none any more.
                *follower = Follower { cannot: follower.cannot, ..Follower::default() };
            } else if now - last.map_or(since, |last| last.max(since)) > STALL_TIMEOUT {
                (follower.since, follower.failed) = (None, Some(now));
                follower.pause.grow(now);
                given_up.push(id);
            }
        }
        given_up
    }

    /// Those that are sent none for now.
    pub fn resting(&self, now: Instant) -> BTreeSet<u64> {
        let rests = |(_, follower): &(&u64, &Follower)| !follower.pause.is_over(now);
        self.followers.iter().filter(rests).map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Announces to server 2, which reads nothing. Answers how many seconds it rests then.
    fn fail(announced: &mut Announced, now: &mut Instant) -> u64 {
        let waiting = [2].into();
        assert!(announced.look(*now, &waiting, |_| None).is_empty());
        assert!(announced.look(*now + STALL_TIMEOUT, &waiting, |_| None).is_empty());
        *now += STALL_TIMEOUT + SECOND;
        assert_eq!(announced.look(*now, &waiting, |_| None), [2]);
        let rests =
            |pause: &u64| announced.resting(*now + Duration::from_secs(*pause)) == [2].into();
        (0..1000).find(|pause| !rests(pause)).expect("the pause ends")
    }

    #[test]
    fn who_fetches_nothing_rests_longer_each_time_and_alone() {
        let (mut announced, mut now) = (Announced::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let pause = fail(&mut announced, &mut now);
            // Another waits meanwhile, and has what it waited for a moment later.
            for waiting in [[3].into(), BTreeSet::new()] {
                assert!(announced.look(now, &waiting, |_| None).is_empty());
                assert_eq!(announced.resting(now), [2].into());
            }
            now += Duration::from_secs(pause);
            pauses.push(pause);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300]);
        announced.look(now, &[2].into(), |_| None);
        announced.look(now, &BTreeSet::new(), |_| None);
        assert_eq!(fail(&mut announced, &mut now), 5, "it had caught up meanwhile");
    }

    #[test]
    fn a_pause_ends_with_its_cause() {
        let (mut announced, mut now) = (Announced::default(), Instant::now());
        for _ in 0..3 {
            fail(&mut announced, &mut now);
        }
        announced.hear(2, false);
        assert_eq!(announced.resting(now), [2].into(), "it says nothing that is new");
        announced.hear(2, true);
        announced.hear(2, false);
        assert!(announced.resting(now).is_empty());
        assert_eq!(fail(&mut announced, &mut now), 5);
        // It reads after all: slow, but it does.
        now += SECOND;
        announced.look(now, &BTreeSet::new(), |_| Some(now));
        assert!(announced.resting(now).is_empty());
        assert_eq!(fail(&mut announced, &mut now), 10, "that alone cures nothing");
        announced.reconnects(2);
        assert!(announced.resting(now).is_empty());
        assert_eq!(fail(&mut announced, &mut now), 5);
        announced.forget(2);
        assert!(announced.resting(now).is_empty());
    }

    /// What one reads keeps nobody else from being given up.
    #[test]
    fn each_is_looked_at_for_itself() {
        let (mut announced, now) = (Announced::default(), Instant::now());
        let waiting = [2, 3].into();
        announced.look(now, &waiting, |_| None);
        let later = now + STALL_TIMEOUT + SECOND;
        let read = |id| (id == 3).then_some(later);
        assert_eq!(announced.look(later, &waiting, read), [2]);
    }
}
