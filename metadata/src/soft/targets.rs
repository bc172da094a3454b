//! What the leader hears from storage daemons but does not replicate: when each target was last
//! heard of, and its figures. From it the leader decides which targets are down, out or full.
//!
//! A target that was given up because it was silent, and is heard again, comes back when the leader
//! has looked at all that it holds ([`crate::duties`]).

mod missing;

use missing::Missing;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use v1::set_target_state_entry::Change;
use weft_net::bounded_network_stat;
use weft_proto::{ChunkId, Profile, TargetId, v1};

/// What a daemon has said of itself is not told for longer.
const SAID_GOOD: Duration = Duration::from_secs(10);

/// A full target is taken back when it is this many percent below the limit.
const HYSTERESIS: u64 = 5;

/// Space of the cluster, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Space {
    pub capacity: u64,
    pub free: u64,
    /// Of that, what can be written before the targets are full.
    pub available: u64,
}

/// When a target becomes what.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// One that is silent for so long is down.
    pub down_after: Duration,
    /// One that is down for so long is given up.
    pub out_after: Duration,
    /// One that is fuller takes no more chunks.
    pub full_percent: u64,
}

/// The last heartbeats.
#[derive(Default)]
pub struct Targets {
    heard: Mutex<BTreeMap<TargetId, Heard>>,
    /// As what opening of them targets were looked at as a whole.
    looked_at: Mutex<BTreeMap<TargetId, u64>>,
    /// Targets that are to be looked at as a whole soon.
    suspects: Mutex<BTreeSet<TargetId>>,
    /// Chunks that were looked for at their targets and are not there.
    missing: Mutex<BTreeMap<TargetId, Missing>>,
    /// What daemons said of themselves, and when.
    daemons: Mutex<BTreeMap<String, (Instant, v1::DaemonStat)>>,
}

#[derive(Clone)]
struct Heard {
    at: Instant,
    stat: v1::TargetStat,
    /// The daemon said that it cannot serve the target, since then.
    refused: Option<Instant>,
    /// Chunks of it that are damaged, as it said last.
    damaged: Vec<ChunkId>,
}

impl Targets {
    /// Notes a heartbeat.
    pub fn hear(&self, now: Instant, heartbeat: v1::HeartbeatRequest) {
        let mut heard = self.heard.lock();
        for stat in heartbeat.targets {
            let id = TargetId(stat.target);
            let refuses = heartbeat.stopping || heartbeat.failed.contains(&stat.target);
            let since = heard.get(&id).and_then(|last| last.refused).unwrap_or(now);
            let of_it = heartbeat.damaged.iter().filter(|d| d.target == stat.target);
            let damaged = of_it.filter_map(|d| ChunkId::try_from(d.chunk?).ok()).collect();
            let refused = refuses.then_some(since);
            heard.insert(id, Heard { at: now, stat, refused, damaged });
        }
        for id in heartbeat.failed {
            let stat = v1::TargetStat { target: id, ..Default::default() };
            let new = Heard { at: now, stat, refused: None, damaged: Vec::new() };
            let last = heard.entry(TargetId(id)).or_insert(new);
            last.at = now;
            last.refused.get_or_insert(now);
        }
    }

    /// This server stood still for so long until `now`, and could hear nobody.
    pub fn stalled(&self, now: Instant, by: Duration) {
        for heard in self.heard.lock().values_mut() {
            heard.at = now.min(heard.at + by);
            heard.refused = heard.refused.map(|since| now.min(since + by));
        }
    }

    /// Targets that were given up for silence, are heard again, and are to be looked at before they
    /// come back.
    pub fn returning(
        &self,
        now: Instant,
        down_after: Duration,
        map: &v1::ClusterMap,
    ) -> BTreeSet<TargetId> {
        let heard = self.heard.lock();
        let given_up = |t: &&v1::TargetInfo| t.state() == v1::TargetState::Out && !t.held_out;
        let ids = map.targets.iter().filter(given_up).map(|t| TargetId(t.id));
        ids.filter(|id| heard.get(id).is_some_and(|h| h.serves(now, down_after))).collect()
    }

    /// Damaged chunks of targets, as they said last, and some of the missing ones, others each
    /// time: for who has them made. Others count them.
    pub fn damaged(&self) -> BTreeMap<TargetId, Vec<ChunkId>> {
        let (heard, mut missing) = (self.heard.lock(), self.missing.lock());
        let mut all: BTreeMap<TargetId, Vec<ChunkId>> = BTreeMap::new();
        for (id, h) in heard.iter().filter(|(_, h)| h.refused.is_none()) {
            let lacks = missing.get_mut(id).map(Missing::tell).unwrap_or_default();
            let chunks: Vec<_> = h.damaged.iter().copied().chain(lacks).collect();
            if !chunks.is_empty() {
                all.insert(*id, chunks);
            }
        }
        all
    }

    /// How many chunks are damaged, as their targets said last, or missing.
    pub fn count_damaged(&self) -> usize {
        let (heard, missing) = (self.heard.lock(), self.missing.lock());
        let lacks = |id: &TargetId| missing.get(id).map_or(0, Missing::count);
        let serve = heard.iter().filter(|(_, h)| h.refused.is_none());
        serve.map(|(id, h)| h.damaged.len() + lacks(id)).sum()
    }

    /// A chunk was looked for where it belongs, and is not there. Answers whether it is remembered:
    /// else there is no room, and somebody is to look again.
    pub fn note_missing(&self, target: TargetId, chunk: ChunkId) -> bool {
        self.missing.lock().entry(target).or_default().note(chunk)
    }

    /// A chunk that is missing could not be made. It is tried again, and leaves its place to
    /// others.
    pub fn note_in_vain(&self, target: TargetId, chunk: ChunkId) {
        if let Some(of_it) = self.missing.lock().get_mut(&target) {
            of_it.note_in_vain(chunk);
        }
    }

    /// The missing chunks of a target that are remembered, after `after` and up to `last`, or all
    /// of them.
    pub fn missing(
        &self,
        target: TargetId,
        after: Option<ChunkId>,
        last: Option<ChunkId>,
    ) -> Vec<ChunkId> {
        let missing = self.missing.lock();
        missing.get(&target).map(|of_it| of_it.between(after, last)).unwrap_or_default()
    }

    /// Whether so many more missing chunks of a target can be remembered that a look is worth it.
    pub fn has_room(&self, target: TargetId) -> bool {
        let missing = self.missing.lock();
        missing.get(&target).is_none_or(Missing::has_room)
    }

    /// A chunk is where it belongs again, or belongs nowhere any more.
    pub fn forget_missing(&self, target: TargetId, chunk: ChunkId) {
        let mut missing = self.missing.lock();
        let Some(of_it) = missing.get_mut(&target) else { return };
        of_it.forget(&chunk);
        if of_it.count() == 0 {
            missing.remove(&target);
        }
    }

    /// All that a target holds, as this opening of it, was looked at.
    pub fn note_looked_at(&self, target: TargetId, opened: u64) {
        self.looked_at.lock().insert(target, opened);
    }

    /// As what opening of it a target was looked at, since it was last given up.
    pub fn looked_at(&self, target: TargetId) -> Option<u64> {
        self.looked_at.lock().get(&target).copied()
    }

    /// A target may hold chunks that have no business there: it is looked at as a whole soon.
    pub fn suspect(&self, target: TargetId) {
        self.suspects.lock().insert(target);
    }

    /// The targets that were suspected since the last call.
    pub fn take_suspects(&self) -> BTreeSet<TargetId> {
        std::mem::take(&mut self.suspects.lock())
    }

    /// Whether some targets are to be looked at as a whole soon.
    pub fn has_suspects(&self) -> bool {
        !self.suspects.lock().is_empty()
    }

    /// The bytes on each target that was heard of since then, as it said last.
    pub fn used(&self, since: Instant) -> BTreeMap<u32, u64> {
        let heard = self.heard.lock();
        let fresh = heard.values().filter(|h| h.at >= since && h.refused.is_none());
        fresh.map(|h| (h.stat.target, h.stat.used_bytes)).collect()
    }

    /// The last figures of every target.
    pub fn stats(&self) -> Vec<v1::TargetStat> {
        self.heard.lock().values().map(|h| h.stat).collect()
    }

    /// The same, with how long ago each was heard of, for people.
    pub fn told(&self, now: Instant) -> Vec<v1::TargetStat> {
        let told = |h: &Heard| v1::TargetStat {
            heard_ms: now.saturating_duration_since(h.at).as_millis() as u64,
            refused: h.refused.is_some(),
            ..h.stat
        };
        self.heard.lock().values().map(told).collect()
    }

    /// What a daemon that is known says of itself. `clock_s`: what time it is here.
    pub fn hear_daemon(&self, now: Instant, clock_s: i64, said: &v1::HeartbeatRequest) {
        let theirs = i64::try_from(said.clock_s).unwrap_or(i64::MAX);
        let stat = v1::DaemonStat {
            daemon: said.daemon.clone(),
            ahead_s: theirs.saturating_sub(clock_s),
            late_ms: said.late_ms,
            network: said.network.clone().map(bounded_network_stat),
        };
        self.daemons.lock().insert(stat.daemon.clone(), (now, stat));
    }

    /// The same of all daemons, as they told lately.
    pub fn daemons(&self, now: Instant) -> Vec<v1::DaemonStat> {
        let mut daemons = self.daemons.lock();
        daemons.retain(|_, (at, _)| now.saturating_duration_since(*at) < SAID_GOOD);
        daemons.values().map(|(_, stat)| stat.clone()).collect()
    }

    /// Why a target does not serve, for people, as heard `since` this server leads.
    pub fn why_away(&self, now: Instant, since: Instant, target: u32) -> String {
        let heard = self.heard.lock();
        match heard.get(&TargetId(target)).filter(|h| h.at >= since) {
            Some(Heard { refused: Some(at), .. }) => format!(
                "its daemon said {} s ago that it stops, or that the drive fails",
                (now - *at).as_secs()
            ),
            Some(h) => format!("its daemon was last heard of {} s ago", (now - h.at).as_secs()),
            None => "its daemon was not heard of since this metadata server leads".into(),
        }
    }

    /// What of the map should change. `since`: when this server began to listen; before that,
    /// silence means nothing.
    pub fn changes(
        &self,
        now: Instant,
        since: Instant,
        limits: Limits,
        map: &v1::ClusterMap,
    ) -> Vec<Change> {
        let (heard, mut looked_at) = (self.heard.lock(), self.looked_at.lock());
        let mut changes = Vec::new();
        let mut may_go = may_be_given_up(map);
        for target in &map.targets {
            let id = TargetId(target.id);
            let last = heard.get(&id).filter(|h| h.at >= since);
            let served = last.is_some_and(|h| h.serves(now, limits.down_after));
            let silent = match last {
                Some(h) => now - h.refused.unwrap_or(h.at),
                None => now - since,
            };
            let state = match target.state() {
                // Not before it was looked at, as what it is now.
                v1::TargetState::Out => {
                    let opened = last.map(|h| h.stat.opened);
                    let known = opened.is_some() && looked_at.get(&id) == opened.as_ref();
                    if target.held_out || !served {
                        // Its seats may go meanwhile: it is looked at anew when it returns.
                        looked_at.remove(&id);
                        continue;
                    }
                    if !known {
                        continue;
                    }
                    v1::TargetState::Up
                }
                // What an admin decided while this was looked at.
                _ if target.held_out => v1::TargetState::Out,
                _ if served => v1::TargetState::Up,
                v1::TargetState::Down if silent > limits.out_after && may_go > 0 => {
                    may_go -= 1;
                    v1::TargetState::Out
                }
                was if last.is_none() && silent <= limits.down_after => was,
                _ => v1::TargetState::Down,
            };
            let full = match last {
                Some(h) if h.stat.capacity_bytes > 0 => {
                    h.stat.index_full || is_full(&h.stat, limits.full_percent, target.full)
                }
                _ => target.full,
            };
            if state != target.state() || full != target.full {
                let state = state.into();
                changes.push(Change { target: target.id, state, full, ..Default::default() });
            }
        }
        changes
    }

    /// Space for user data: raw space times k/(k+m) of the first pool.
    pub fn user_space(&self, map: &v1::ClusterMap, full_percent: u64) -> Space {
        let heard = self.heard.lock();
        let profile =
            map.pools.first().and_then(|p| p.profile).and_then(|p| Profile::try_from(p).ok());
        let Some(profile) = profile else { return Space::default() };
        let (mut capacity, mut free, mut available) = (0u128, 0u128, 0u128);
        for target in map.targets.iter().filter(|t| t.state() != v1::TargetState::Out) {
            let stat = heard.get(&TargetId(target.id)).map(|h| h.stat).unwrap_or_default();
            let size = stat.capacity_bytes.max(target.capacity_bytes);
            capacity += u128::from(size);
            if target.state() == v1::TargetState::Up && !target.full && !target.draining {
                let (size, used) = (u128::from(size), u128::from(stat.used_bytes));
                free += size.saturating_sub(used);
                available += (size * u128::from(full_percent) / 100).saturating_sub(used);
            }
        }
        let user = |raw: u128| (raw * u128::from(profile.k()) / u128::from(profile.width())) as u64;
        Space { capacity: user(capacity), free: user(free), available: user(available) }
    }
}

impl Heard {
    fn serves(&self, now: Instant, down_after: Duration) -> bool {
        self.refused.is_none() && now - self.at <= down_after
    }
}

/// How many more targets may be given up for silence: none while those that are up are fewer than a
/// placement group has seats, since nothing could be made anywhere; nor where more than a quarter
/// is away: that is no loss of drives, but of a network or of power, which come back.
fn may_be_given_up(map: &v1::ClusterMap) -> usize {
    let count = |state| map.targets.iter().filter(|t| t.state() == state).count();
    let (up, down) = (count(v1::TargetState::Up), count(v1::TargetState::Down));
    let profile = map.pools.first().and_then(|p| p.profile).and_then(|p| Profile::try_from(p).ok());
    let enough = profile.is_some_and(|profile| up >= usize::from(profile.width()));
    if enough && down * 4 <= up + down { down } else { 0 }
}

fn is_full(stat: &v1::TargetStat, full_percent: u64, was: bool) -> bool {
    let limit = if was { full_percent.saturating_sub(HYSTERESIS) } else { full_percent };
    u128::from(stat.used_bytes) * 100 > u128::from(stat.capacity_bytes) * u128::from(limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use missing::{MAX_MISSING, MAX_REMEMBERED};
    use v1::TargetState::{Down, Out, Unknown, Up};
    use weft_proto::{SegmentId, SessionId};

    const LIMITS: Limits = Limits {
        down_after: Duration::from_millis(2500),
        out_after: Duration::from_secs(600),
        full_percent: 95,
    };

    fn map(states: &[v1::TargetState]) -> v1::ClusterMap {
        let targets = states
            .iter()
            .enumerate()
            .map(|(i, &state)| v1::TargetInfo {
                id: i as u32 + 1,
                state: state.into(),
                ..Default::default()
            })
            .collect();
        v1::ClusterMap { targets, ..Default::default() }
    }

    fn beat(id: u32, used: u64) -> v1::HeartbeatRequest {
        let stat = v1::TargetStat {
            target: id,
            capacity_bytes: 100,
            used_bytes: used,
            ..Default::default()
        };
        v1::HeartbeatRequest { targets: vec![stat], ..Default::default() }
    }

    fn states(changes: &[Change]) -> Vec<(u32, v1::TargetState, bool)> {
        changes.iter().map(|c| (c.target, c.state(), c.full)).collect()
    }

    fn chunk(seq: u64) -> ChunkId {
        ChunkId { segment: SegmentId { session: SessionId(1), seq }, shard: 0 }
    }

    #[test]
    fn missing_chunks_that_cannot_be_made_keep_no_others_out() {
        let (targets, target) = (Targets::default(), TargetId(1));
        targets.hear(Instant::now(), beat(1, 0));
        let last = MAX_MISSING as u64;
        assert!((0..=last).all(|seq| targets.note_missing(target, chunk(seq))));
        let told = || targets.damaged().remove(&target).unwrap_or_default();
        assert_eq!(told(), (0..last).map(chunk).collect::<Vec<_>>());
        // To count them takes nobody's turn.
        assert_eq!(targets.count_damaged(), MAX_MISSING + 1);
        let turns = [last].into_iter().chain(0..last - 1);
        assert_eq!(told(), turns.map(chunk).collect::<Vec<_>>());
        targets.forget_missing(target, chunk(last));
        let turns = [last - 1].into_iter().chain(0..last - 1);
        assert_eq!(told(), turns.map(chunk).collect::<Vec<_>>());
        (0..last).for_each(|seq| targets.forget_missing(target, chunk(seq)));
        assert!(targets.damaged().is_empty());
    }

    #[test]
    fn what_is_missing_and_does_not_fit_is_not_taken() {
        let (targets, one, other) = (Targets::default(), TargetId(1), TargetId(2));
        let all = MAX_REMEMBERED as u64;
        assert!((0..all).all(|seq| targets.note_missing(one, chunk(seq))));
        assert!(!targets.note_missing(one, chunk(all)));
        assert!(targets.note_missing(one, chunk(0)), "it is remembered already");
        assert!(targets.note_missing(other, chunk(all)));
        assert!(!targets.has_room(one) && targets.has_room(other));
        targets.forget_missing(one, chunk(0));
        assert!(targets.note_missing(one, chunk(all)));
        (1..=all / 2).for_each(|seq| targets.forget_missing(one, chunk(seq)));
        assert!(targets.has_room(one));
    }

    #[test]
    fn what_cannot_be_made_leaves_room_for_what_can() {
        let (targets, target) = (Targets::default(), TargetId(1));
        targets.hear(Instant::now(), beat(1, 0));
        let all = MAX_REMEMBERED as u64;
        for round in 0..3 {
            let more = round * all..(round + 1) * all;
            assert!(more.clone().all(|seq| targets.note_missing(target, chunk(seq))));
            assert!(!targets.has_room(target));
            more.for_each(|seq| targets.note_in_vain(target, chunk(seq)));
            assert!(targets.has_room(target));
        }
        assert!(targets.note_missing(target, chunk(0)), "it is remembered already");
        assert_eq!(targets.count_damaged(), 3 * MAX_REMEMBERED);
        // What was not tried yet comes first, and the others take turns.
        assert!(targets.note_missing(target, chunk(3 * all)));
        let told = || targets.damaged().remove(&target).unwrap_or_default();
        let some = |from: u64, n: u64| (from..from + n).map(chunk);
        assert_eq!(told(), some(3 * all, 1).chain(some(0, 63)).collect::<Vec<_>>());
        targets.forget_missing(target, chunk(3 * all));
        assert_eq!(told(), some(63, 64).collect::<Vec<_>>());
        let between = targets.missing(target, Some(chunk(7)), Some(chunk(9)));
        assert_eq!(between, [chunk(8), chunk(9)]);
        (0..3 * all).for_each(|seq| targets.forget_missing(target, chunk(seq)));
        assert!(told().is_empty() && targets.count_damaged() == 0);
    }

    #[test]
    fn silence_is_down_and_a_new_leader_waits_first() {
        let targets = Targets::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let map = map(&[Up, Up, Down, Out]);
        targets.hear(at(100), beat(1, 10));
        let changes = |ms| states(&targets.changes(at(ms), start, LIMITS, &map));
        assert!(changes(2400).is_empty(), "the second may have beaten to the old leader");
        assert_eq!(changes(2550), [(2, Down, false)]);
        targets.hear(at(2560), beat(3, 0));
        assert_eq!(changes(2700), [(1, Down, false), (2, Down, false), (3, Up, false)]);
        let heard_before = targets.changes(at(5000), at(4000), LIMITS, &map);
        assert!(heard_before.is_empty(), "what the last term heard does not count");
    }

    #[test]
    fn nobody_is_silent_while_this_server_stands_still() {
        let targets = Targets::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let map = map(&[Up, Up]);
        targets.hear(at(0), beat(1, 10));
        targets.hear(at(900_500), beat(2, 10));
        targets.stalled(at(900_600), Duration::from_secs(900));
        let changes = |ms| states(&targets.changes(at(ms), start, LIMITS, &map));
        assert!(changes(900_700).is_empty());
        assert_eq!(changes(902_600), [(1, Down, false)]);
        assert_eq!(changes(903_100 + 1), [(1, Down, false), (2, Down, false)], "no later for it");
    }

    #[test]
    fn a_daemon_may_say_so_itself() {
        let targets = Targets::default();
        let now = Instant::now();
        let map = map(&[Up, Unknown]);
        targets.hear(now, v1::HeartbeatRequest { failed: vec![1], ..beat(2, 0) });
        assert_eq!(
            states(&targets.changes(now, now, LIMITS, &map)),
            [(1, Down, false), (2, Up, false)]
        );
        targets.hear(now, v1::HeartbeatRequest { stopping: true, ..beat(2, 0) });
        assert_eq!(
            states(&targets.changes(now, now, LIMITS, &map)),
            [(1, Down, false), (2, Down, false)]
        );
    }

    #[test]
    fn the_last_of_a_target_is_free_and_cannot_be_written() {
        let targets = Targets::default();
        let now = Instant::now();
        let mut map = map(&[Up, Up, Down, Out]);
        let profile = Some(v1::ProfileInfo { k: 1, m: 1 });
        map.pools = vec![v1::PoolInfo { profile, ..Default::default() }];
        let space = |used: [u64; 4], map: &v1::ClusterMap| {
            (1..5).zip(used).for_each(|(id, used)| targets.hear(now, beat(id, used)));
            let Space { capacity, free, available } = targets.user_space(map, 95);
            (capacity, free, available)
        };
        assert_eq!(space([0; 4], &map), (150, 100, 95));
        assert_eq!(space([10, 30, 0, 0], &map), (150, 80, 75));
        assert_eq!(space([95, 97, 0, 0], &map), (150, 4, 0));
        map.targets[1].full = true;
        assert_eq!(
            space([15, 94, 0, 0], &map),
            (150, 42, 40),
            "none that it took would be written"
        );
    }

    #[test]
    fn fullness_has_hysteresis() {
        let targets = Targets::default();
        let now = Instant::now();
        let mut map = map(&[Up]);
        let full = |used, map: &v1::ClusterMap| {
            targets.hear(now, beat(1, used));
            states(&targets.changes(now, now, LIMITS, map))
        };
        assert!(full(95, &map).is_empty());
        assert_eq!(full(96, &map), [(1, Up, true)]);
        map.targets[0].full = true;
        assert!(full(91, &map).is_empty());
        assert_eq!(full(90, &map), [(1, Up, false)]);
        let mut without_index_room = beat(1, 10);
        without_index_room.targets[0].index_full = true;
        targets.hear(now, without_index_room);
        assert!(targets.changes(now, now, LIMITS, &map).is_empty(), "it takes nothing still");
        map.targets[0].full = false;
        assert_eq!(states(&targets.changes(now, now, LIMITS, &map)), [(1, Up, true)]);
    }
}
