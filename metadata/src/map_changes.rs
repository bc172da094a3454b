//! The last changes of the cluster map, for watchers that have one of the last maps: a target that
//! goes down is told in some hundred bytes, not in the whole map.
//!
//! Invariants: the changes follow each other without a gap, up to the newest map; together they
//! take no more bytes than that.

use prost::Message;
use std::collections::VecDeque;
use weft_proto::map;
use weft_proto::v1::ClusterMap;

/// Most changes that are kept: as many are put together for one watcher.
const MAX_CHANGES: usize = 256;

#[derive(Default)]
pub struct MapChanges {
    /// With their encoded lengths.
    steps: VecDeque<(ClusterMap, usize)>,
    bytes: usize,
}

impl MapChanges {
    /// The newest map was `old`, and is `new`.
    pub fn note(&mut self, old: &ClusterMap, new: &ClusterMap) {
        match map::changes(old, new) {
            Some(step) => {
                let bytes = step.encoded_len();
                self.bytes += bytes;
                self.steps.push_back((step, bytes));
            }
            None => *self = Self::default(),
        }
        let most = new.encoded_len();
        while self.steps.len() > MAX_CHANGES || self.bytes > most {
            let Some((_, bytes)) = self.steps.pop_front() else { break };
            self.bytes -= bytes;
        }
    }

    /// What has changed since the map of this epoch, all in one; `None` if that is not known.
    pub fn since(&self, epoch: u64) -> Option<ClusterMap> {
        let first = self.steps.binary_search_by_key(&epoch, |(step, _)| step.since).ok()?;
        let mut steps = self.steps.range(first..).map(|(step, _)| step.clone());
        let mut all = steps.next()?;
        for step in steps {
            map::apply(&mut all, step).ok()?;
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_proto::v1::{PgInfo, PoolInfo, TargetInfo};

    fn first() -> ClusterMap {
        let target = |id| TargetInfo { id, daemon: "d".repeat(40), ..Default::default() };
        let targets = (1..=20).map(target).collect();
        let pools = vec![PoolInfo { id: 1, ..Default::default() }];
        ClusterMap { epoch: 1, targets, pools, next_pg: 1, ..Default::default() }
    }

    fn changed(map: &ClusterMap, what: u8) -> ClusterMap {
        let mut map = map.clone();
        map.epoch += 1;
        let (pgs, id) = (&mut map.pools[0].pgs, map.next_pg);
        match what % 4 {
            0 => {
                pgs.iter_mut().for_each(|pg| pg.retired = true);
                pgs.extend([id, id + 1].map(|id| PgInfo { id, ..Default::default() }));
                map.next_pg += 2;
            }
            1 => drop(pgs.pop()),
            _ => {
                let target = &mut map.targets[usize::from(what) % 20];
                target.full = !target.full;
            }
        }
        map
    }

    proptest! {
        /// Whoever has some map, told what has changed or all of it, has the newest then.
        #[test]
        fn whoever_is_told_has_the_newest_map(whats in prop::collection::vec(any::<u8>(), 1..400)) {
            let (mut maps, mut changes) = (vec![first()], MapChanges::default());
            for &what in &whats {
                let before = maps.last().unwrap();
                let next = changed(before, what);
                changes.note(before, &next);
                let bytes: usize = changes.steps.iter().map(|(step, _)| step.encoded_len()).sum();
                prop_assert_eq!(bytes, changes.bytes);
                prop_assert!(bytes <= next.encoded_len() && changes.steps.len() <= MAX_CHANGES);
                prop_assert!(what % 4 < 2 || changes.since(before.epoch).is_some());
                maps.push(next);
            }
            let newest = maps.pop().unwrap();
            for mut map in maps {
                if let Some(told) = changes.since(map.epoch) {
                    map::apply(&mut map, told).unwrap();
                    prop_assert_eq!(&map, &newest);
                }
            }
            prop_assert!(changes.since(newest.epoch).is_none() && changes.since(0).is_none());
        }
    }

    #[test]
    fn what_cannot_be_told_ends_what_can() {
        let (mut changes, old) = (MapChanges::default(), first());
        let flipped = changed(&old, 2);
        changes.note(&old, &flipped);
        let mut less = changed(&flipped, 2);
        less.targets.pop();
        changes.note(&flipped, &less);
        let newest = changed(&less, 2);
        changes.note(&less, &newest);
        assert!(changes.since(old.epoch).is_none() && changes.since(flipped.epoch).is_none());
        let told = changes.since(less.epoch).unwrap();
        map::apply(&mut less, told).unwrap();
        assert_eq!(less, newest);
    }
}
