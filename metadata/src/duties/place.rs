//! Makes placement groups of the targets that there are.

use crate::node::{Effect, Node};
use crate::placement::{Seat, generate};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use v1::log_entry::Body;
use weft_proto::{ErrorKind, Profile, v1};

/// How often the targets are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How often groups that were made are proposed while the map changes.
const MAX_TRIES: usize = 50;

/// Makes new groups whenever the set of targets of a pool has changed and then stayed the same for
/// a while. The old groups are retired: their segments stay where they are. Those without any are
/// dropped at a later change, when what was on its way to them has long been committed.
pub async fn place(node: &Arc<Node>) {
    let settle = Duration::from_millis(node.config.placement_settle_ms);
    let late = Duration::from_millis(node.config.placement_keep_ms);
    let mut seen: Option<(Vec<Seat>, Instant)> = None;
    // Since when this leader knows of it.
    let mut retired: HashMap<u32, Instant> = HashMap::new();
    loop {
        sleep(LOOK_INTERVAL.min(settle)).await;
        let map = node.map();
        let Some(pool) = map.pools.first() else { continue };
        note_retired(&mut retired, pool);
        let profile = pool.profile.and_then(|p| Profile::try_from(p).ok());
        let seats = usable(&map, profile);
        if placed(pool) == seats.iter().map(|s| s.target).collect() {
            seen = None;
            continue;
        }
        match &seen {
            Some((same, since)) if *same == seats => {
                if since.elapsed() < settle {
                    continue;
                }
            }
            _ => {
                seen = Some((seats, Instant::now()));
                continue;
            }
        }
        seen = None;
        let Some(profile) = profile else { continue };
        let (seed, of) = (map.epoch, seats.clone());
        let made = node.env.blocking(move || Ok(generate(&of, profile, seed))).await;
        let Ok(groups) = made else { continue };
        tracing::info!(pool = pool.id, groups = groups.len(), "making placement groups");
        let of_old = retired.iter().filter(|(_, since)| since.elapsed() >= late);
        let mut dropped: Vec<u32> = of_old.map(|(id, _)| *id).collect();
        dropped.sort_unstable();
        set(node, &seats, profile, groups, dropped).await;
    }
}

/// Sets these groups, made of `seats`. Moves that begin and end change the map all the time: as
/// long as the targets are the same, the groups are as good.
async fn set(
    node: &Node,
    seats: &[Seat],
    profile: Profile,
    groups: Vec<Vec<u32>>,
    dropped: Vec<u32>,
) {
    for _ in 0..MAX_TRIES {
        let map = node.map();
        let Some(pool) = map.pools.first() else { return };
        if usable(&map, Some(profile)) != seats {
            return; // The next look starts over.
        }
        let entry = replace(&map, pool, groups.clone(), dropped.clone());
        match node.propose(Body::SetPgs(entry), Effect::Nothing).await {
            Err(e) if e.kind == ErrorKind::StaleMap => {}
            Err(e) => return tracing::warn!("could not make placement groups: {e}"),
            Ok(_) => return,
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
fn usable(map: &v1::ClusterMap, profile: Option<Profile>) -> Vec<Seat> {
    let least = profile.map_or(1, |profile| usize::from(profile.m()) + 1);
    let serves = |t: &&v1::TargetInfo| t.state() == v1::TargetState::Up && !t.draining;
    let enough = map.targets.iter().filter(serves).count() >= least;
    map.targets
        .iter()
        .filter(|t| t.state() != v1::TargetState::Out && !(t.draining && enough))
        .map(|t| Seat { target: t.id, domain: t.domain.clone() })
        .collect()
}

/// The targets that the pool's groups are made of.
fn placed(pool: &v1::PoolInfo) -> BTreeSet<u32> {
    pool.pgs.iter().filter(|pg| !pg.retired).flat_map(|pg| pg.targets.iter().copied()).collect()
}

/// The entry that sets these groups; those that are not in it are retired by it, and those of
/// `dropped` go that are of no use.
fn replace(
    map: &v1::ClusterMap,
    pool: &v1::PoolInfo,
    groups: Vec<Vec<u32>>,
    dropped: Vec<u32>,
) -> v1::SetPgsEntry {
    let fresh = (map.next_pg..).zip(groups).map(|(id, targets)| v1::PgInfo {
        id,
        targets,
        retired: false,
        ..Default::default()
    });
    let based_on_epoch = map.epoch;
    v1::SetPgsEntry { pool: pool.id, pgs: fresh.collect(), based_on_epoch, dropped }
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
        let profile = Profile::ec(2, 2).ok();
        let of = |map: &v1::ClusterMap| {
            usable(map, profile).iter().map(|seat| seat.target).collect::<Vec<_>>()
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
