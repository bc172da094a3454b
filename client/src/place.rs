//! Where a new segment goes.

use crate::chance::Chance;
use crate::health::Health;
use crate::map::{Map, Target};
use weft_proto::{Geometry, Layout, PgId};

/// A choice: geometry, placement group, and the seat and target of every shard.
pub(crate) struct Place {
    pub geometry: Geometry,
    pub pg: PgId,
    pub seats: Vec<u8>,
    pub targets: Vec<Target>,
}

/// Why there is no place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoPlace {
    /// Enough targets live, but too few of them have room.
    Full,
    /// Fewer than m+1 targets live: waiting for the map may help (I1).
    TooFew,
}

/// Picks among the placement groups with the most usable seats (no more than are needed count), at
/// random among equals; and starts at a random seat, so that data and parity go round.
pub(crate) fn choose(
    map: &Map,
    health: &Health,
    layout: &Layout,
    length: u64,
    chance: &Chance,
) -> Result<Place, NoPlace> {
    let with_room = |t: &Target| !t.full && !health.is_full(t.id);
    let trusted = |t: &Target| t.up && with_room(t) && !health.is_suspect(t.id);
    let usable = |t: &Target| t.up && with_room(t);
    pick(map, layout, length, chance, trusted)
        .or_else(|| pick(map, layout, length, chance, usable))
        .ok_or_else(|| match pick(map, layout, length, chance, |t| t.up) {
            Some(_) => NoPlace::Full,
            None => NoPlace::TooFew,
        })
}

fn pick(
    map: &Map,
    layout: &Layout,
    length: u64,
    chance: &Chance,
    usable: impl Fn(&Target) -> bool,
) -> Option<Place> {
    let wanted = layout.profile.fit(length, layout.unit, usize::MAX)?.width().into();
    let live = |pg: &crate::map::Pg| -> Vec<u8> {
        let seats = (0..=u8::MAX).zip(&pg.seats);
        seats.filter(|(_, t)| map.target(**t).is_some_and(&usable)).map(|(seat, _)| seat).collect()
    };
    let mut best: Vec<(PgId, Vec<u8>)> = Vec::new();
    let mut most = usize::from(layout.profile.m()) + 1;
    for pg in map.open_pgs() {
        let seats = live(pg);
        let counts = seats.len().min(wanted);
        if counts > most {
            best.clear();
            most = counts;
        }
        if counts == most {
            best.push((pg.id, seats));
        }
    }
    if best.is_empty() {
        return None;
    }
    let (pg, mut seats) = best.swap_remove(chance.below(best.len()));
    let profile = layout.profile.fit(length, layout.unit, seats.len())?;
    let start = chance.below(seats.len());
    seats.rotate_left(start);
    seats.truncate(profile.width().into());
    let targets = seats.iter().map(|&seat| map.seat(pg, seat).cloned()).collect::<Option<_>>()?;
    Some(Place { geometry: Geometry { profile, unit: layout.unit, length }, pg, seats, targets })
}

#[cfg(test)]
mod tests {
    use super::*;
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
                    .map(|(id, t)| v1::PgInfo { id, targets: t.to_vec(), retired: false })
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
        let (health, chance) = (Health::default(), Chance::new(Some(1)));
        let map = map(&[&[1, 2, 3, 4, 5, 6], &[1, 2, 3, 4, 7, 8]], &[6], &[]);
        let mut shards: HashMap<(TargetId, usize), u32> = HashMap::new();
        for _ in 0..600 {
            let place = choose(&map, &health, &layout(), 16 << 20, &chance).unwrap();
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
        let (health, chance) = (Health::default(), Chance::new(Some(1)));
        let pgs: &[&[u32]] = &[&[1, 2, 3, 4, 5, 6]];
        let place = choose(&map(pgs, &[1, 2], &[]), &health, &layout(), 16 << 20, &chance).unwrap();
        assert_eq!(place.geometry.profile, Profile::ec(2, 2).unwrap());
        let choice = |down: &[u32], full: &[u32], health| {
            choose(&map(pgs, down, full), health, &layout(), 16 << 20, &chance)
                .map(|p| p.targets.len())
        };
        assert_eq!(choice(&[1, 2, 3, 4], &[], &health), Err(NoPlace::TooFew));
        assert_eq!(choice(&[1, 2, 3], &[], &health), Ok(3));
        assert_eq!(choice(&[1], &[2, 3, 4], &health), Err(NoPlace::Full));
        health.failed(TargetId(6));
        assert_eq!(choice(&[1, 2], &[], &health), Ok(3), "the suspect is left out");
        assert_eq!(choice(&[1, 2, 3], &[], &health), Ok(3), "unless it is needed");
        let small = choose(&map(pgs, &[], &[]), &health, &layout(), 5000, &chance).unwrap();
        assert_eq!(small.geometry.profile, Profile::replica(3).unwrap());
    }
}
