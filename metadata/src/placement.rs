//! Placement groups: which targets hold the shards of new segments together.
//!
//! A group is an ordered list of seats. Groups are made so that
//! - the seats of a group lie in distinct failure domains, or as far apart as the domains allow;
//! - every target sits in about as many groups as any other, and equally often in each seat;
//! - every two targets share about as many groups as any other two, so that the rebuild of a lost
//!   target reads from all the others alike.
//!
//! [`generate`] is pure and deterministic. Membership is found by greedy choice and then by swaps
//! that even out the pairs; seats are a proper edge colouring of the bipartite graph of groups and
//! targets (König), which makes the roles exactly even.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use weft_proto::Profile;

/// About how many groups a target sits in.
const SEATS_PER_TARGET: usize = 24;
/// Swaps tried per seat to even out the pairs.
const TRIES_PER_SEAT: usize = 128;

/// A target to place on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seat {
    pub target: u32,
    pub domain: String,
}

/// Groups over these targets, each a list of targets in seat order. `seed` picks one of many
/// equally good answers.
pub fn generate(seats: &[Seat], profile: Profile, seed: u64) -> Vec<Vec<u32>> {
    let width = usize::from(profile.width()).min(seats.len());
    if width == 0 {
        return Vec::new();
    }
    let search = Search::new(seats, width, seed);
    let members = search.run();
    let seated = colour(&members, seats.len(), width);
    seated.into_iter().map(|group| group.into_iter().map(|i| seats[i].target).collect()).collect()
}

/// The search for memberships. Targets are numbered 0..n here.
struct Search {
    domain: Vec<usize>,
    /// Most seats of one group in one domain.
    per_domain: usize,
    width: usize,
    groups: usize,
    /// How many groups two targets share.
    pairs: Vec<u32>,
    /// How many two targets share on average.
    mean_pairs: f64,
    load: Vec<usize>,
    rng: StdRng,
}

impl Search {
    fn new(seats: &[Seat], width: usize, seed: u64) -> Self {
        let mut numbers = BTreeMap::new();
        let domain: Vec<usize> = seats
            .iter()
            .map(|s| {
                let next = numbers.len();
                *numbers.entry(s.domain.as_str()).or_insert(next)
            })
            .collect();
        let n = seats.len();
        // A multiple of the number of targets, and so of every role.
        let groups = n * SEATS_PER_TARGET.div_ceil(width);
        Self {
            per_domain: narrowest(&domain, numbers.len(), width),
            domain,
            width,
            groups,
            pairs: vec![0; n * n],
            mean_pairs: (groups * width * (width - 1)) as f64 / (n * (n - 1).max(1)) as f64,
            load: vec![0; n],
            rng: StdRng::seed_from_u64(seed),
        }
    }

    fn run(mut self) -> Vec<Vec<usize>> {
        let mut groups: Vec<_> = (0..self.groups).map(|_| self.choose()).collect();
        for _ in 0..self.groups * self.width * TRIES_PER_SEAT {
            self.try_swap(&mut groups);
        }
        groups
    }

    fn shared(&self, a: usize, b: usize) -> u32 {
        self.pairs[a * self.load.len() + b]
    }

    fn count(&mut self, a: usize, b: usize, by: i32) {
        let n = self.load.len();
        for at in [a * n + b, b * n + a] {
            self.pairs[at] = self.pairs[at].wrapping_add_signed(by);
        }
    }

    /// One more group: the least loaded targets that may sit together, among those the ones that
    /// have met least.
    fn choose(&mut self) -> Vec<usize> {
        let mut group: Vec<usize> = Vec::with_capacity(self.width);
        while group.len() < self.width {
            let dice: u32 = self.rng.random();
            let best = (0..self.load.len())
                .filter(|&t| !group.contains(&t) && self.room(&group, self.domain[t]))
                .min_by_key(|&t| {
                    let met: u32 = group.iter().map(|&g| self.shared(g, t)).sum();
                    (self.load[t], met, (t as u32).wrapping_mul(0x9e37_79b9) ^ dice)
                });
            // There is always one: `per_domain` times the domains' sizes reaches the width.
            let Some(best) = best else { break };
            group.push(best);
        }
        for (i, &a) in group.iter().enumerate() {
            self.load[a] += 1;
            for &b in &group[..i] {
                self.count(a, b, 1);
            }
        }
        group
    }

    fn room(&self, group: &[usize], domain: usize) -> bool {
        group.iter().filter(|&&g| self.domain[g] == domain).count() < self.per_domain
    }

    /// Exchanges a member of one group with one of another, if that makes loads and domains no
    /// worse and the pairs more even.
    fn try_swap(&mut self, groups: &mut [Vec<usize>]) {
        let (x, y) =
            (self.rng.random_range(0..groups.len()), self.rng.random_range(0..groups.len()));
        let (i, j) = (self.rng.random_range(0..self.width), self.rng.random_range(0..self.width));
        let (a, b) = (groups[x][i], groups[y][j]);
        if x == y || groups[x].contains(&b) || groups[y].contains(&a) {
            return;
        }
        let without = |group: &[usize], skip: usize| -> Vec<usize> {
            group.iter().enumerate().filter(|&(at, _)| at != skip).map(|(_, &t)| t).collect()
        };
        let (rest_x, rest_y) = (without(&groups[x], i), without(&groups[y], j));
        if !self.room(&rest_x, self.domain[b]) || !self.room(&rest_y, self.domain[a]) {
            return;
        }
        let removed = self.change(a, b, &rest_x, &rest_y, true);
        let added = self.change(a, b, &rest_x, &rest_y, false);
        if removed + added < 0.0 {
            groups[x][i] = b;
            groups[y][j] = a;
        } else {
            self.change(b, a, &rest_x, &rest_y, true);
            self.change(b, a, &rest_x, &rest_y, false);
        }
    }

    /// Removes (or adds, crosswise) the pairs of `a` and `b` with the rests of their groups.
    /// Answers how much that changes how uneven the pairs are: the sum of the fourth powers of
    /// their distances from the mean, so that the pair that is furthest off weighs most.
    fn change(
        &mut self,
        a: usize,
        b: usize,
        rest_x: &[usize],
        rest_y: &[usize],
        remove: bool,
    ) -> f64 {
        let mut sum = 0.0;
        let mean = self.mean_pairs;
        let uneven = |count: u32| (f64::from(count) - mean).powi(4);
        let (with_x, with_y, by) = if remove { (a, b, -1) } else { (b, a, 1) };
        for (one, rest) in [(with_x, rest_x), (with_y, rest_y)] {
            for &other in rest {
                let before = uneven(self.shared(one, other));
                self.count(one, other, by);
                sum += uneven(self.shared(one, other)) - before;
            }
        }
        sum
    }
}

/// The least number of seats per domain with which a group of this width exists.
fn narrowest(domain: &[usize], domains: usize, width: usize) -> usize {
    let mut sizes = vec![0; domains];
    domain.iter().for_each(|&d| sizes[d] += 1);
    (1..=width)
        .find(|&most| sizes.iter().map(|&s: &usize| s.min(most)).sum::<usize>() >= width)
        .unwrap_or(width)
}

/// Orders the members of each group in seats so that a target holds each seat equally often, up to
/// one. Each target is split in parts of at most `width` groups; then every vertex of the graph of
/// groups and parts has at most `width` edges, and `width` colours (the seats) suffice.
fn colour(groups: &[Vec<usize>], targets: usize, width: usize) -> Vec<Vec<usize>> {
    const NONE: usize = usize::MAX;
    let mut seen = vec![0; targets];
    let mut part_of = BTreeMap::new();
    let mut owner = Vec::new();
    // seat_at[part][seat] = group, member_at[group][seat] = part.
    let mut seat_at: Vec<Vec<usize>> = Vec::new();
    let mut member_at = vec![vec![NONE; width]; groups.len()];
    for (g, group) in groups.iter().enumerate() {
        for &t in group {
            let part = *part_of.entry((t, seen[t] / width)).or_insert_with(|| {
                owner.push(t);
                seat_at.push(vec![NONE; width]);
                owner.len() - 1
            });
            seen[t] += 1;
            // Both ends have a free colour, since neither has all its edges yet.
            let free = |row: &[usize]| row.iter().position(|&v| v == NONE).unwrap_or(0);
            let (at_group, at_part) = (free(&member_at[g]), free(&seat_at[part]));
            if at_group != at_part {
                flip(&mut member_at, &mut seat_at, part, at_group, at_part);
            }
            member_at[g][at_group] = part;
            seat_at[part][at_group] = g;
        }
    }
    member_at
        .into_iter()
        .map(|seats| seats.into_iter().filter(|&p| p != NONE).map(|p| owner[p]).collect())
        .collect()
}

/// Exchanges two colours along the path that starts at `part` with the edge of colour `a`, so that
/// `a` becomes free there. The path cannot reach the group that `a` is free at.
fn flip(member_at: &mut [Vec<usize>], seat_at: &mut [Vec<usize>], part: usize, a: usize, b: usize) {
    const NONE: usize = usize::MAX;
    let mut edges = Vec::new();
    let (mut part, mut colour, mut other) = (part, a, b);
    loop {
        let group = seat_at[part][colour];
        if group == NONE {
            break;
        }
        edges.push((group, part, colour));
        let next = member_at[group][other];
        if next == NONE {
            break;
        }
        edges.push((group, next, other));
        part = next;
        (colour, other) = (a, b);
    }
    for &(group, part, colour) in &edges {
        member_at[group][colour] = NONE;
        seat_at[part][colour] = NONE;
    }
    for &(group, part, colour) in &edges {
        let colour = if colour == a { b } else { a };
        member_at[group][colour] = part;
        seat_at[part][colour] = group;
    }
}

#[cfg(test)]
mod tests;
