//! Tests of `placement`.

use super::search::TOLERANCE;
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// One target a weight, in the domain of its number.
fn candidates(weights: &[(String, u64)]) -> Vec<Candidate> {
    (10..)
        .zip(weights)
        .map(|(target, (domain, weight))| Candidate {
            target,
            domain: domain.clone(),
            weight: *weight,
        })
        .collect()
}

/// Racks of so many nodes of so many targets.
fn cluster(racks: usize, nodes: usize, targets: usize) -> Vec<Candidate> {
    let domain = |i: usize| format!("r{}/n{}", i / targets / nodes, i / targets % nodes);
    let of = |i| (domain(i), 1000);
    candidates(&(0..racks * nodes * targets).map(of).collect::<Vec<_>>())
}

/// The groups that there are then, and how many seats of those that stay or are changed are new.
fn carry_out(groups: &[Vec<u32>], change: Option<Change>) -> (Vec<Vec<u32>>, usize) {
    let Some(Change { stays, made }) = change else { return (groups.to_vec(), 0) };
    let (kept, gone): (Vec<_>, Vec<_>) = groups.iter().zip(stays).partition(|(_, stays)| *stays);
    let moved = gone
        .iter()
        .zip(&made)
        .map(|((old, _), new)| old.iter().zip(new).filter(|(old, new)| old != new).count());
    let moved = moved.sum();
    let kept = kept.into_iter().map(|(group, _)| group.clone());
    (kept.chain(made).collect(), moved)
}

fn generate(candidates: &[Candidate], profile: Profile, seed: u64) -> Vec<Vec<u32>> {
    carry_out(&[], change(&[], candidates, profile, seed)).0
}

fn loads(groups: &[Vec<u32>]) -> BTreeMap<u32, usize> {
    let mut loads = BTreeMap::new();
    groups.iter().flatten().for_each(|&t| *loads.entry(t).or_default() += 1);
    loads
}

/// How many groups hold more of a domain than the best possible group must, or of a rack than
/// parity makes good.
fn too_near(groups: &[Vec<u32>], candidates: &[Candidate], profile: Profile) -> usize {
    let width = usize::from(profile.width()).min(candidates.len());
    let of: BTreeMap<u32, &str> =
        candidates.iter().map(|c| (c.target, c.domain.as_str())).collect();
    let mut sizes: BTreeMap<String, BTreeMap<&str, usize>> = BTreeMap::new();
    for domain in of.values() {
        *sizes.entry(prefix(domain, 1)).or_default().entry(domain).or_default() += 1;
    }
    let room = |in_rack: usize, in_node: usize| -> usize {
        let of_rack = |nodes: &BTreeMap<&str, usize>| {
            nodes.values().map(|size| (*size).min(in_node)).sum::<usize>().min(in_rack)
        };
        sizes.values().map(of_rack).sum()
    };
    let in_rack = (1..).find(|most| room(*most, width) >= width).unwrap();
    let in_node = (1..).find(|most| room(in_rack, *most) >= width).unwrap();
    let wrong = |group: &&Vec<u32>| {
        let most = |told| {
            let mut seats = BTreeMap::new();
            group.iter().for_each(|t| *seats.entry(prefix(of[t], told)).or_insert(0usize) += 1);
            seats.into_values().max().unwrap_or(0)
        };
        most(1) > in_rack.max(profile.m().into()) || most(2) > in_node
    };
    groups.iter().filter(wrong).count()
}

fn domains() -> impl Strategy<Value = Vec<(String, u64)>> {
    let rack = prop::collection::vec(prop::collection::vec(100u64..400, 1..4), 1..4);
    prop::collection::vec(rack, 1..8).prop_map(|racks| {
        let mut all = Vec::new();
        for (r, nodes) in racks.into_iter().enumerate() {
            for (n, weights) in nodes.into_iter().enumerate() {
                all.extend(weights.into_iter().map(|w| (format!("r{r}/n{n}"), w)));
            }
        }
        all
    })
}

fn check(
    groups: &[Vec<u32>],
    candidates: &[Candidate],
    profile: Profile,
) -> Result<(), TestCaseError> {
    let width = usize::from(profile.width()).min(candidates.len());
    prop_assert!(!groups.is_empty());
    for group in groups {
        prop_assert_eq!(group.len(), width);
        prop_assert_eq!(group.iter().collect::<BTreeSet<_>>().len(), width);
    }
    prop_assert_eq!(too_near(groups, candidates, profile), 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn groups_are_lists_of_distinct_targets_as_far_apart_as_can_be(
        weights in domains(), k in 1u8..9, m in 0u8..4, seed: u64,
    ) {
        let candidates = candidates(&weights);
        let profile = Profile::ec(k, m).unwrap();
        let groups = generate(&candidates, profile, seed);
        check(&groups, &candidates, profile)?;
        prop_assert_eq!(&groups, &generate(&candidates, profile, seed), "the same again");
    }

    /// Targets come and go, and weigh more or less.
    #[test]
    fn a_change_is_whole_and_small_and_the_next_is_none(
        weights in domains(), k in 1u8..5, m in 0u8..3, seed: u64,
        steps in prop::collection::vec((any::<prop::sample::Index>(), 0u8..3), 1..8),
    ) {
        let (mut known, profile) = (candidates(&weights), Profile::ec(k, m).unwrap());
        let mut groups = generate(&known, profile, seed);
        for (i, (which, what)) in steps.into_iter().enumerate() {
            let at = which.index(known.len());
            match what {
                0 if known.len() > 1 => drop(known.remove(at)),
                1 => known[at].weight = 100 + (known[at].weight * 7) % 300,
                _ => {
                    let target = 100 + i as u32;
                    known.push(Candidate { target, ..known[at].clone() });
                }
            }
            let change_of = |groups: &[Vec<u32>], seed| change(groups, &known, profile, seed);
            groups = carry_out(&groups, change_of(&groups, seed + 1)).0;
            check(&groups, &known, profile)?;
            prop_assert!(change_of(&groups, seed + 2).is_none());
        }
    }

    #[test]
    fn load_and_pairs_are_even_when_every_target_is_a_domain(n in 3usize..30, k in 1u8..9,
        m in 0u8..4, seed: u64) {
        let weights: Vec<_> = (0..n).map(|i| (format!("n{i}"), 1)).collect();
        let (candidates, profile) = (candidates(&weights), Profile::ec(k, m).unwrap());
        let groups = generate(&candidates, profile, seed);
        let width = usize::from(profile.width()).min(n);
        let loads = loads(&groups);
        prop_assert_eq!(loads.len(), n);
        let load = groups.len() * width / n;
        prop_assert!(loads.values().all(|l| l.abs_diff(load) <= 1), "{:?}", loads);
        let expected = (load * (width - 1)) as f64 / (n - 1) as f64;
        for a in &candidates {
            for b in candidates.iter().filter(|b| b.target > a.target) {
                let both = groups.iter().filter(|g| g.contains(&a.target) &&
                    g.contains(&b.target)).count();
                prop_assert!((both as f64 - expected).abs() <= 4.0, "{} and {}: {both}, expected \
                    {expected}", a.target, b.target);
            }
        }
    }

    /// Each has what its weight says of all seats, as long as no group has more than one of its.
    #[test]
    fn who_weighs_more_has_more_seats(weights in prop::collection::vec(100u64..200, 10..40),
        seed: u64) {
        let named: Vec<_> =
            weights.iter().enumerate().map(|(i, w)| (format!("n{i}"), *w)).collect();
        let groups = generate(&candidates(&named), Profile::ec(3, 1).unwrap(), seed);
        let (all, loads) = (weights.iter().sum::<u64>() as f64, loads(&groups));
        for (target, weight) in (10..).zip(&weights) {
            let quota = (groups.len() * 4) as f64 * *weight as f64 / all;
            let load = loads[&target] as f64;
            prop_assert!((load - quota).abs() <= TOLERANCE, "{load}, and not {quota}");
        }
    }
}

#[test]
fn a_heavy_target_has_no_two_seats_of_a_group() {
    let weights = [("a".into(), 1000), ("b".into(), 1), ("c".into(), 1), ("d".into(), 1)];
    let candidates = candidates(&weights);
    let groups = generate(&candidates, Profile::replica(2).unwrap(), 1);
    let loads = loads(&groups);
    assert!(loads[&10] + 2 > groups.len(), "{loads:?}");
    assert!((11..14).all(|t| loads[&t].abs_diff(groups.len() / 3) <= 1), "{loads:?}");
}

#[test]
fn a_drive_that_is_added_takes_its_seats_from_all_and_nobody_else_any() {
    let (mut known, profile) = (cluster(5, 2, 2), Profile::ec(4, 2).unwrap());
    let groups = generate(&known, profile, 3);
    known.push(Candidate { target: 99, domain: "r5/n0".into(), weight: 1000 });
    let (after, moved) = carry_out(&groups, change(&groups, &known, profile, 4));
    let quota = groups.len() * 6 / 21;
    let load = loads(&after)[&99];
    assert!(load.abs_diff(quota) <= 2, "{load}, and not {quota}");
    assert!(moved * 100 <= load * 105, "{moved} seats moved for {load}");
    // It is lost again: what it had goes to the others, and nothing else moves.
    known.pop();
    let (_, moved) = carry_out(&after, change(&after, &known, profile, 5));
    assert!(moved * 100 <= load * 110, "{moved} seats moved for {load}");
}

/// What each target reads when these are lost: `k` of those of a group that are left are read, and
/// all of them alike. What is stored is not counted.
fn rebuild(groups: &[Vec<u32>], known: &[Candidate], lost: &BTreeSet<u32>, k: usize) -> Vec<f64> {
    let mut work: BTreeMap<u32, f64> =
        known.iter().filter(|c| !lost.contains(&c.target)).map(|c| (c.target, 0.0)).collect();
    for group in groups {
        let left: Vec<u32> = group.iter().copied().filter(|t| !lost.contains(t)).collect();
        let gone = group.len() - left.len();
        for target in &left {
            *work.get_mut(target).unwrap() += (gone * k) as f64 / left.len() as f64;
        }
    }
    work.into_values().collect()
}

/// A cluster of 1,000 drives in 40 nodes in 10 racks, and one more node in each rack.
#[test]
fn a_lost_node_is_rebuilt_by_all_others_alike_and_growth_moves_what_it_must() {
    let (mut known, profile) = (cluster(10, 4, 25), Profile::ec(8, 2).unwrap());
    let groups = generate(&known, profile, 7);
    // Whichever node is lost. Each group has one seat in each rack: those of the lost node's share
    // none with it.
    let uneven = |groups: &[Vec<u32>], known: &[Candidate], others: usize| {
        let without = |node: &[Candidate]| {
            let lost: BTreeSet<u32> = node.iter().map(|c| c.target).collect();
            let work: Vec<f64> = rebuild(groups, known, &lost, 8);
            let work: Vec<f64> = work.into_iter().filter(|w| *w > 0.0).collect();
            assert_eq!(work.len(), others);
            work.iter().copied().fold(0.0, f64::max) * others as f64 / work.iter().sum::<f64>()
        };
        known[..1000].chunks(25).map(without).fold(0.0, f64::max)
    };
    let before = uneven(&groups, &known, 900);
    assert!(before <= 1.1, "{before}");
    for i in 0..250 {
        let domain = format!("r{}/n4", i / 25);
        known.push(Candidate { target: 2000 + i, domain, weight: 1000 });
    }
    let (after, moved) = carry_out(&groups, change(&groups, &known, profile, 8));
    let loads = loads(&after);
    let new: usize = (2000..2250).map(|t| loads[&t]).sum();
    assert!(moved * 100 <= new * 105, "{moved} seats moved for {new}");
    // Nothing but the seats that have to move was free to be chosen, and a target shares sixteen
    // groups with a node.
    let after = uneven(&after, &known, 1125);
    assert!(after <= 1.2, "{after}");
}
