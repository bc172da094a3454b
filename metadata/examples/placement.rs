//! How long placement takes, how much it moves and how even it is, in clusters of many targets:
//! `cargo run --release -p weft-metadata --example placement -- [TARGETS]`.

#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use weft_metadata::placement::{Candidate, change};
use weft_proto::{Profile, map, v1};

const RACKS: u32 = 10;
const NODES: u32 = 4;

fn main() {
    let all: Vec<u32> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let all = if all.is_empty() { vec![1000, 10_000] } else { all };
    all.into_iter().for_each(measure);
}

fn measure(targets: u32) {
    let profile = Profile::ec(8, 2).expect("a profile");
    let domain = |i: u32| {
        let node = i * RACKS * NODES / targets;
        format!("rack-{}/node-{node}", node / NODES)
    };
    let drive = |target, domain| Candidate { target, domain, weight: 1 << 43 };
    let mut known: Vec<_> = (0..targets).map(|i| drive(i + 1, domain(i))).collect();
    println!("{targets} targets in {} nodes in {RACKS} racks, 8+2", RACKS * NODES);
    let mut groups = step(&known, &Vec::new(), profile, "the first groups");
    uneven(&groups, &known);
    // A drive is lost, and replaced.
    let lost = known.remove(0);
    groups = step(&known, &groups, profile, "a drive is lost");
    known.push(drive(targets + 1, lost.domain));
    groups = step(&known, &groups, profile, "a drive is added");
    // A node is lost; two are added.
    let gone = known[0].domain.clone();
    let of_node: Vec<_> = known.iter().filter(|c| c.domain == gone).cloned().collect();
    known.retain(|c| c.domain != gone);
    groups = step(&known, &groups, profile, "a node is lost");
    uneven(&groups, &known);
    for (n, rack) in ["rack-0", "rack-5"].into_iter().enumerate() {
        let more = (0..of_node.len() as u32).map(|i| {
            drive(targets + 2 + (n * of_node.len()) as u32 + i, format!("{rack}/new-{n}"))
        });
        known.extend(more);
    }
    groups = step(&known, &groups, profile, "two nodes are added");
    uneven(&groups, &known);
}

/// What comes after these groups; says what it took.
fn step(known: &[Candidate], old: &[Vec<u32>], profile: Profile, what: &str) -> Vec<Vec<u32>> {
    let begun = Instant::now();
    let Some(planned) = change(old, known, profile, 1) else {
        println!("  {what}: nothing changes");
        return old.to_vec();
    };
    let took = begun.elapsed();
    let stay = || old.iter().zip(&planned.stays).filter(|(_, stays)| **stays).map(|(g, _)| g);
    let groups: Vec<Vec<u32>> = stay().chain(&planned.made).cloned().collect();
    let seats = |groups: &[Vec<u32>]| {
        let mut seats: BTreeMap<u32, usize> = BTreeMap::new();
        groups.iter().flatten().for_each(|target| *seats.entry(*target).or_default() += 1);
        seats
    };
    let (before, after) = (seats(old), seats(&groups));
    let has = |of: &BTreeMap<u32, usize>, target: &u32| of.get(target).copied().unwrap_or(0);
    // What targets that have more than before were given, at least.
    let least: usize = after.keys().map(|t| has(&after, t).saturating_sub(has(&before, t))).sum();
    let gone = old.iter().zip(&planned.stays).filter(|(_, stays)| !**stays).map(|(g, _)| g);
    let differ = |(a, b): (&Vec<u32>, &Vec<u32>)| a.iter().zip(b).filter(|(a, b)| a != b).count();
    let moved: usize = gone.zip(&planned.made).map(differ).sum();
    let (least_seats, most_seats) = (after.values().min(), after.values().max());
    println!(
        "  {what}: {took:.1?}; {} groups, {} of them new; {moved} seats moved, {least} at least; \
         {} to {} seats a target; map {}",
        groups.len(),
        planned.made.len(),
        least_seats.unwrap_or(&0),
        most_seats.unwrap_or(&0),
        told(known, old, &groups, planned.made.len()),
    );
    groups
}

/// How large the map is, and what is told of the change.
fn told(known: &[Candidate], old: &[Vec<u32>], new: &[Vec<u32>], made: usize) -> String {
    let map_of = |epoch, groups: &[Vec<u32>], first: u32| {
        let targets = known.iter().map(|c| v1::TargetInfo {
            id: c.target,
            uuid: vec![1; 16].into(),
            daemon: c.domain.clone(),
            address: "10.0.0.1:7200".into(),
            domain: c.domain.clone(),
            capacity_bytes: c.weight,
            path: "/dev/disk/by-id/nvme-a".into(),
            ..Default::default()
        });
        let pgs = (first..).zip(groups).map(|(id, targets)| v1::PgInfo {
            id,
            targets: targets.clone(),
            ..Default::default()
        });
        v1::ClusterMap {
            epoch,
            targets: targets.collect(),
            pools: vec![v1::PoolInfo { id: 1, pgs: pgs.collect(), ..Default::default() }],
            ..Default::default()
        }
    };
    let whole = map_of(2, new, 1_000_000);
    // Those that stay are told no more.
    let kept = map_of(1, &new[..new.len() - made], 1_000_000);
    let change = map::changes(&kept, &whole).map_or(0, |change| change.encoded_len());
    let retired = old.len().saturating_sub(new.len() - made);
    format!(
        "of {} KiB, {} KiB are told, and that {retired} are retired",
        whole.encoded_len() >> 10,
        change >> 10
    )
}

/// How uneven the loss of a node is for the others, whichever it is: each group that lost seats
/// reads eight of those that are left.
fn uneven(groups: &[Vec<u32>], known: &[Candidate]) {
    let nodes: BTreeSet<&str> = known.iter().map(|c| c.domain.as_str()).collect();
    let each = nodes.into_iter().map(|node| {
        let lost = known.iter().filter(|c| c.domain == node).map(|c| c.target).collect();
        work_without(groups, &lost)
    });
    let (readers, most): (Vec<usize>, Vec<f64>) = each.unzip();
    let worst = most.iter().copied().fold(0.0, f64::max);
    let mean = most.iter().sum::<f64>() / most.len() as f64;
    println!(
        "  any one node is lost: {} to {} of {} targets read, the busiest {worst:.3} times the \
         mean in the worst case, {mean:.3} on average",
        readers.iter().min().unwrap_or(&0),
        readers.iter().max().unwrap_or(&0),
        known.len(),
    );
}

/// How many read when these targets are lost, and how many times the mean the busiest does, each by
/// its share of all seats.
fn work_without(groups: &[Vec<u32>], lost: &BTreeSet<u32>) -> (usize, f64) {
    let (mut work, mut seats) = (BTreeMap::<u32, f64>::new(), BTreeMap::<u32, f64>::new());
    for group in groups {
        let left = group.iter().filter(|t| !lost.contains(t));
        let gone = group.len() - left.clone().count();
        let each = (gone * 8) as f64 / (group.len() - gone) as f64;
        for target in left {
            *work.entry(*target).or_default() += each;
            *seats.entry(*target).or_default() += 1.0;
        }
    }
    work.retain(|_, work| *work > 0.0);
    seats.retain(|target, _| work.contains_key(target));
    let mean = work.values().sum::<f64>() / seats.values().sum::<f64>();
    let most = work.iter().map(|(target, work)| work / seats[target] / mean).fold(0.0, f64::max);
    (work.len(), most)
}
