//! Placement groups: which targets hold the shards of new segments together.
//!
//! A group is an ordered list of seats. Groups are made so that
//! - the seats of a group lie in distinct failure domains, or as far apart as the domains allow
//!   ([`domains`]);
//! - every target sits in as many groups as its weight says ([`quota`]);
//! - every two targets, and every target and every domain, share about as many groups as any other
//!   two, so that the rebuild of a lost target, node or rack reads from all the others alike.
//!
//! Who writes to a group begins at a random seat, so it matters not which seat a target has.
//!
//! [`change`] leads from the groups that there are to those that there should be, and changes as
//! little as it can: each seat that another target gets is data that will move. Membership is found
//! by greedy choice and then by swaps that even out the pairs ([`search`]). It is pure and
//! deterministic.

mod candidate;
mod domains;
mod nearness;
mod quota;
mod search;
pub mod survival;

pub use candidate::Candidate;
#[cfg(test)]
use domains::prefix;
pub use nearness::Paths;

use search::{NOBODY, Search};
use std::collections::HashMap;
use weft_proto::Profile;

/// About how many groups a target sits in when groups are made. With fewer, the loss of a node
/// would be uneven work for the others: each seat is made by one of them.
const SEATS_PER_TARGET: usize = 96;
/// With fewer seats a target, or more, all groups are made anew.
const MIN_SEATS_PER_TARGET: usize = SEATS_PER_TARGET / 2;
const MAX_SEATS_PER_TARGET: usize = SEATS_PER_TARGET * 2;

/// What leads from some groups to others.
#[derive(Debug)]
pub struct Change {
    /// Whether each of the groups that there were stays.
    pub stays: Vec<bool>,
    /// The groups that come beside those, each a list of targets in seat order.
    pub made: Vec<Vec<u32>>,
}

/// The groups over these targets that come after `groups`; `None` if those are good. `seed` picks
/// one of many equally good answers.
pub fn change(
    groups: &[Vec<u32>],
    candidates: &[Candidate],
    profile: Profile,
    seed: u64,
) -> Option<Change> {
    let targets = candidates.len();
    let width = usize::from(profile.width()).min(targets);
    if width == 0 {
        return None;
    }
    let seats = groups.len() * width;
    let of_use = (targets * MIN_SEATS_PER_TARGET..=targets * MAX_SEATS_PER_TARGET).contains(&seats)
        && groups.iter().all(|group| group.len() == width);
    let numbers: HashMap<u32, usize> = candidates.iter().map(|c| c.target).zip(0..).collect();
    let number = |target: &u32| numbers.get(target).copied().unwrap_or(NOBODY);
    let old: Vec<Vec<usize>> = match of_use {
        true => groups.iter().map(|group| group.iter().map(number).collect()).collect(),
        false => vec![vec![NOBODY; width]; targets * SEATS_PER_TARGET.div_ceil(width)],
    };
    let new = Search::new(candidates, profile, old.clone(), seed).run();
    let named = |group: &Vec<usize>| group.iter().map(|&i| candidates[i].target).collect();
    let same: Vec<bool> = old.iter().zip(&new).map(|(old, new)| old == new).collect();
    if same.iter().all(|same| *same) {
        return None;
    }
    let made = new.iter().zip(&same).filter(|(_, same)| !**same).map(|(group, _)| named(group));
    let stays = if of_use { same.clone() } else { vec![false; groups.len()] };
    Some(Change { stays, made: made.collect() })
}

#[cfg(test)]
mod tests;
