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

    /// What has changed since the map of this epoch, all in one; `None` if that is not known, or
    /// cannot be told to who has to be told of no target that is gone.
    pub fn since(&self, epoch: u64, dropped_targets: bool) -> Option<ClusterMap> {
        let first = self.steps.binary_search_by_key(&epoch, |(step, _)| step.since).ok()?;
        let mut steps = self.steps.range(first..).map(|(step, _)| step.clone());
        let mut all = steps.next()?;
        for step in steps {
            map::apply(&mut all, step).ok()?;
        }
        Some(all).filter(|all| dropped_targets || all.dropped_targets.is_empty())
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
        let pools = [1, 2].map(|id| PoolInfo { id, ..Default::default() }).into();
        ClusterMap { epoch: 1, targets, pools, next_pg: 1, ..Default::default() }
    }

    fn changed(map: &ClusterMap, what: u8) -> ClusterMap {
        let mut map = map.clone();
        map.epoch += 1;
        let (pgs, id) = (&mut map.pools[0].pgs, map.next_pg);
        match what % 5 {
            0 => {
                pgs.iter_mut().for_each(|pg| pg.retired = true);
                pgs.extend([id, id + 1].map(|id| PgInfo { id, ..Default::default() }));
                map.next_pg += 2;
            }
            1 => drop(pgs.pop()),
            2 if map.targets.len() > 10 => {
                map.targets.remove(usize::from(what) % 10);
            }
            _ => {
                let target = &mut map.targets[usize::from(what) % 10];
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
                prop_assert!(what % 5 < 2 || changes.since(before.epoch, true).is_some());
                maps.push(next);
            }
            let newest = maps.pop().unwrap();
            for known in maps {
                for dropped_targets in [true, false] {
                    let Some(told) = changes.since(known.epoch, dropped_targets) else { continue };
                    // Who does not take them does not know them.
                    prop_assert!(dropped_targets || told.dropped_targets.is_empty());
                    let mut map = known.clone();
                    map::apply(&mut map, told).unwrap();
                    prop_assert_eq!(&map, &newest);
                }
            }
            prop_assert!([0, newest.epoch].iter().all(|at| changes.since(*at, true).is_none()));
        }
    }

    #[test]
    fn what_cannot_be_told_ends_what_can() {
        let (mut changes, old) = (MapChanges::default(), first());
        let flipped = changed(&old, 3);
        changes.note(&old, &flipped);
        let mut less = changed(&flipped, 3);
        less.pools.pop();
        changes.note(&flipped, &less);
        let newest = changed(&less, 3);
        changes.note(&less, &newest);
        let since = |map: &ClusterMap| changes.since(map.epoch, true);
        assert!(since(&old).is_none() && since(&flipped).is_none());
        let told = since(&less).unwrap();
        map::apply(&mut less, told).unwrap();
        assert_eq!(less, newest);
    }

    #[test]
    fn a_target_that_is_gone_is_told_to_who_takes_that() {
        let (mut changes, old) = (MapChanges::default(), first());
        let fewer = changed(&old, 2);
        changes.note(&old, &fewer);
        let newest = changed(&fewer, 3);
        changes.note(&fewer, &newest);
        assert!(changes.since(old.epoch, false).is_none(), "it would be kept");
        let told = changes.since(old.epoch, true).unwrap();
        assert_eq!((told.dropped_targets.len(), told.targets.len()), (1, 1));
        assert!(changes.since(fewer.epoch, false).is_some());
    }
}
