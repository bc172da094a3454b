//! Where a new segment goes.

use crate::health::Health;
use crate::map::{Map, Target};
use crate::rng::Rng;
use weft_proto::{Geometry, Layout, PgId};

/// Placement groups that are looked at before all are.
const SAMPLE: usize = 16;

/// A choice: geometry, placement group, and the seat and target of every shard.
pub struct Place {
    pub geometry: Geometry,
    pub pg: PgId,
    pub seats: Vec<u8>,
    pub targets: Vec<Target>,
}

/// Why there is no place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoPlace {
    /// Enough targets live, but too few of them have room.
    Full,
    /// Fewer than m+1 targets live: waiting for the map may help (I1).
    TooFew,
}

/// Picks among the placement groups with the most usable seats (no more than are needed count), at
/// random among equals; and starts at a random seat, so that data and parity go round. A seat is
/// usable if its target has room for a chunk as long as they are then.
pub fn choose(
    map: &Map,
    health: &Health,
    layout: &Layout,
    length: u64,
    rng: &Rng,
) -> Result<Place, NoPlace> {
    let usable = |t: &Target, chunk| t.up && !t.full && health.has_room(t.id, chunk);
    let trusted = |t: &Target, chunk| usable(t, chunk) && !health.is_suspect(t.id);
    pick(map, layout, length, rng, trusted)
        .or_else(|| pick(map, layout, length, rng, usable))
        .ok_or_else(|| match pick(map, layout, length, rng, |t, _| t.up) {
            Some(_) => NoPlace::Full,
            None => NoPlace::TooFew,
        })
}

fn pick(
    map: &Map,
    layout: &Layout,
    length: u64,
    rng: &Rng,
    usable: impl Fn(&Target, u64) -> bool,
) -> Option<Place> {
    let fit = |width| {
        let profile = layout.profile.fit(length, layout.unit, width)?;
        Some(Geometry { profile, unit: layout.unit, length })
    };
    let wanted = fit(usize::MAX)?.profile.width().into();
    let mut most = usize::from(layout.profile.m()) + 1;
    // The fewer they are, the longer are chunks. None is longer than those of parity.
    let chunk = |width| fit(width).map_or(0, |g| g.shard_len(g.profile.k()));
    let chunks: Vec<u64> = (0..=wanted).map(chunk).collect();
    let live = |pg: &crate::map::Pg, chunk| -> Vec<u8> {
        let seats = (0..=u8::MAX).zip(&pg.seats);
        let usable = |target: &&_| map.target(**target).is_some_and(|t| usable(t, chunk));
        seats.filter(|(_, target)| usable(target)).map(|(seat, _)| seat).collect()
    };
    // Mostly all seats of about all groups are usable: then the first few are as good as all.
    let wide = |pg: &crate::map::Pg| (pg.id, live(pg, chunks[wanted]));
    let sample = (0..SAMPLE.min(map.open_count()))
        .filter_map(|_| map.open_pg(rng.below(map.open_count())))
        .map(wide)
        .find(|(_, seats)| seats.len() >= wanted);
    if let Some((pg, seats)) = sample {
        return placed(map, pg, seats, fit(wanted)?, rng);
    }
    let mut best: Vec<(PgId, Vec<u8>)> = Vec::new();
    for pg in map.open_pgs() {
        for width in (most..=wanted).rev() {
            let seats = live(pg, chunks[width]);
            if seats.len() < width {
                continue;
            }
            if width > most {
                best.clear();
                most = width;
            }
            best.push((pg.id, seats));
            break;
        }
    }
    if best.is_empty() {
        return None;
    }
    let (pg, seats) = best.swap_remove(rng.below(best.len()));
    placed(map, pg, seats, fit(most)?, rng)
}

/// The segment on some of these seats of a group, from a random one on.
fn placed(map: &Map, pg: PgId, mut seats: Vec<u8>, geometry: Geometry, rng: &Rng) -> Option<Place> {
    let start = rng.below(seats.len());
    seats.rotate_left(start);
    seats.truncate(geometry.profile.width().into());
    let targets = seats.iter().map(|&seat| map.seat(pg, seat).cloned()).collect::<Option<_>>()?;
    Some(Place { geometry, pg, seats, targets })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Use;
    use std::collections::HashMap;
    use weft_proto::{Profile, TargetId, v1};

    fn map(pgs: &[&[u32]], down: &[u32], full: &[u32]) -> Map {
        let state =
            |id| if down.contains(&id) { v1::TargetState::Down } else { v1::TargetState::Up };
        Map::new(v1::ClusterMap {
            epoch: 1,
            targets: (1..=8)
                .map(|id| v1::TargetInfo {
                    id,
                    address: format!("t{id}"),
                    state: state(id).into(),
                    full: full.contains(&id),
                    ..Default::default()
                })
                .collect(),
            pools: vec![v1::PoolInfo {
                id: 1,
                pgs: (1..)
                    .zip(pgs)
                    .map(|(id, t)| v1::PgInfo {
                        id,
                        targets: t.to_vec(),
                        retired: false,
                        ..Default::default()
                    })
                    .collect(),
                ..Default::default()
            }],
            ..Default::default()
        })
    }

    fn layout() -> Layout {
        Layout::for_profile(Profile::ec(4, 2).unwrap())
    }

    #[test]
    fn healthy_groups_win_and_load_is_even() {
        let (health, rng) = (Health::default(), Rng::new(Some(1)));
        let map = map(&[&[1, 2, 3, 4, 5, 6], &[1, 2, 3, 4, 7, 8]], &[6], &[]);
        let mut shards: HashMap<(TargetId, usize), u32> = HashMap::new();
        for _ in 0..600 {
            let place = choose(&map, &health, &layout(), 16 << 20, &rng).unwrap();
            assert_eq!(place.pg, PgId(2));
            assert_eq!(place.geometry.profile, Profile::ec(4, 2).unwrap());
            for (shard, target) in place.targets.iter().enumerate() {
                *shards.entry((target.id, shard)).or_default() += 1;
            }
        }
        assert_eq!(shards.len(), 36);
        assert!(shards.values().all(|&n| (60..150).contains(&n)), "{shards:?}");
    }

    #[tokio::test]
    async fn k_shrinks_and_m_stays() {
        let (health, rng) = (Health::default(), Rng::new(Some(1)));
        let pgs: &[&[u32]] = &[&[1, 2, 3, 4, 5, 6]];
        let place = choose(&map(pgs, &[1, 2], &[]), &health, &layout(), 16 << 20, &rng).unwrap();
        assert_eq!(place.geometry.profile, Profile::ec(2, 2).unwrap());
        let choice = |down: &[u32], full: &[u32], health| {
            choose(&map(pgs, down, full), health, &layout(), 16 << 20, &rng)
                .map(|p| p.targets.len())
        };
        assert_eq!(choice(&[1, 2, 3, 4], &[], &health), Err(NoPlace::TooFew));
        assert_eq!(choice(&[1, 2, 3], &[], &health), Ok(3));
        assert_eq!(choice(&[1], &[2, 3, 4], &health), Err(NoPlace::Full));
        health.failed(TargetId(6), Use::Put);
        assert_eq!(choice(&[1, 2], &[], &health), Ok(3), "the suspect is left out");
        assert_eq!(choice(&[1, 2, 3], &[], &health), Ok(3), "unless it is needed");
        let small = choose(&map(pgs, &[], &[]), &health, &layout(), 5000, &rng).unwrap();
        assert_eq!(small.geometry.profile, Profile::replica(3).unwrap());
    }

    /// Other groups first, then fewer and longer chunks where these fit, and then none.
    #[tokio::test]
    async fn targets_without_room_for_so_long_a_chunk_are_passed_over() {
        let (health, rng) = (Health::default(), Rng::new(Some(1)));
        let pgs: &[&[u32]] = &[&[1, 2, 3, 4, 5, 6], &[3, 4, 5, 6, 7, 8]];
        let map = map(pgs, &[], &[]);
        let choice = |length| {
            choose(&map, &health, &layout(), length, &rng).map(|p| (p.pg, p.geometry.profile))
        };
        let ec = |k| Profile::ec(k, 2).unwrap();
        const MIB: u64 = 1 << 20;
        health.filled(TargetId(1), MIB);
        for _ in 0..20 {
            assert_eq!(choice(16 * MIB), Ok((PgId(2), ec(4))));
        }
        health.filled(TargetId(7), MIB);
        assert_eq!(choice(16 * MIB).map(|c| c.1), Ok(ec(3)));
        assert_eq!(choice(4 * MIB).map(|c| c.1), Ok(ec(4)), "its chunks are of 1 MiB");
        // Room for chunks of four, not for those of three.
        (2..=8).for_each(|id| health.filled(TargetId(id), 4 * MIB));
        assert_eq!(choice(16 * MIB), Err(NoPlace::Full));
        assert_eq!(choice(12 * MIB).map(|c| c.1), Ok(ec(3)));
    }
}
