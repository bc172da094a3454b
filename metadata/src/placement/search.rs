//! The search for who sits in which group. Targets are numbered 0..n here.

use super::candidate::Candidate;
use super::domains::Domains;
use super::quota::{overloads, quotas};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeSet, HashMap, HashSet};
use weft_proto::Profile;

/// A seat that nobody has.
pub(super) const NOBODY: usize = usize::MAX;
/// Seats that a target may have beside its quota before seats go from target to target for that.
pub(super) const TOLERANCE: f64 = 1.5;
/// Swaps tried per seat to even out the pairs, and in all.
const TRIES_PER_SEAT: usize = 128;
const MAX_TRIES: usize = 6 << 20;
/// A target and a domain that share so many times more groups than on average share too many, where
/// that is a group or more; swaps tried for each such two at a time, and per seat in all.
const TOO_MANY: f64 = 1.09;
const TRIES_PER_PAIR: usize = 64;
const PARTING_TRIES_PER_SEAT: usize = 64;
/// Targets that are compared for a seat.
const COMPARED: usize = 64;
/// With more targets, pairs of them are too many to be counted; pairs of a target and a domain are
/// not.
const MAX_PAIRED: usize = 4096;

pub(super) struct Search {
    domains: Domains,
    width: usize,
    /// How many seats each should have, and has.
    quota: Vec<f64>,
    load: Vec<usize>,
    groups: Vec<Vec<usize>>,
    /// The groups that each sits in.
    sits_in: Vec<Vec<usize>>,
    /// All targets, those with the least part of their quota first.
    order: BTreeSet<(u64, u32, usize)>,
    shared: Vec<Shared>,
    /// Seats that were given away here: who has them may still change at no cost.
    given: Vec<(usize, usize)>,
    rng: StdRng,
}

/// How many groups each target shares with each domain of a level, members counted one by one.
struct Shared {
    level: usize,
    targets: usize,
    counts: Vec<u16>,
    /// What two share on average is the product of these.
    per_quota: Vec<f64>,
    of_domain: Vec<f64>,
}

impl Search {
    /// Groups that there are, or empty ones.
    pub fn new(
        candidates: &[Candidate],
        profile: Profile,
        groups: Vec<Vec<usize>>,
        seed: u64,
    ) -> Self {
        let n = candidates.len();
        let width = usize::from(profile.width()).min(n);
        let weights: Vec<f64> = candidates.iter().map(Candidate::weight).collect();
        let overloads = |domains: &Domains, level| overloads(domains, level, &weights, width);
        let domains = Domains::new(candidates, profile, overloads);
        let quota = quotas(&weights, &domains, groups.len(), width);
        let paired = |level: &usize| {
            *level + 1 < domains.levels() && domains.count(*level) < n
                || *level + 1 == domains.levels() && n <= MAX_PAIRED
        };
        let shared = (0..domains.levels()).filter(paired);
        let shared = shared.map(|level| Shared::new(level, &domains, &quota, width)).collect();
        let mut search = Self {
            width,
            load: vec![0; n],
            groups: vec![vec![NOBODY; width]; groups.len()],
            sits_in: vec![Vec::new(); n],
            order: BTreeSet::new(),
            shared,
            given: Vec::new(),
            rng: StdRng::seed_from_u64(seed),
            domains,
            quota,
        };
        for target in 0..n {
            search.order.insert(search.rank(target));
        }
        for (group, members) in groups.into_iter().enumerate() {
            for (seat, target) in members.into_iter().enumerate() {
                // Not where it is too near to others, by the domains as they are now.
                if target != NOBODY && search.may_sit(group, NOBODY, target) {
                    search.sit(group, seat, target);
                }
            }
        }
        search
    }

    /// The groups as they should be.
    pub fn run(mut self) -> Vec<Vec<usize>> {
        for group in 0..self.groups.len() {
            for seat in 0..self.width {
                if self.groups[group][seat] == NOBODY
                    && let Some(target) = self.choose(group)
                {
                    self.sit(group, seat, target);
                    self.given.push((group, seat));
                }
            }
        }
        self.level();
        let tries = (self.given.len() * TRIES_PER_SEAT).min(MAX_TRIES);
        for _ in 0..tries {
            let any = (self.any_given(), self.any_given());
            self.try_swap(any.0, any.1);
        }
        self.part_the_closest();
        // Who has swapped may sit elsewhere now: the next search is to find nothing.
        self.level();
        self.groups
    }

    fn rank(&self, target: usize) -> (u64, u32, usize) {
        let (load, quota) = (self.load[target], self.quota[target].max(1e-9));
        // Not always the same of equals.
        let dice = (target as u32 ^ (load as u32) << 16).wrapping_mul(0x9e37_79b9);
        // Of numbers that are not negative, bits are in the order of values.
        (((load as f64) / quota).to_bits(), dice.rotate_left(13), target)
    }

    /// Seats that it has above its quota.
    fn excess(&self, target: usize) -> f64 {
        self.load[target] as f64 - self.quota[target]
    }

    fn members(&self, group: usize) -> impl Iterator<Item = usize> + Clone + '_ {
        self.groups[group].iter().copied().filter(|&t| t != NOBODY)
    }

    /// Whether the group may have this target in the place of `instead`.
    fn may_sit(&self, group: usize, instead: usize, target: usize) -> bool {
        let others = self.members(group).filter(|&t| t != instead);
        self.domains.allow(others, target)
    }

    fn sit(&mut self, group: usize, seat: usize, target: usize) {
        self.pair_up(group, target, 1);
        self.groups[group][seat] = target;
        self.sits_in[target].push(group);
        self.order.remove(&self.rank(target));
        self.load[target] += 1;
        self.order.insert(self.rank(target));
    }

    fn leave(&mut self, group: usize, seat: usize) {
        let target = std::mem::replace(&mut self.groups[group][seat], NOBODY);
        self.pair_up(group, target, -1);
        self.sits_in[target].retain(|&g| g != group);
        self.order.remove(&self.rank(target));
        self.load[target] -= 1;
        self.order.insert(self.rank(target));
    }

    /// Who should have a seat in this group: of those that have the least part of their quota and
    /// may sit there, the one that has met the others least.
    fn choose(&mut self, group: usize) -> Option<usize> {
        let may = self.order.iter().filter(|&&(.., t)| self.may_sit(group, NOBODY, t));
        let mut may = may.take(COMPARED).peekable();
        let least = may.peek()?.0;
        let equals = may.take_while(|&&(part, ..)| part == least);
        equals.min_by_key(|&&(.., t)| self.met(group, t)).map(|&(.., t)| t)
    }

    /// How often this target shares a group with those of this one.
    fn met(&self, group: usize, target: usize) -> u32 {
        let with = |shared: &Shared| -> u32 {
            let others = self.members(group).filter(|&other| other != target);
            others.map(|other| u32::from(shared.of(&self.domains, other, target))).sum()
        };
        self.shared.iter().map(with).sum()
    }

    /// Gives seats of targets that have too many to those that have too few, if any has by more
    /// than is tolerated, until none can be given.
    fn level(&mut self) {
        if (0..self.load.len()).all(|t| self.excess(t).abs() <= TOLERANCE) {
            return;
        }
        let (mut stuck, mut given): (BTreeSet<usize>, usize) = (BTreeSet::new(), 0);
        loop {
            let least = self.order.iter().map(|&(.., t)| t).find(|t| !stuck.contains(t));
            match least.map(|taker| (taker, self.giver(taker))) {
                Some((taker, Some((group, seat)))) => {
                    self.leave(group, seat);
                    self.sit(group, seat, taker);
                    self.given.push((group, seat));
                    given += 1;
                }
                Some((taker, None)) => drop(stuck.insert(taker)),
                // What was given may have made way for those.
                None if given > 0 => (stuck, given) = (BTreeSet::new(), 0),
                None => return,
            }
        }
    }

    /// A seat that the target should have in the place of one that has more than enough.
    fn giver(&mut self, taker: usize) -> Option<(usize, usize)> {
        let first: Vec<_> = self.givers(taker).take(COMPARED).collect();
        // Where groups have all seats in a rack that they may have there, only those of the same
        // rack can give: to ask all others before takes long where there are many.
        let near = |&giver: &usize| self.domains.at(0, giver) == self.domains.at(0, taker);
        let near = self.givers(taker).filter(near).filter(|&giver| self.excess(giver) > 0.0);
        let near: Vec<_> = near.take(COMPARED).collect();
        let mut found = self.first_of(first, taker).or_else(|| self.first_of(near, taker));
        for passed in (COMPARED..).step_by(COMPARED) {
            let givers: Vec<_> = self.givers(taker).skip(passed).take(COMPARED).collect();
            if found.is_some() || givers.is_empty() {
                break;
            }
            found = self.first_of(givers, taker);
        }
        found
    }

    /// The best seat of the first of these that can give one to the target.
    fn first_of(&mut self, givers: Vec<usize>, taker: usize) -> Option<(usize, usize)> {
        givers.into_iter().find_map(|giver| self.best_of(giver, taker))
    }

    /// Those that should give a seat to this target, the one with most first: else the two would be
    /// no more even.
    fn givers(&self, taker: usize) -> impl Iterator<Item = usize> + '_ {
        let ((part, ..), excess) = (self.rank(taker), self.excess(taker));
        let more = self.order.iter().rev().take_while(move |&&(of_giver, ..)| of_giver > part);
        let more = more.map(|&(.., giver)| giver);
        more.filter(move |&giver| self.excess(giver) - excess > 1.0 + 1e-9)
    }

    /// The seat of one target that another should have, if it may have any.
    fn best_of(&mut self, giver: usize, taker: usize) -> Option<(usize, usize)> {
        let may = |group: &&usize| {
            !self.groups[**group].contains(&taker) && self.may_sit(**group, giver, taker)
        };
        let may: Vec<usize> = self.sits_in[giver].iter().filter(may).copied().collect();
        let mut best: Option<(f64, (usize, usize))> = None;
        for group in may {
            let seat = self.groups[group].iter().position(|&t| t == giver)?;
            let uneven = self.trial((group, seat), taker);
            if best.is_none_or(|(least, _)| uneven < least) {
                best = Some((uneven, (group, seat)));
            }
        }
        best.map(|(_, seat)| seat)
    }

    /// How much more uneven it would be if this target had the seat.
    fn trial(&mut self, (group, seat): (usize, usize), taker: usize) -> f64 {
        let giver = self.groups[group][seat];
        let uneven = self.pair_up(group, giver, -1) + {
            self.groups[group][seat] = taker;
            self.pair_up(group, taker, 1)
        };
        self.pair_up(group, taker, -1);
        self.groups[group][seat] = giver;
        self.pair_up(group, giver, 1);
        uneven
    }

    fn any_given(&mut self) -> (usize, usize) {
        self.given[self.rng.random_range(0..self.given.len())]
    }

    /// Looks for swaps for those that share too many groups: who is furthest off is who a rebuild
    /// waits for, and swaps at random seldom come upon it.
    fn part_the_closest(&mut self) {
        let mut given: HashMap<usize, Vec<(usize, usize)>> = HashMap::new();
        for &(group, seat) in &self.given {
            let target = self.groups[group][seat];
            given.entry(self.domains.at(0, target)).or_default().push((group, seat));
        }
        // In a rack of one target there is nobody to swap with.
        given.retain(|_, seats| {
            let mut targets = seats.iter().map(|&(group, seat)| self.groups[group][seat]);
            let first = targets.next();
            targets.any(|target| Some(target) != first)
        });
        let is_given: HashSet<(usize, usize)> = self.given.iter().copied().collect();
        let mut tries = (self.given.len() * PARTING_TRIES_PER_SEAT).min(MAX_TRIES);
        for at in 0..self.shared.len() {
            let (mut found, mut before) = (self.shared[at].too_many(), usize::MAX);
            while found.len() < before {
                before = found.len();
                for (domain, target) in found {
                    let seats = self.meet(at, domain, target);
                    let seats: Vec<_> =
                        seats.into_iter().filter(|s| is_given.contains(s)).collect();
                    for _ in 0..TRIES_PER_PAIR {
                        let too_many = self.shared[at].are_too_many(domain, target);
                        if seats.is_empty() || tries == 0 || !too_many {
                            break;
                        }
                        tries -= 1;
                        let one = seats[self.rng.random_range(0..seats.len())];
                        // Of the same rack: the others of the group seldom have room for another.
                        let rack = self.domains.at(0, self.groups[one.0][one.1]);
                        let other = match given.get(&rack) {
                            Some(others) => others[self.rng.random_range(0..others.len())],
                            None => self.any_given(),
                        };
                        self.try_swap(one, other);
                    }
                }
                found = self.shared[at].too_many();
            }
        }
    }

    /// The seats of a target and of a domain in the groups that they share.
    fn meet(&self, at: usize, domain: usize, target: usize) -> Vec<(usize, usize)> {
        let level = self.shared[at].level;
        let is_of = |t: usize| t != NOBODY && self.domains.at(level, t) == domain;
        let mut seats = Vec::new();
        for &group in &self.sits_in[target] {
            let members = &self.groups[group];
            if members.iter().any(|&t| is_of(t)) {
                let part = |seat: &usize| members[*seat] == target || is_of(members[*seat]);
                seats.extend((0..self.width).filter(part).map(|seat| (group, seat)));
            }
        }
        seats
    }

    /// Exchanges who has these seats, both given here, if that makes domains no worse and the pairs
    /// more even.
    fn try_swap(&mut self, (x, i): (usize, usize), (y, j): (usize, usize)) {
        let (a, b) = (self.groups[x][i], self.groups[y][j]);
        if x == y || self.groups[x].contains(&b) || self.groups[y].contains(&a) {
            return;
        }
        if !self.may_sit(x, a, b) || !self.may_sit(y, b, a) {
            return;
        }
        let left = self.pair_up(x, a, -1) + self.pair_up(y, b, -1);
        (self.groups[x][i], self.groups[y][j]) = (b, a);
        if left + self.pair_up(x, b, 1) + self.pair_up(y, a, 1) >= 0.0 {
            self.pair_up(x, b, -1);
            self.pair_up(y, a, -1);
            (self.groups[x][i], self.groups[y][j]) = (a, b);
            self.pair_up(x, a, 1);
            self.pair_up(y, b, 1);
            return;
        }
        let moved = |groups: &mut Vec<usize>, from: usize, to: usize| {
            groups.iter_mut().filter(|g| **g == from).for_each(|g| *g = to);
        };
        moved(&mut self.sits_in[a], x, y);
        moved(&mut self.sits_in[b], y, x);
    }

    /// Counts a member of a group with the others, or no more. Answers how much that changes how
    /// uneven all are: the sum of the fourth powers of their distances from the mean, so that what
    /// is furthest off weighs most.
    fn pair_up(&mut self, group: usize, target: usize, by: i16) -> f64 {
        let mut sum = 0.0;
        for shared in &mut self.shared {
            for &other in self.groups[group].iter().filter(|&&t| t != NOBODY && t != target) {
                sum += shared.count(&self.domains, target, other, by);
            }
        }
        sum
    }
}

impl Shared {
    fn new(level: usize, domains: &Domains, quota: &[f64], width: usize) -> Self {
        let of_domain = domains.sums(quota).swap_remove(level);
        let all: f64 = quota.iter().sum();
        let per_quota = (0..quota.len())
            .map(|t| {
                let others = all - of_domain[domains.at(level, t)];
                quota[t] * (width - 1) as f64 / others.max(1.0)
            })
            .collect();
        let targets = quota.len();
        let counts = vec![0; of_domain.len() * targets];
        Self { level, targets, counts, per_quota, of_domain }
    }

    /// How often a target shares a group with the domain of another.
    fn of(&self, domains: &Domains, other: usize, target: usize) -> u16 {
        self.counts[domains.at(self.level, other) * self.targets + target]
    }

    /// A domain and a target that share too many groups.
    fn too_many(&self) -> Vec<(usize, usize)> {
        let all = (0..self.of_domain.len()).flat_map(|d| (0..self.targets).map(move |t| (d, t)));
        all.filter(|&(domain, target)| self.are_too_many(domain, target)).collect()
    }

    fn are_too_many(&self, domain: usize, target: usize) -> bool {
        let mean = self.per_quota[target] * self.of_domain[domain];
        let count = f64::from(self.counts[domain * self.targets + target]);
        count > mean * TOO_MANY && mean * (TOO_MANY - 1.0) >= 1.0
    }

    /// Two share one group more, or less. Answers how much less even that is.
    fn count(&mut self, domains: &Domains, a: usize, b: usize, by: i16) -> f64 {
        let of = (domains.at(self.level, a), domains.at(self.level, b));
        if of.0 == of.1 {
            return 0.0;
        }
        let mut sum = 0.0;
        for (domain, target) in [(of.0, b), (of.1, a)] {
            let mean = self.per_quota[target] * self.of_domain[domain];
            let uneven = |count: u16| (f64::from(count) - mean).powi(4);
            let count = &mut self.counts[domain * self.targets + target];
            let before = uneven(*count);
            *count = count.wrapping_add_signed(by);
            sum += uneven(*count) - before;
        }
        sum
    }
}
