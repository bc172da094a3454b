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

/// A target is given up no sooner than after this part of the time, under one leader: after nobody
/// has led for long, its machine may start later than that of the first who does.
const OWN_PART: u32 = 2;

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
    /// One that is down for so long is given up. A part of that ([`OWN_PART`]) the leader sees
    /// itself, and for the rest it believes those before it, and the clocks.
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
    /// The last term that this server began to lead, and when it began to listen.
    began: Mutex<Option<(u64, Instant)>>,
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
    /// This server leads from now on, in this term.
    pub fn begin(&self, now: Instant, term: u64) {
        *self.began.lock() = Some((term, now));
    }

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
        if let Some((_, since)) = &mut *self.began.lock() {
            *since = now.min(*since + by);
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

    /// Whether a daemon has served the target of late; `None`: its daemon may not have come to say
    /// so since this server leads, in this term.
    pub fn serves(
        &self,
        now: Instant,
        term: u64,
        target: TargetId,
        down_after: Duration,
    ) -> Option<bool> {
        let (_, since) = self.began.lock().filter(|(began, _)| *began == term)?;
        let heard = self.heard.lock();
        let last = heard.get(&target).filter(|h| h.at >= since);
        let serves = last.is_some_and(|h| h.serves(now, down_after));
        (last.is_some() || now - since > down_after).then_some(serves)
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
    /// silence means nothing. `wall_ns`: what time it is, in nanoseconds since 1970.
    pub fn changes(
        &self,
        now: Instant,
        since: Instant,
        wall_ns: i64,
        limits: Limits,
        map: &v1::ClusterMap,
    ) -> Vec<Change> {
        let (mut heard, mut looked_at) = (self.heard.lock(), self.looked_at.lock());
        // One that was heard of a moment ago may be newer than the map.
        let known: BTreeSet<u32> = map.targets.iter().map(|t| t.id).collect();
        heard.retain(|id, h| known.contains(&id.0) || now - h.at <= limits.down_after);
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
                v1::TargetState::Down
                    if down_for(target, silent, wall_ns, limits) > limits.out_after
                        && may_go > 0 =>
                {
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

/// For how long a target is down that this leader has found silent for so long: also under leaders
/// before it, as the map says, or leaders that do not last would never give it up. A clock that is
/// wrong gives up none that this leader has not missed for a while.
fn down_for(target: &v1::TargetInfo, silent: Duration, wall_ns: i64, limits: Limits) -> Duration {
    if target.down_ns == 0 || silent <= limits.out_after / OWN_PART {
        return silent;
    }
    let down = wall_ns.saturating_sub(target.down_ns);
    silent.max(Duration::from_nanos(u64::try_from(down).unwrap_or(0)))
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
mod tests;
