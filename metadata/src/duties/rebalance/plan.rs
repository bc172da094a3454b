//! Which seats of retired groups are to go from fuller targets to emptier ones: pure.
//!
//! Every target is to hold what its part of the seats of the open groups says: new data comes in
//! these proportions, by weights and as far as the failure domains allow. Invariants: a seat goes
//! from a target that holds more than its share to one that holds less, and neither is further off
//! on the other side than is tolerated; so no more is moved than has to be, up to what lies in one
//! seat. No two shards of a segment come nearer to each other, by the domains.

use crate::placement::Paths;
use crate::soft::repair::{Lot, Shift};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use weft_proto::v1;

/// Data is moved when a target holds more or less than its share by more than so many percent of
/// it, until it is off by no more than the second.
const BEGIN_PERCENT: u64 = 5;
const END_PERCENT: u64 = 2;
/// What is less than this part of a target's capacity is not worth it.
const LEAST_PART: u64 = 1024;
/// No target is to be filled further for balance, in percent.
const MOST_PERCENT: u64 = 85;

/// Targets that are asked for a seat, and seats of each that are looked at.
const TRIED: usize = 128;

/// What lies in each seat of a retired group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    pub pg: u32,
    pub seats: Vec<Lot>,
}

/// What a target holds, and should.
struct Fill {
    share: u64,
    used: u64,
    /// It takes nothing.
    full: bool,
    capacity: u64,
}

impl Fill {
    fn lacks(&self) -> u64 {
        if self.full { 0 } else { self.share.saturating_sub(self.used) }
    }

    fn exceeds(&self) -> u64 {
        self.used.saturating_sub(self.share)
    }

    fn tolerated(&self, percent: u64) -> u64 {
        (self.share / 100 * percent).max(self.capacity / LEAST_PART)
    }

    /// How full it is beside its share, in thousandths.
    fn part(&self) -> u64 {
        self.used.saturating_mul(1000) / self.share.max(1)
    }
}

/// How many bytes are where they should not be, if it is so much that data should be moved; else 0.
pub fn imbalance(map: &v1::ClusterMap, used: &BTreeMap<u32, u64>) -> u64 {
    let fills = fills(map, used);
    let off = |fill: &Fill| fill.lacks().max(fill.exceeds()) > fill.tolerated(BEGIN_PERCENT);
    match fills.values().any(off) {
        true => fills.values().map(Fill::exceeds).sum::<u64>().max(1),
        false => 0,
    }
}

/// The seats to be moved, of these groups.
pub fn plan(map: &v1::ClusterMap, used: &BTreeMap<u32, u64>, held: &[Held]) -> Vec<Shift> {
    let mut plan = Plan::new(map, fills(map, used), held);
    let mut shifts = Vec::new();
    // Those that nothing fits in any more.
    let mut done: HashSet<u32> = HashSet::new();
    loop {
        let open = plan.fills.iter().filter(|(id, fill)| fill.lacks() > 0 && !done.contains(id));
        let emptiest = open.min_by_key(|(_, fill)| fill.part()).map(|(id, _)| *id);
        let Some(to) = emptiest else { return shifts };
        match plan.shift(to) {
            Some(shift) => shifts.push(shift),
            None => drop(done.insert(to)),
        }
    }
}

/// Targets that serve and are to stay.
fn fills(map: &v1::ClusterMap, used: &BTreeMap<u32, u64>) -> BTreeMap<u32, Fill> {
    let mut seats: HashMap<u32, u64> = HashMap::new();
    for pg in map.groups().filter(|pg| !pg.retired) {
        pg.targets.iter().for_each(|id| *seats.entry(*id).or_default() += 1);
    }
    let serves = |t: &&v1::TargetInfo| t.state() == v1::TargetState::Up && !t.draining;
    let mut fills: BTreeMap<u32, Fill> = BTreeMap::new();
    let (mut all_seats, mut all_used) = (0u128, 0u128);
    for target in map.targets.iter().filter(serves) {
        // Of whom nothing is known nothing is decided.
        let Some(&used) = used.get(&target.id) else { continue };
        let share = seats.get(&target.id).copied().unwrap_or(0);
        all_seats += u128::from(share);
        all_used += u128::from(used);
        let (full, capacity) = (target.full, target.capacity_bytes);
        fills.insert(target.id, Fill { share, used, full, capacity });
    }
    for fill in fills.values_mut() {
        let share = all_used * u128::from(fill.share) / all_seats.max(1);
        let most = u128::from(fill.capacity) * u128::from(MOST_PERCENT) / 100;
        fill.share = share.min(most) as u64;
    }
    fills
}

struct Plan {
    fills: BTreeMap<u32, Fill>,
    paths: Paths,
    /// The targets of each group, as they will be.
    members: HashMap<u32, Vec<u32>>,
    /// The seats of each target that may go, with what lies in them, the largest first.
    seats: HashMap<u32, BTreeSet<(Reverse<Lot>, u32, u32)>>,
}

impl Plan {
    fn new(map: &v1::ClusterMap, fills: BTreeMap<u32, Fill>, held: &[Held]) -> Self {
        let groups: HashMap<u32, &v1::PgInfo> = map.groups().map(|pg| (pg.id, pg)).collect();
        let (paths, members, seats) = (Paths::new(map), HashMap::new(), HashMap::new());
        let mut plan = Self { fills, paths, members, seats };
        for Held { pg, seats } in held {
            let Some(group) = groups.get(pg).filter(|g| g.retired && g.moves.is_empty()) else {
                continue;
            };
            plan.members.insert(*pg, group.targets.clone());
            for ((seat, &lot), &target) in (0..).zip(seats).zip(&group.targets) {
                if lot.bytes > 0 && plan.fills.contains_key(&target) {
                    plan.seats.entry(target).or_default().insert((Reverse(lot), *pg, seat));
                }
            }
        }
        plan
    }

    /// The best seat for a target that lacks data: of who has most above its share, the largest
    /// that fits.
    fn shift(&mut self, to: u32) -> Option<Shift> {
        let taker = self.fills.get(&to)?;
        let (lacks, slack) = (taker.lacks(), taker.tolerated(END_PERCENT));
        let far = lacks > slack;
        let giver = |id: &u32| {
            let fill = self.fills.get(id)?;
            let (exceeds, slack) = (fill.exceeds(), fill.tolerated(END_PERCENT));
            let gives = *id != to && exceeds > if far { 0 } else { slack };
            gives.then_some((Reverse(exceeds), *id, slack))
        };
        let mut givers: Vec<_> = self.seats.keys().filter_map(giver).collect();
        givers.sort_unstable();
        for (Reverse(exceeds), from, giver_slack) in givers.into_iter().take(TRIED) {
            let fits = |(Reverse(Lot { bytes, .. }), ..): &&(Reverse<Lot>, u32, u32)| {
                *bytes <= lacks.saturating_add(slack)
                    && *bytes <= exceeds.saturating_add(giver_slack)
                    // Else the two would be no nearer to their shares.
                    && *bytes < lacks.saturating_add(exceeds)
            };
            let mut fitting = self.seats.get(&from)?.iter().filter(fits).take(TRIED);
            let found = fitting.find(|(_, pg, _)| self.may_have(*pg, from, to));
            let Some(&found) = found else { continue };
            let (Reverse(lot), pg, seat) = found;
            self.seats.get_mut(&from)?.remove(&found);
            self.members.get_mut(&pg)?[seat as usize] = to;
            let giver = self.fills.get_mut(&from)?;
            // It may say less than was counted here.
            giver.used = giver.used.saturating_sub(lot.bytes);
            self.fills.get_mut(&to)?.used += lot.bytes;
            return Some(Shift { pg, seat, to, lot });
        }
        None
    }

    /// Whether a group may have this target in the place of that one: it is no nearer to the others
    /// than that.
    fn may_have(&self, pg: u32, instead: u32, target: u32) -> bool {
        let members = self.members.get(&pg).filter(|members| !members.contains(&target));
        members.is_some_and(|members| {
            let others = members.iter().copied().filter(|id| *id != instead);
            let around = self.paths.around(others);
            let near = |id| self.paths.nearness(id, &around);
            near(target) <= near(instead)
        })
    }
}

#[cfg(test)]
mod tests;
