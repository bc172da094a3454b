//! Makes placement groups of the targets that there are.

use super::propose::propose;
use crate::node::Node;
use crate::placement::{Seat, generate};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use v1::log_entry::Body;
use weft_proto::{Profile, v1};

/// How often the targets are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

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
        let seats = usable(&map);
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
        let Some(profile) = pool.profile.and_then(|p| Profile::try_from(p).ok()) else { continue };
        let seed = map.epoch;
        let made = node.env.blocking(move || Ok(generate(&seats, profile, seed))).await;
        let Ok(groups) = made else { continue };
        tracing::info!(pool = pool.id, groups = groups.len(), "making placement groups");
        let of_old = retired.iter().filter(|(_, since)| since.elapsed() >= late);
        let mut dropped: Vec<u32> = of_old.map(|(id, _)| *id).collect();
        dropped.sort_unstable();
        let entry = replace(&map, pool, groups, dropped);
        // If the map has changed meanwhile, the next look starts over.
        let _ = propose(node, "make placement groups", Body::SetPgs(entry)).await;
    }
}

fn note_retired(known: &mut HashMap<u32, Instant>, pool: &v1::PoolInfo) {
    let retired: HashSet<u32> = pool.pgs.iter().filter(|pg| pg.retired).map(|pg| pg.id).collect();
    known.retain(|id, _| retired.contains(id));
    for id in retired {
        known.entry(id).or_insert_with(Instant::now);
    }
}

/// The targets that new groups are made of: all that are not given up, and are to stay.
fn usable(map: &v1::ClusterMap) -> Vec<Seat> {
    map.targets
        .iter()
        .filter(|t| t.state() != v1::TargetState::Out && !t.draining)
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
