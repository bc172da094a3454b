//! Makes placement groups of the targets that there are.

use crate::node::{Effect, Node};
use crate::placement::{Candidate, Change, change};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use v1::log_entry::Body;
use weft_proto::{ErrorKind, Profile, v1};

/// How often the targets are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How often groups that were made are proposed while the map changes.
const MAX_TRIES: usize = 50;

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
/// long been committed.
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
        let Ok(planned) = node.env.blocking(move || Ok(of.change(seed))).await else { continue };
        seen = None;
        let Some(planned) = planned else {
            good = Some(basis);
            continue;
        };
        let of_old = retired.iter().filter(|(_, since)| since.elapsed() >= late);
        let mut dropped: Vec<u32> = of_old.map(|(id, _)| *id).collect();
        dropped.sort_unstable();
        set(node, &basis, planned, dropped).await;
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

/// Sets the groups that were planned. Moves that begin and end change the map all the time: as long
/// as the targets are the same, the groups are as good.
async fn set(node: &Node, basis: &Basis, planned: Change, dropped: Vec<u32>) {
    let stay = basis.open.iter().zip(&planned.stays).filter(|(_, stays)| **stays);
    let stay: Vec<_> = stay.map(|(pg, _)| pg.clone()).collect();
    for _ in 0..MAX_TRIES {
        let map = node.map();
        let Some(pool) = map.pools.first() else { return };
        if Basis::of(&map, pool).as_ref() != Some(basis) {
            return; // The next look starts over.
        }
        let (made, kept) = (planned.made.len(), stay.len());
        let fresh = (map.next_pg..).zip(&planned.made).map(|(id, targets)| v1::PgInfo {
            id,
            targets: targets.clone(),
            ..Default::default()
        });
        let entry = v1::SetPgsEntry {
            pool: pool.id,
            pgs: stay.iter().cloned().chain(fresh).collect(),
            based_on_epoch: map.epoch,
            dropped: dropped.clone(),
        };
        match node.propose(Body::SetPgs(entry), Effect::Nothing).await {
            Err(e) if e.kind == ErrorKind::StaleMap => {}
            Err(e) => return tracing::warn!("could not make placement groups: {e}"),
            Ok(_) => return tracing::info!(made, kept, "made placement groups"),
        }
    }
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
