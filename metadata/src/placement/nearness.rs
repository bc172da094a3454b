//! How near the targets of a group are to each other.

use super::domains::{parts, prefix};
use std::collections::HashMap;
use weft_proto::v1;

/// How near a target would be to the others of a group: less is better.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Nearness {
    /// Some domain above the smallest would have more seats than there is parity.
    fatal: bool,
    /// Others in the same domain.
    same: usize,
    /// Others in each domain that it is part of, from the top.
    above: Vec<usize>,
}

/// The domains of targets, by number.
#[derive(Default)]
pub struct Paths {
    /// The name of each domain: as a path, from the top.
    pub(super) names: Vec<String>,
    /// For each target the domains that it is part of, the smallest last.
    pub(super) of: HashMap<u32, Vec<u32>>,
    /// Seats that a group may lose.
    parity: usize,
}

impl Paths {
    pub fn new(map: &v1::ClusterMap) -> Self {
        let mut numbers: HashMap<String, u32> = HashMap::new();
        let mut names = Vec::new();
        let mut number = |name: String| {
            *numbers.entry(name).or_insert_with_key(|name| {
                names.push(name.clone());
                names.len() as u32 - 1
            })
        };
        let mut path = |t: &v1::TargetInfo| {
            let depth = parts(&t.domain).count().max(1);
            (1..=depth).map(|told| number(prefix(&t.domain, told))).collect()
        };
        let of = map.targets.iter().map(|t| (t.id, path(t))).collect();
        let profiles = map.pools.iter().filter_map(|pool| pool.profile);
        let parity = profiles.map(|profile| profile.m as usize).min().unwrap_or(1).max(1);
        Self { names, of, parity }
    }

    /// How many of these lie in each domain.
    pub fn around(&self, others: impl Iterator<Item = u32>) -> Around {
        let mut counts = HashMap::new();
        for domain in others.filter_map(|other| self.of.get(&other)).flatten() {
            *counts.entry(*domain).or_default() += 1;
        }
        Around(counts)
    }

    /// How near a target is to others.
    pub fn nearness(&self, target: u32, others: &Around) -> Nearness {
        let path = self.of.get(&target).map_or(&[][..], Vec::as_slice);
        let within = |domain: &u32| others.0.get(domain).copied().unwrap_or(0);
        let (smallest, upper) = path.split_last().map_or((None, &[][..]), |(l, u)| (Some(l), u));
        let above: Vec<usize> = upper.iter().map(within).collect();
        let fatal = above.iter().any(|others| *others >= self.parity);
        Nearness { fatal, same: smallest.map_or(0, within), above }
    }
}

/// How many targets lie in each domain, by its number.
pub struct Around(HashMap<u32, usize>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rack_that_is_full_is_worse_than_a_node_and_a_node_than_a_rack() {
        let domains = ["r1/a", "r1/a", "r1/b", "r1/c", "r2/d", "r2/e", "r3/f"];
        let target = |(id, domain): (u32, &&str)| v1::TargetInfo {
            id,
            domain: (*domain).into(),
            ..Default::default()
        };
        let map = v1::ClusterMap {
            targets: (1..).zip(&domains).map(target).collect(),
            pools: vec![v1::PoolInfo {
                profile: Some(v1::ProfileInfo { k: 4, m: 2 }),
                ..Default::default()
            }],
            ..Default::default()
        };
        let paths = Paths::new(&map);
        let best = |others: &[u32], among: &[u32]| {
            let around = paths.around(others.iter().copied());
            let near = |id: &&u32| paths.nearness(**id, &around);
            *among.iter().min_by_key(near).unwrap()
        };
        assert_eq!(best(&[1], &[2, 3, 5]), 5, "another rack");
        assert_eq!(best(&[1, 5], &[2, 3]), 3, "another node");
        // A third one in the rack, or a second one in the node of another.
        assert_eq!(best(&[1, 3, 7], &[4, 7]), 7);
        assert_eq!(best(&[1, 3, 5], &[4, 6]), 6);
    }
}
