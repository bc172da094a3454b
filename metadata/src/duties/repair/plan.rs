//! Which seats are given to which targets: pure, of the map and of what each group lacks.
//!
//! A seat is to be given away if its target was given up (`out`) or is being drained. Those of the
//! groups that have lost most go first. A seat goes to a target that has none in the group, in
//! another failure domain than the others as far as there is one, and among those to the one that
//! is given least and is least full, so that sources and destinations are spread over all.
//!
//! Behind all of those come the seats that move for balance ([`crate::duties`], `rebalance`): what
//! is lost or drained is never kept waiting for them.

use crate::ops::MAX_MOVES;
use crate::placement::Paths;
use crate::soft::repair::Shift;
use std::collections::{BTreeMap, HashMap, HashSet};
use v1::TargetState;
use v1::move_seats_entry::{Change, Step};
use weft_proto::v1;

/// Moves under way for each target that is up.
pub(super) const MOVES_PER_TARGET: usize = 2;

/// What is known of a target.
struct Candidate<'a> {
    info: &'a v1::TargetInfo,
    /// How full it is, in thousandths.
    fill: u64,
    /// Seats that are being given to it, and those of them whose moves go on.
    given: usize,
    going: usize,
}

/// A seat that is to be given away.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Leaving {
    pub pg: u32,
    pub seat: u32,
    /// Seats of the group whose targets serve nothing.
    pub lost: usize,
    /// Its target serves it no more.
    pub missing: bool,
    /// The group takes no new segments: the seat can be given away.
    pub retired: bool,
    /// Its target stays, and serves it: it moves for balance.
    pub rebalances: bool,
}

/// What a plan goes round.
#[derive(Default, Debug)]
pub struct Avoid {
    /// Seats whose moves do not go on.
    pub resting: HashSet<(u32, u32)>,
    /// Seats, and targets that would not store their chunks.
    pub refused: HashSet<(u32, u32, u32)>,
    /// Targets that have been down for so long that they may not come back soon.
    pub away: HashSet<u32>,
    /// Seats whose changes were refused: nothing is changed of them, and they keep no other.
    pub passed: HashSet<(u32, u32)>,
}

/// What is wanted of the map.
#[derive(Default, Debug)]
pub struct Planned {
    pub changes: Vec<Change>,
    /// Seats for which there is no target now.
    pub stuck: HashSet<(u32, u32)>,
    /// Seats that were to move for balance, and move now, or cannot any more.
    pub shifted: HashSet<(u32, u32)>,
}

/// The seat that a change is of.
pub fn seat_of(change: &Change) -> Option<(u32, u32)> {
    change.r#move.map(|of| (change.pg, of.seat))
}

fn is_gone(target: &v1::TargetInfo) -> bool {
    target.state() == TargetState::Out
}

/// Its seats are to be given away.
fn leaves(target: &v1::TargetInfo) -> bool {
    is_gone(target) || target.draining
}

/// The seats that are to be given away, those of the groups that have lost most first. Those that
/// move for balance are among them when they do.
pub fn leaving(map: &v1::ClusterMap) -> Vec<Leaving> {
    let targets: HashMap<u32, &v1::TargetInfo> = map.targets.iter().map(|t| (t.id, t)).collect();
    let mut leaving = Vec::new();
    for pg in map.groups() {
        // One that the map does not know serves as little as one that was given up.
        let seats = || (0u32..).zip(pg.targets.iter().map(|id| targets.get(id).copied()));
        let serves = |t: &v1::TargetInfo| t.state() == TargetState::Up;
        let lost = seats().filter(|(_, t)| !t.is_some_and(serves)).count();
        let shifts = |seat| pg.moves.iter().any(|begun| begun.seat == seat && begun.rebalances);
        let all = seats().filter(|(seat, t)| t.is_none_or(leaves) || shifts(*seat));
        leaving.extend(all.map(|(seat, t)| {
            let missing = !t.is_some_and(serves);
            // If its target does not serve, what was made at the other may be all that there is.
            let rebalances = !t.is_none_or(leaves) && !missing;
            Leaving { pg: pg.id, seat, lost, missing, retired: pg.retired, rebalances }
        }));
    }
    // What is merely moved comes last.
    leaving.sort_by_key(|l| (!l.missing, usize::MAX - l.lost, l.pg, l.seat));
    // What has lost more than its parity may be past help, and comes behind what is not.
    let profiles = map.pools.iter().filter_map(|pool| pool.profile);
    let parity = profiles.map(|profile| profile.m as usize).max().unwrap_or(usize::MAX);
    leaving.sort_by_key(|l| (l.rebalances, l.missing && l.lost > parity));
    leaving
}

/// The moves to begin, of `leaving` in its order, so that no more than `limit` are under way beside
/// those that do not go on; and those to cancel: they are of no use any more, or lead to a target
/// that stores nothing while another does. What has been made is not given up because its target
/// begins to be full, or starts anew. `shifts` come behind them, and none is begun or goes on in
/// the way of what is lost. `used`: bytes on each target.
pub fn plan(
    map: &v1::ClusterMap,
    leaving: &[Leaving],
    shifts: &[Shift],
    used: &BTreeMap<u32, u64>,
    avoid: &Avoid,
    limit: usize,
) -> Planned {
    let is_free = |l: &&Leaving| !avoid.passed.contains(&(l.pg, l.seat));
    let leaving = &leaving.iter().filter(is_free).copied().collect::<Vec<_>>()[..];
    let moves = map.groups().any(|pg| !pg.moves.is_empty());
    if leaving.is_empty() && shifts.is_empty() && !moves {
        return Planned::default();
    }
    let hurt = leaving.iter().filter(|l| l.missing && !l.rebalances).map(|l| l.pg).collect();
    let mut planner = Planner::new(map, used, avoid, hurt);
    let going = planner.cancel(leaving);
    planner.begin(leaving, limit.saturating_sub(going));
    let urgent = |l: &Leaving| {
        let seat = (l.pg, l.seat);
        !l.rebalances && !planner.planned.stuck.contains(&seat) && !avoid.resting.contains(&seat)
    };
    if !leaving.iter().any(urgent) {
        planner.shift(shifts);
    }
    let is_free = |c: &Change| seat_of(c).is_none_or(|seat| !avoid.passed.contains(&seat));
    planner.planned.changes.retain(is_free);
    planner.planned
}

struct Planner<'a> {
    candidates: BTreeMap<u32, Candidate<'a>>,
    groups: HashMap<u32, &'a v1::PgInfo>,
    avoid: &'a Avoid,
    paths: Paths,
    /// Groups that have lost a seat: every target that they could have may be needed for that.
    hurt: HashSet<u32>,
    planned: Planned,
}

impl<'a> Planner<'a> {
    fn new(
        map: &'a v1::ClusterMap,
        used: &BTreeMap<u32, u64>,
        avoid: &'a Avoid,
        hurt: HashSet<u32>,
    ) -> Self {
        let mut candidates: BTreeMap<u32, Candidate<'_>> = BTreeMap::new();
        for info in &map.targets {
            let used = used.get(&info.id).copied().unwrap_or(0);
            let fill = used.saturating_mul(1000) / info.capacity_bytes.max(1);
            candidates.insert(info.id, Candidate { info, fill, given: 0, going: 0 });
        }
        let groups = map.groups().map(|pg| (pg.id, pg)).collect();
        let paths = Paths::new(map);
        Self { candidates, groups, avoid, paths, hurt, planned: Planned::default() }
    }

    /// Cancels moves that are under way. Answers how many of the others go on, but for those for
    /// balance.
    fn cancel(&mut self, leaving: &[Leaving]) -> usize {
        let seats = |of: fn(&&Leaving) -> bool| -> HashSet<(u32, u32)> {
            leaving.iter().filter(of).map(|l| (l.pg, l.seat)).collect()
        };
        let (wanted, shifting) = (seats(|_| true), seats(|l| l.rebalances));
        let mut count = 0;
        for pg in self.groups.values().copied() {
            for &begun in &pg.moves {
                let seat = (pg.id, begun.seat);
                let to = self.candidates.get(&begun.to).map(|to| to.info);
                let may = to.is_some_and(|to| !is_gone(to) && !to.draining);
                let refused = self.avoid.refused.contains(&(pg.id, begun.seat, begun.to));
                let takes = !refused && !self.avoid.away.contains(&begun.to);
                let stays = match shifting.contains(&seat) {
                    // Its target holds the seat as well as ever.
                    true => may && takes && !self.hurt.contains(&pg.id),
                    false => may && (takes || self.choose(pg, begun.seat, &[]).is_none()),
                };
                if !stays || !wanted.contains(&seat) {
                    self.planned.changes.push(change(pg.id, begun, Step::Cancel));
                    continue;
                }
                let goes_on = !self.avoid.resting.contains(&seat);
                if let Some(to) = self.candidates.get_mut(&begun.to) {
                    to.given += 1;
                    to.going += usize::from(goes_on);
                }
                count += usize::from(!shifting.contains(&seat) && goes_on);
            }
        }
        self.planned.changes.sort_by_key(|change| change.pg);
        self.planned.changes.truncate(MAX_MOVES);
        count
    }

    /// Begins so many moves of seats that leave, in their order.
    fn begin(&mut self, leaving: &[Leaving], mut room: usize) {
        // What this plan gives in a group, besides what is under way.
        let mut given: HashMap<u32, Vec<u32>> = HashMap::new();
        for l in leaving {
            let Some(&pg) = self.groups.get(&l.pg) else { continue };
            if pg.moves.iter().any(|begun| begun.seat == l.seat) {
                continue;
            }
            if room == 0 || self.planned.changes.len() >= MAX_MOVES {
                break;
            }
            let here = given.entry(l.pg).or_default();
            let Some(to) = self.choose(pg, l.seat, here) else {
                self.planned.stuck.insert((l.pg, l.seat));
                continue;
            };
            if !l.retired {
                continue;
            }
            room -= 1;
            here.push(to);
            if let Some(to) = self.candidates.get_mut(&to) {
                to.given += 1;
            }
            let begun = v1::SeatMove { seat: l.seat, to, rebalances: false };
            self.planned.changes.push(change(l.pg, begun, Step::Begin));
        }
    }

    /// Begins what is to be moved for balance: a few seats at a time for each target.
    fn shift(&mut self, shifts: &[Shift]) {
        let mut busy: HashSet<u32> = self.planned.changes.iter().map(|change| change.pg).collect();
        for &Shift { pg, seat, to, .. } in shifts {
            let group = self.groups.get(&pg).copied();
            // One seat of a group after the other, in the order of the plan.
            if !busy.insert(pg) || group.is_some_and(|group| !group.moves.is_empty()) {
                continue;
            }
            let takes = self.candidates.get(&to).is_none_or(|to| to.going < MOVES_PER_TARGET);
            if !takes || self.planned.changes.len() >= MAX_MOVES {
                continue;
            }
            self.planned.shifted.insert((pg, seat));
            if !group.is_some_and(|group| self.may_shift(group, seat, to)) {
                continue;
            }
            if let Some(taker) = self.candidates.get_mut(&to) {
                taker.going += 1;
            }
            let begun = v1::SeatMove { seat, to, rebalances: true };
            self.planned.changes.push(change(pg, begun, Step::Begin));
        }
    }

    /// Whether a seat can go to this target, as things are now: both serve, and the group's targets
    /// come no nearer together.
    fn may_shift(&self, group: &v1::PgInfo, seat: u32, to: u32) -> bool {
        let serves = |id: &u32| {
            let info = self.candidates.get(id).map(|c| c.info);
            info.filter(|t| t.state() == TargetState::Up && !t.draining)
        };
        let from = group.targets.get(seat as usize);
        let (Some(from), Some(to)) = (from.and_then(serves), serves(&to)) else { return false };
        let others = (0u32..).zip(&group.targets).filter(|(at, _)| *at != seat).map(|(_, id)| *id);
        let around = self.paths.around(others);
        let near = |t: &v1::TargetInfo| self.paths.nearness(t.id, &around);
        group.retired
            && !self.hurt.contains(&group.id)
            && !to.full
            && !group.targets.contains(&to.id)
            && !self.avoid.refused.contains(&(group.id, seat, to.id))
            && near(to) <= near(from)
    }

    /// The best target for a seat, if there is one.
    fn choose(&self, pg: &v1::PgInfo, seat: u32, given: &[u32]) -> Option<u32> {
        let moves = || pg.moves.iter().map(|begun| begun.to).chain(given.iter().copied());
        let others = (0u32..).zip(&pg.targets).filter(|(at, _)| *at != seat).map(|(_, id)| *id);
        let stay = others.filter(|id| self.candidates.get(id).is_some_and(|c| !is_gone(c.info)));
        let around = self.paths.around(stay.chain(moves()));
        let fits = |c: &&Candidate<'_>| {
            let t = c.info;
            t.state() == TargetState::Up
                && !t.full
                && !t.draining
                && !pg.targets.contains(&t.id)
                && !self.avoid.refused.contains(&(pg.id, seat, t.id))
                && !moves().any(|to| to == t.id)
        };
        let best = self.candidates.values().filter(fits).min_by_key(|c| {
            // Not always the same of equals.
            let dice = (c.info.id ^ pg.id).wrapping_mul(0x9e37_79b9);
            let near = self.paths.nearness(c.info.id, &around);
            (near, c.given, c.fill / 50, dice)
        });
        best.map(|c| c.info.id)
    }
}

fn change(pg: u32, r#move: v1::SeatMove, step: Step) -> Change {
    Change { pg, r#move: Some(r#move), step: step.into() }
}

#[cfg(test)]
mod tests;
