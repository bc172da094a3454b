//! Makes placement groups of the targets that there are.

use crate::node::{Effect, Known, Node};
use crate::placement::{Candidate, Change, change};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use v1::log_entry::Body;
use weft_proto::{Error, ErrorKind, Profile, Result, v1};

/// How often the targets are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How often groups that were made are proposed while the map changes.
const MAX_TRIES: usize = 50;
/// Most seats of groups that are made, and most groups that are dropped, in one entry of the log.
const MAX_SEATS: usize = 100_000;
const MAX_DROPPED: usize = 50_000;
/// Retired groups without segments that are kept for each that takes new ones, at most.
const KEPT: usize = 8;

/// What groups are made of: they are changed when it is not what it was.
#[derive(PartialEq, Clone)]
struct Basis {
    candidates: Vec<Candidate>,
    /// The groups that take new segments.
    open: Vec<v1::PgInfo>,
    profile: Profile,
}

/// Changes the groups whenever the targets of a pool have changed and then stayed the same for a
/// while, as little as has to be. Groups that are replaced are retired: their segments stay where
/// they are. Those without any are dropped at a later change, when what was on its way to them has
/// long been committed, or when there are too many.
pub async fn place(node: &Arc<Node>) {
    let settle = Duration::from_millis(node.config.placement_settle_ms);
    let late = Duration::from_millis(node.config.placement_keep_ms);
    let mut seen: Option<(Basis, Instant)> = None;
    // What was found good.
    let mut good: Option<Basis> = None;
    // Since when this leader knows of it.
    let mut retired: HashMap<u32, Instant> = HashMap::new();
    let mut looked_at = 0;
    loop {
        sleep(LOOK_INTERVAL.min(settle)).await;
        let map = node.map();
        let Some(pool) = map.pools.first() else { continue };
        note_retired(&mut retired, pool);
        if map.epoch == looked_at && seen.is_none() {
            continue;
        }
        looked_at = map.epoch;
        let Some(basis) = Basis::of(&map, pool) else { continue };
        if good.as_ref() == Some(&basis) {
            seen = None;
            continue;
        }
        match &seen {
            Some((same, since)) if *same == basis => {
                if since.elapsed() < settle {
                    continue;
                }
            }
            _ => {
                seen = Some((basis, Instant::now()));
                continue;
            }
        }
        let (of, seed) = (basis.clone(), map.epoch);
        let planned = node.env.blocking(move || Ok(of.change(seed))).await;
        seen = None;
        let Ok(planned) = planned else { continue };
        let Some(planned) = planned else {
            good = Some(basis);
            continue;
        };
        // If it cannot be set, the next look starts over.
        looked_at = 0;
        let known = retired.iter().map(|(id, since)| (*id, since.elapsed() >= late));
        let known = known.collect();
        if let Err(e) = set(node, basis, planned, known).await {
            tracing::warn!("could not make placement groups: {e}");
        }
    }
}

impl Basis {
    fn of(map: &v1::ClusterMap, pool: &v1::PoolInfo) -> Option<Self> {
        let profile = Profile::try_from(pool.profile?).ok()?;
        let open = pool.pgs.iter().filter(|pg| !pg.retired).cloned().collect();
        Some(Self { candidates: usable(map, profile), open, profile })
    }

    fn change(&self, seed: u64) -> Option<Change> {
        let groups: Vec<_> = self.open.iter().map(|pg| pg.targets.clone()).collect();
        change(&groups, &self.candidates, self.profile, seed)
    }
}

/// Sets the groups that were planned, some at a time: each entry makes some and retires those in
/// whose place they come, so that each leaves groups that are of use. Groups of `known` that no
/// segment names go with the first, if it says that it was long ago, or they are too many.
///
/// Moves that begin and end change the map all the time: as long as the targets are the same, the
/// groups are as good.
async fn set(
    node: &Node,
    mut basis: Basis,
    planned: Change,
    mut known: Vec<(u32, bool)>,
) -> Result<()> {
    let gone = basis.open.iter().zip(&planned.stays).filter(|(_, stays)| !**stays);
    let mut gone: VecDeque<u32> = gone.map(|(pg, _)| pg.id).collect();
    let all_know = node.all_know(Known::Weights);
    let (retired, kept) = (gone.len(), basis.open.len() - gone.len());
    let state = node.state.clone();
    let in_use = node.env.blocking(move || state.groups_in_use()).await?;
    known.retain(|(id, _)| !in_use.contains(id));
    let mut dropped = to_drop(known, basis.open.len());
    // What an older version does not know is said in its way: all at once.
    let at_once =
        if all_know { MAX_SEATS / basis.profile.width().max(1) as usize } else { usize::MAX };
    let mut made = planned.made.into_iter().peekable();
    let mut count = 0;
    while made.peek().is_some() || !gone.is_empty() {
        let some: Vec<_> = made.by_ref().take(at_once.max(1)).collect();
        let last = made.peek().is_none();
        let retired = if last { gone.len() } else { some.len().min(gone.len()) };
        let retired: Vec<u32> = gone.drain(..retired).collect();
        count += some.len();
        basis = propose(node, basis, some, retired, std::mem::take(&mut dropped), all_know).await?;
    }
    tracing::info!(made = count, kept, retired, "made placement groups");
    Ok(())
}

/// Which of the retired groups without segments go, of which it is known whether they were retired
/// long ago. A leader knows that only since it leads: where leaders change all the time, no group
/// would ever be old, so that the oldest of too many go as well. What is on its way to one of those
/// is written once more, to another.
fn to_drop(mut idle: Vec<(u32, bool)>, open: usize) -> Vec<u32> {
    // Numbers are given in order.
    idle.sort_unstable();
    let too_many = idle.len().saturating_sub(KEPT * open);
    let gone = idle.into_iter().enumerate().filter(|(n, (_, is_old))| *n < too_many || *is_old);
    gone.map(|(_, (id, _))| id).take(MAX_DROPPED).collect()
}

/// Makes some groups and retires others. Answers what there is then.
async fn propose(
    node: &Node,
    basis: Basis,
    made: Vec<Vec<u32>>,
    retired: Vec<u32>,
    dropped: Vec<u32>,
    others_stay: bool,
) -> Result<Basis> {
    for _ in 0..MAX_TRIES {
        let map = node.map();
        let pool = map.pools.first().filter(|pool| Basis::of(&map, pool).as_ref() == Some(&basis));
        let Some(pool) = pool else { break };
        let fresh = (map.next_pg..).zip(&made).map(|(id, targets)| v1::PgInfo {
            id,
            targets: targets.clone(),
            ..Default::default()
        });
        let gone: HashSet<u32> = retired.iter().copied().collect();
        let stay = basis.open.iter().filter(|pg| !others_stay && !gone.contains(&pg.id));
        let entry = v1::SetPgsEntry {
            pool: pool.id,
            pgs: stay.cloned().chain(fresh).collect(),
            based_on_epoch: map.epoch,
            dropped: dropped.clone(),
            others_stay,
            retired: retired.clone(),
        };
        match node.propose(Body::SetPgs(entry), Effect::Nothing).await {
            Err(e) if e.kind == ErrorKind::StaleMap => {}
            Err(e) => return Err(e),
            Ok(_) => {
                let map = node.map();
                let now = map.pools.first().and_then(|pool| Basis::of(&map, pool));
                return now.filter(|now| now.candidates == basis.candidates).ok_or_else(changed);
            }
        }
    }
    Err(changed())
}

fn changed() -> Error {
    Error::new(ErrorKind::StaleMap, "the targets have changed meanwhile")
}

fn note_retired(known: &mut HashMap<u32, Instant>, pool: &v1::PoolInfo) {
    let retired: HashSet<u32> = pool.pgs.iter().filter(|pg| pg.retired).map(|pg| pg.id).collect();
    known.retain(|id, _| retired.contains(id));
    for id in retired {
        known.entry(id).or_insert_with(Instant::now);
    }
}

/// The targets that new groups are made of: all that are not given up, and are to stay; and those
/// that are being drained, too, if nothing could be written without them.
fn usable(map: &v1::ClusterMap, profile: Profile) -> Vec<Candidate> {
    let least = usize::from(profile.m()) + 1;
    let serves = |t: &&v1::TargetInfo| t.state() == v1::TargetState::Up && !t.draining;
    let enough = map.targets.iter().filter(serves).count() >= least;
    map.targets
        .iter()
        .filter(|t| t.state() != v1::TargetState::Out && !(t.draining && enough))
        .map(|t| Candidate { target: t.id, domain: t.domain.clone(), weight: t.share() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_retired_goes_when_it_is_old_or_there_is_too_much_of_it() {
        let of = |ids: std::ops::Range<u32>, is_old| ids.map(move |id| (id, is_old));
        assert_eq!(to_drop(of(10..18, false).collect(), 1), [0; 0]);
        assert_eq!(to_drop(of(10..18, false).rev().chain([(5, true)]).collect(), 2), [5]);
        // No leader has known them for long.
        let many = of(10..130, false).rev().collect();
        assert_eq!(to_drop(many, 2), (10..130 - 16).collect::<Vec<_>>());
        let some_old = of(10..20, false).chain(of(20..22, true)).collect();
        assert_eq!(to_drop(some_old, 1), [10, 11, 12, 13, 20, 21]);
        assert_eq!(to_drop(of(0..MAX_DROPPED as u32 + 9, true).collect(), 1).len(), MAX_DROPPED);
    }

    #[test]
    fn a_drain_stops_no_writes() {
        let target =
            |id| v1::TargetInfo { id, state: v1::TargetState::Up.into(), ..Default::default() };
        let mut map =
            v1::ClusterMap { targets: (1..=4).map(target).collect(), ..Default::default() };
        let profile = Profile::ec(2, 2).unwrap();
        let of = |map: &v1::ClusterMap| {
            usable(map, profile).iter().map(|c| c.target).collect::<Vec<_>>()
        };
        map.targets[0].draining = true;
        assert_eq!(of(&map), [2, 3, 4]);
        // One more than the parity is needed.
        map.targets[1].state = v1::TargetState::Down.into();
        assert_eq!(of(&map), [1, 2, 3, 4]);
        map.targets[2].state = v1::TargetState::Out.into();
        assert_eq!(of(&map), [1, 2, 4]);
    }
}
