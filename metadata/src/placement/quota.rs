//! How many seats each target should have.

use super::domains::Domains;

/// A domain may hold so many times what its weight says before it is said to be overloaded.
const MAX_OVERLOAD: f64 = 1.5;

/// Whether some domain of this level has to hold much more than its weight says.
pub(super) fn overloads(domains: &Domains, level: usize, weights: &[f64], width: usize) -> bool {
    const GROUPS: usize = 1000;
    let held = domains.sums(&quotas(weights, domains, GROUPS, width)).swap_remove(level);
    let wanted = domains.sums(weights).swap_remove(level);
    let each = (GROUPS * width) as f64 / weights.iter().sum::<f64>();
    held.iter().zip(&wanted).any(|(held, wanted)| *held > wanted * each * MAX_OVERLOAD)
}

/// `groups * width` seats, shared out by weight, but none to a domain above what it can have: what
/// that leaves goes to the others, by weight.
pub(super) fn quotas(weights: &[f64], domains: &Domains, groups: usize, width: usize) -> Vec<f64> {
    let (weights, most) = (domains.sums(weights), domains.capacities(groups));
    // What each domain of the level above has.
    let mut above = vec![(groups * width) as f64];
    for level in 0..domains.levels() {
        let mut quotas = vec![0.0; domains.count(level)];
        for (&total, children) in above.iter().zip(domains.children(level)) {
            let of = |what: &[Vec<f64>]| children.iter().map(|&c| what[level][c]).collect();
            let shares = share_out(total, of(&weights), of(&most));
            children.into_iter().zip(shares).for_each(|(child, share)| quotas[child] = share);
        }
        above = quotas;
    }
    above
}

/// By weight, and nobody gets more than its most.
fn share_out(total: f64, weights: Vec<f64>, most: Vec<f64>) -> Vec<f64> {
    let mut shares = vec![0.0; weights.len()];
    let (mut left, mut open) = (total, (0..weights.len()).collect::<Vec<_>>());
    while !open.is_empty() {
        let weight: f64 = open.iter().map(|&i| weights[i]).sum();
        let share = |i: usize| left * weights[i] / weight;
        let (bound, free): (Vec<usize>, Vec<usize>) =
            open.iter().partition(|&&i| share(i) > most[i]);
        if bound.is_empty() {
            free.iter().for_each(|&i| shares[i] = share(i));
            break;
        }
        for &i in &bound {
            shares[i] = most[i];
        }
        left -= bound.iter().map(|&i| most[i]).sum::<f64>();
        open = free;
    }
    shares
}
