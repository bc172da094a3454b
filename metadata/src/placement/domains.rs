//! Failure domains: what fails together, from racks down to drives.
//!
//! The name of a domain is a path, `rack-3/node-7`: whoever loses a rack loses its nodes. Each part
//! is a level; the lowest level is the target itself.
//!
//! Invariants: a group never has more seats in one of the smallest domains, such as nodes, than it
//! must. Of those above, such as racks, it may have as many as it has parity, where with fewer some
//! would hold much more than their weight says: the loss of one loses nothing all the same.

use super::candidate::Candidate;
use std::collections::BTreeMap;
use weft_proto::Profile;

/// The domains of the targets 0..n, by level.
pub(super) struct Domains {
    /// `at[level][target]`; the last level is that of targets.
    at: Vec<Vec<usize>>,
    /// `parent[level][domain]`, of the level above.
    parent: Vec<Vec<usize>>,
    /// Most seats of one group in one domain, by level.
    most: Vec<usize>,
}

impl Domains {
    /// The domains of these targets. `overloads` says whether some domain of a level has to hold
    /// much more than its weight says.
    pub fn new(
        candidates: &[Candidate],
        profile: Profile,
        overloads: impl Fn(&Self, usize) -> bool,
    ) -> Self {
        let width = usize::from(profile.width()).min(candidates.len());
        let depth = candidates.iter().map(|c| parts(&c.domain).count()).max().unwrap_or(0);
        let mut at: Vec<Vec<usize>> = (1..=depth)
            .map(|parts_told| {
                let mut numbers = BTreeMap::new();
                let number = |c: &Candidate| {
                    let next = numbers.len();
                    *numbers.entry(prefix(&c.domain, parts_told)).or_insert(next)
                };
                candidates.iter().map(number).collect()
            })
            .collect();
        at.push((0..candidates.len()).collect());
        let mut domains = Self { parent: parents(&at), most: vec![width; at.len()], at };
        for level in 0..domains.at.len() {
            let enough = |most: &usize| {
                domains.most[level] = *most;
                domains.seats()[0].iter().sum::<usize>() >= width
            };
            let least = (1..=width).find(enough).unwrap_or(width);
            domains.most[level] = least;
            let parity = if level + 1 < depth { usize::from(profile.m()) } else { 0 };
            while domains.most[level] < parity && overloads(&domains, level) {
                domains.most[level] += 1;
            }
        }
        domains
    }

    pub fn levels(&self) -> usize {
        self.at.len()
    }

    /// How many domains there are at a level.
    pub fn count(&self, level: usize) -> usize {
        self.parent[level].len()
    }

    pub fn at(&self, level: usize, target: usize) -> usize {
        self.at[level][target]
    }

    /// Whether a group of these others may have a seat at this target.
    pub fn allow(&self, others: impl Iterator<Item = usize> + Clone, target: usize) -> bool {
        self.at.iter().zip(&self.most).all(|(at, &most)| {
            others.clone().filter(|&other| at[other] == at[target]).count() < most
        })
    }

    /// For each level, how many seats of `groups` groups each domain can have.
    pub fn capacities(&self, groups: usize) -> Vec<Vec<f64>> {
        let seats = self.seats();
        seats.iter().map(|level| level.iter().map(|&s| (s * groups) as f64).collect()).collect()
    }

    /// The sum of `of` over the targets of each domain, by level.
    pub fn sums(&self, of: &[f64]) -> Vec<Vec<f64>> {
        let mut sums: Vec<Vec<f64>> = self.parent.iter().map(|p| vec![0.0; p.len()]).collect();
        for (level, at) in self.at.iter().enumerate() {
            at.iter().zip(of).for_each(|(&domain, &value)| sums[level][domain] += value);
        }
        sums
    }

    /// The domains of a level, by that of the level above that they are part of.
    pub fn children(&self, level: usize) -> Vec<Vec<usize>> {
        let above = if level == 0 { 1 } else { self.count(level - 1) };
        let mut children = vec![Vec::new(); above];
        for (child, &parent) in self.parent[level].iter().enumerate() {
            children[parent].push(child);
        }
        children
    }

    /// Most seats of one group in each domain, by level, as its parts allow.
    fn seats(&self) -> Vec<Vec<usize>> {
        let mut seats: Vec<Vec<usize>> = self.parent.iter().map(|p| vec![0; p.len()]).collect();
        for level in (0..self.levels()).rev() {
            if level + 1 == self.levels() {
                seats[level].fill(1);
            }
            let most = self.most[level];
            seats[level].iter_mut().for_each(|s| *s = (*s).min(most));
            if level > 0 {
                for (child, &parent) in self.parent[level].iter().enumerate() {
                    let of_child = seats[level][child];
                    seats[level - 1][parent] += of_child;
                }
            }
        }
        seats
    }
}

/// The parts of a domain's name.
pub(super) fn parts(domain: &str) -> impl Iterator<Item = &str> {
    domain.split('/').filter(|part| !part.is_empty())
}

/// The domain that this one is part of, so many parts long; itself if it has no more.
pub(super) fn prefix(domain: &str, told: usize) -> String {
    parts(domain).take(told).collect::<Vec<_>>().join("/")
}

/// For each level, the domain of the level above that each is part of.
fn parents(at: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut parents = Vec::new();
    for (level, of) in at.iter().enumerate() {
        let count = of.iter().max().map_or(0, |most| most + 1);
        let mut parent = vec![0; count];
        if level > 0 {
            of.iter().zip(&at[level - 1]).for_each(|(&child, &above)| parent[child] = above);
        }
        parents.push(parent);
    }
    parents
}
