//! Which seats of retired groups are to go from fuller targets to emptier ones: pure.
//!
//! Every target is to hold what its part of the seats of the open groups says: new data comes in
//! these proportions, by weights and as far as the failure domains allow. Invariants: nothing goes
//! to a target that holds its share, nor more than it lacks; so no more is moved than has to be, up
//! to what lies in one seat. No two shards of a segment come nearer to each other, by the domains.

use crate::placement::{parts, prefix};
use crate::soft::repair::{Lot, Shift};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use weft_proto::v1;

/// Data is moved when a target lacks more than this part of its share, in percent, until it lacks
/// no more than the second.
const BEGIN_PERCENT: u64 = 5;
const END_PERCENT: u64 = 2;
/// Less than this is not worth it, in bytes.
const LEAST: u64 = 4 << 20;

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
}

/// How many bytes each target lacks; of those that lack so much that data should be moved.
pub fn shortage(map: &v1::ClusterMap, used: &BTreeMap<u32, u64>) -> u64 {
    let lacks = |fill: &Fill| {
        let lack = fill.share.saturating_sub(fill.used);
        (lack > (fill.share * BEGIN_PERCENT / 100).max(LEAST)).then_some(lack)
    };
    fills(map, used).values().filter_map(lacks).sum()
}

/// The seats to be moved, of these groups.
pub fn plan(map: &v1::ClusterMap, used: &BTreeMap<u32, u64>, held: &[Held]) -> Vec<Shift> {
    let mut plan = Plan::new(map, fills(map, used), held);
    let mut shifts = Vec::new();
    // Those that nothing fits in any more.
    let mut done: HashSet<u32> = HashSet::new();
    loop {
        let open = plan.fills.iter().filter(|(id, fill)| {
            fill.share.saturating_sub(fill.used) > (fill.share * END_PERCENT / 100).max(LEAST / 2)
                && !done.contains(id)
        });
        let emptiest = open.min_by_key(|(_, fill)| fill.used * 1000 / fill.share.max(1));
        let Some(to) = emptiest.map(|(id, _)| *id) else { return shifts };
        match plan.shift(to) {
            Some(shift) => shifts.push(shift),
            None => drop(done.insert(to)),
        }
    }
}

/// Targets that serve and are to stay, and have seats in open groups.
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
        let (Some(&seats), Some(&used)) = (seats.get(&target.id), used.get(&target.id)) else {
            continue;
        };
        all_seats += u128::from(seats);
        all_used += u128::from(used);
        fills.insert(target.id, Fill { share: seats, used });
    }
    for fill in fills.values_mut() {
        fill.share = (all_used * u128::from(fill.share) / all_seats.max(1)) as u64;
    }
    // A target that is about full takes nothing.
    for target in map.targets.iter().filter(|t| t.full) {
        if let Some(fill) = fills.get_mut(&target.id) {
            fill.share = fill.share.min(fill.used);
        }
    }
    fills
}

struct Plan<'a> {
    fills: BTreeMap<u32, Fill>,
    domains: HashMap<u32, &'a str>,
    /// The targets of each group, as they will be.
    members: HashMap<u32, Vec<u32>>,
    /// The seats of each target that may go, with what lies in them, the largest first.
    seats: HashMap<u32, BTreeSet<(Reverse<Lot>, u32, u32)>>,
}

impl<'a> Plan<'a> {
    fn new(map: &'a v1::ClusterMap, fills: BTreeMap<u32, Fill>, held: &[Held]) -> Self {
        let groups: HashMap<u32, &v1::PgInfo> = map.groups().map(|pg| (pg.id, pg)).collect();
        let domains = map.targets.iter().map(|t| (t.id, t.domain.as_str())).collect();
        let mut plan = Self { fills, domains, members: HashMap::new(), seats: HashMap::new() };
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
    /// that it has room for.
    fn shift(&mut self, to: u32) -> Option<Shift> {
        let of = self.fills.get(&to)?;
        let lacks = of.share.saturating_sub(of.used);
        let above = |fill: &Fill| i128::from(fill.used) - i128::from(fill.share);
        let mut givers: Vec<(i128, u32)> = self
            .seats
            .keys()
            .filter_map(|id| {
                let above = above(self.fills.get(id)?);
                (*id != to && above > 0).then_some((above, *id))
            })
            .collect();
        givers.sort_unstable_by_key(|&(above, id)| (Reverse(above), id));
        for (above, from) in givers {
            let fits = |&&(Reverse(Lot { bytes, .. }), pg, _): &&(Reverse<Lot>, u32, u32)| {
                // Else the two would be no nearer to their shares.
                bytes <= lacks
                    && i128::from(bytes) < above + i128::from(lacks)
                    && self.may_have(pg, from, to)
            };
            let Some(&found) = self.seats.get(&from)?.iter().find(fits) else { continue };
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

    /// Whether a group may have this target in the place of that one: no domain of any level gets
    /// more of its seats than it had.
    fn may_have(&self, pg: u32, instead: u32, target: u32) -> bool {
        let Some(members) = self.members.get(&pg).filter(|m| !m.contains(&target)) else {
            return false;
        };
        let domain = |id: &u32| self.domains.get(id).copied().unwrap_or("");
        let (new, old) = (domain(&target), domain(&instead));
        let levels = parts(new).count().max(parts(old).count());
        (1..=levels).all(|level| {
            let (with, without) = (prefix(new, level), prefix(old, level));
            let near =
                |with: &str| members.iter().filter(|id| prefix(domain(id), level) == with).count();
            with == without || near(&with) < near(&without)
        })
    }
}

#[cfg(test)]
mod tests;
