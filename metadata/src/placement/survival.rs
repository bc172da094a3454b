//! Which failure domains may fail now without anything being lost: pure.
//!
//! A placement group survives as long as no more of its seats are lost than the parity of its pool.
//! Seats of targets that do not serve are lost already. What was written with less parity than the
//! pool has, by the layout of its directory, is not looked at.

use super::nearness::Paths;
use std::collections::{HashMap, HashSet};
use weft_proto::v1;

/// What holds one domain, as it is counted.
#[derive(Default)]
struct Domain {
    targets: Vec<u32>,
    most_seats: u32,
    lost_groups: u64,
}

/// Every domain, and every target that must not fail. `in_use`: groups that data lies in.
pub fn check(map: &v1::ClusterMap, in_use: &HashSet<u32>) -> v1::CheckDomainsReply {
    let paths = Paths::new(map);
    // Behind those with names, each target is one of its own.
    let mut names: Vec<(&str, bool)> = paths.names.iter().map(|name| (&name[..], false)).collect();
    let mut domains: Vec<Domain> = Vec::new();
    domains.resize_with(names.len() + map.targets.len(), Domain::default);
    // The domains of each target that serves, the smallest last.
    let mut of: HashMap<u32, Vec<usize>> = HashMap::new();
    for target in &map.targets {
        let above = paths.of.get(&target.id).into_iter().flatten().map(|&domain| domain as usize);
        let all: Vec<usize> = above.chain([names.len()]).collect();
        names.push((&target.domain, true));
        all.iter().for_each(|&domain| domains[domain].targets.push(target.id));
        if target.state() == v1::TargetState::Up {
            of.insert(target.id, all);
        }
    }
    let (mut parity, mut lost) = (u32::MAX, 0);
    for pool in &map.pools {
        let of_pool = pool.profile.map_or(0, |profile| profile.m);
        parity = parity.min(of_pool);
        for pg in pool.pgs.iter().filter(|pg| !pg.retired || in_use.contains(&pg.id)) {
            let gone = pg.targets.iter().filter(|id| !of.contains_key(id)).count() as u32;
            let has_data = in_use.contains(&pg.id);
            if gone > of_pool {
                lost += u64::from(has_data);
                continue;
            }
            let mut seats: HashMap<usize, u32> = HashMap::new();
            for domain in pg.targets.iter().filter_map(|id| of.get(id)).flatten() {
                *seats.entry(*domain).or_default() += 1;
            }
            for (domain, seats) in seats {
                let domain = &mut domains[domain];
                domain.most_seats = domain.most_seats.max(seats);
                domain.lost_groups += u64::from(has_data && gone + seats > of_pool);
            }
        }
    }
    let told = names.into_iter().zip(domains).filter_map(|((name, target), domain)| {
        let Domain { targets, most_seats, lost_groups } = domain;
        let told = if target { lost_groups > 0 } else { !name.is_empty() };
        let name = name.to_owned();
        told.then_some(v1::DomainStat { name, targets, most_seats, lost_groups, target })
    });
    let mut domains: Vec<_> = told.collect();
    domains.sort_by(|a, b| (&a.name, a.target, &a.targets).cmp(&(&b.name, b.target, &b.targets)));
    v1::CheckDomainsReply {
        parity: if map.pools.is_empty() { 0 } else { parity },
        domains,
        lost_groups: lost,
    }
}

/// How many placement groups that data lies in lack more targets than they have parity, and how
/// many as many.
pub fn lacking(map: &v1::ClusterMap, in_use: &HashSet<u32>) -> (u64, u64) {
    let serves = |t: &&v1::TargetInfo| t.state() == v1::TargetState::Up;
    let up: HashSet<u32> = map.targets.iter().filter(serves).map(|t| t.id).collect();
    let (mut lost, mut bare) = (0, 0);
    for pool in &map.pools {
        let parity = pool.profile.map_or(0, |profile| profile.m) as usize;
        for pg in pool.pgs.iter().filter(|pg| in_use.contains(&pg.id)) {
            let gone = pg.targets.iter().filter(|id| !up.contains(id)).count();
            lost += u64::from(gone > parity);
            bare += u64::from(gone == parity && parity > 0);
        }
    }
    (lost, bare)
}

#[cfg(test)]
mod tests {
    use super::*;
    use v1::TargetState::{Down, Up};

    #[test]
    fn a_domain_may_fail_if_its_groups_have_no_more_there_than_parity_makes_good() {
        let target = |(id, domain): (u32, &str)| v1::TargetInfo {
            id,
            domain: domain.into(),
            state: Up.into(),
            ..Default::default()
        };
        let domains = ["r1/a", "r1/a", "r1/b", "r2/c", "r2/d", "r3/e"];
        let group = |id, targets: [u32; 4]| v1::PgInfo {
            id,
            targets: targets.to_vec(),
            retired: id > 1,
            ..Default::default()
        };
        let mut map = v1::ClusterMap {
            targets: (1..).zip(domains).map(target).collect(),
            pools: vec![v1::PoolInfo {
                profile: Some(v1::ProfileInfo { k: 2, m: 2 }),
                // The second has three seats in one rack.
                pgs: vec![group(1, [1, 3, 4, 6]), group(2, [1, 2, 3, 5]), group(3, [1, 2, 3, 4])],
                ..Default::default()
            }],
            ..Default::default()
        };
        let lost = |map: &v1::ClusterMap, used: &[u32]| {
            let reply = check(map, &used.iter().copied().collect());
            assert_eq!(reply.parity, 2);
            let lost = reply.domains.into_iter().filter(|d| d.lost_groups > 0);
            let named = |d: v1::DomainStat| match d.target {
                true => (format!("target {}", d.targets[0]), d.lost_groups),
                false => (d.name, d.lost_groups),
            };
            (lost.map(named).collect::<Vec<_>>(), reply.lost_groups)
        };
        assert_eq!(lost(&map, &[1]), (vec![], 0));
        assert_eq!(lost(&map, &[1, 2]), (vec![("r1".into(), 1)], 0));
        // With a target away, there is less to lose.
        map.targets[4].state = Down.into();
        let all = [("r1".into(), 1), ("r1/a".into(), 1)];
        assert_eq!(lost(&map, &[1, 2]), (all.to_vec(), 0));
        map.targets[1].state = Down.into();
        let (all, past) = lost(&map, &[1, 2]);
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["r1", "r1/a", "target 1", "r1/b", "target 3"]);
        assert_eq!(past, 0);
        map.targets[2].state = Down.into();
        assert_eq!(lost(&map, &[1, 2]).1, 1);
    }
}
