//! Tests of `placement`.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn seats(sizes: &[usize]) -> Vec<Seat> {
    let domains = sizes.iter().enumerate().flat_map(|(d, &size)| std::iter::repeat_n(d, size));
    domains
        .enumerate()
        .map(|(i, d)| Seat { target: 10 + i as u32, domain: format!("rack{d}") })
        .collect()
}

fn loads(groups: &[Vec<u32>]) -> BTreeMap<u32, usize> {
    let mut loads = BTreeMap::new();
    groups.iter().flatten().for_each(|&t| *loads.entry(t).or_default() += 1);
    loads
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn groups_are_lists_of_distinct_targets_as_far_apart_as_can_be(
        sizes in proptest::collection::vec(1usize..5, 1..12), k in 1u8..9, m in 0u8..4, seed: u64,
    ) {
        let seats = seats(&sizes);
        let profile = Profile::ec(k, m).unwrap();
        let groups = generate(&seats, profile, seed);
        let width = usize::from(profile.width()).min(seats.len());
        let best = (1..).find(|&most| sizes.iter().map(|&s| s.min(most))
            .sum::<usize>() >= width).unwrap();
        let domain: BTreeMap<_, _> = seats.iter().map(|s| (s.target, &s.domain)).collect();
        prop_assert!(!groups.is_empty());
        for group in &groups {
            prop_assert_eq!(group.len(), width);
            prop_assert_eq!(group.iter().collect::<BTreeSet<_>>().len(), width);
            let mut per_domain = BTreeMap::new();
            group.iter().for_each(|t| *per_domain.entry(domain[t]).or_insert(0usize) += 1);
            prop_assert!(per_domain.values().all(|&n| n <= best));
        }
        prop_assert_eq!(&groups, &generate(&seats, profile, seed), "the same again");
        // Roles: a target holds no seat more often than any other by more than one.
        for (&target, &load) in &loads(&groups) {
            for seat in 0..width {
                let held = groups.iter().filter(|g| g[seat] == target).count();
                prop_assert!(held >= load / width && held <= load.div_ceil(width));
            }
        }
    }

    #[test]
    fn load_and_pairs_are_even_when_every_target_is_a_domain(n in 3usize..30, k in 1u8..9,
        m in 0u8..4, seed: u64) {
        let seats = seats(&vec![1; n]);
        let profile = Profile::ec(k, m).unwrap();
        let groups = generate(&seats, profile, seed);
        let width = usize::from(profile.width()).min(n);
        let loads = loads(&groups);
        prop_assert_eq!(loads.len(), n);
        let load = groups.len() * width / n;
        prop_assert!(loads.values().all(|&l| l == load) && (20..=100).contains(&load), "{:?}",
            loads);
        let expected = (load * (width - 1)) as f64 / (n - 1) as f64;
        // The search is not exhaustive; in 10,000 cases it missed the mean by 1.8 at most.
        for a in &seats {
            for b in seats.iter().filter(|b| b.target > a.target) {
                let both = groups.iter().filter(|g| g.contains(&a.target) &&
                    g.contains(&b.target)).count();
                prop_assert!((both as f64 - expected).abs() <= 2.0, "{} and {}: {both}, expected \
                    {expected}", a.target, b.target);
            }
        }
    }
}
