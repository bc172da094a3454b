//! The map as watchers are told it: by what has changed.

use super::*;

/// The next that a watcher is told.
async fn told(maps: &mut tonic::Streaming<v1::ClusterMap>) -> v1::ClusterMap {
    let next = tokio::time::timeout(PATIENCE, maps.message()).await;
    next.expect("in time").unwrap().expect("the watch goes on")
}

async fn watch(address: &str, have_epoch: u64) -> tonic::Streaming<v1::ClusterMap> {
    let request = v1::WatchMapRequest { have_epoch, changes: true, ..Default::default() };
    control(address).await.watch_map(request).await.unwrap().into_inner()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_are_told_what_has_changed() {
    // No target is missed.
    let mut group = Group::start(1, |c| c.target_down_ms = 600_000).await;
    group.leader().await;
    let address = group.addresses()[0].clone();
    let (daemon, _, _stop) = Daemon::start().await;
    let (_, beats) = register(&address, &daemon, 6).await;
    let placed = |n| {
        move |m: &v1::ClusterMap| {
            active(m).iter().flat_map(|pg| &pg.targets).collect::<BTreeSet<_>>().len() == n
        }
    };
    let old = map_until(&address, "groups over six targets", placed(6)).await;
    // Who has none gets all of it.
    let mut maps = watch(&address, 0).await;
    let mut map = told(&mut maps).await;
    assert_eq!((map.since, map.epoch), (0, old.epoch));
    // Another target, and then groups on it: those in whose place they come are retired, and go
    // with the next.
    let mut seen = Vec::new();
    for n in [7, 8] {
        let (_, more) = register(&address, &daemon, n).await;
        while !placed(n.into())(&map) {
            let changes = told(&mut maps).await;
            assert_eq!(changes.since, map.epoch);
            assert!(changes.targets.len() <= 1 && changes.members.is_empty());
            seen.push(changes.clone());
            weft_proto::map::apply(&mut map, changes).unwrap();
        }
        more.abort();
    }
    let all = map_until(&address, "the newest", |m| m.epoch >= map.epoch).await;
    while map.epoch < all.epoch {
        weft_proto::map::apply(&mut map, told(&mut maps).await).unwrap();
    }
    assert_eq!(all, map, "all that has changed makes the map");
    let generations: BTreeSet<bool> = map.pools[0].pgs.iter().map(|pg| pg.retired).collect();
    assert_eq!(generations.len(), 2);
    let is_there = |o: &v1::PgInfo| map.pools[0].pgs.iter().any(|pg| pg.id == o.id);
    assert!(!old.pools[0].pgs.iter().all(is_there));
    assert!(seen.iter().any(|changes| !changes.dropped_pgs.is_empty()));
    // Who comes back is told all that it has missed, at once: a target has moved twice.
    let (before, mut late) = (map.epoch, map.clone());
    for path in ["a", "b"] {
        let target = v1::TargetInfo { path: path.into(), ..map.targets[0].clone() };
        let request =
            v1::RegisterTargetRequest { cluster: Default::default(), target: Some(target) };
        control(&address).await.register_target(request).await.unwrap();
        weft_proto::map::apply(&mut map, told(&mut maps).await).unwrap();
    }
    let missed = told(&mut watch(&address, before).await).await;
    assert_eq!((missed.since, missed.epoch, missed.targets.len()), (before, map.epoch, 1));
    weft_proto::map::apply(&mut late, missed).unwrap();
    assert_eq!((late.epoch, &late), (before + 2, &map));
    // A server that has just started knows the map only.
    group.stop(1).await;
    group.run(1);
    group.leader().await;
    let whole = told(&mut watch(&address, before).await).await;
    assert_eq!((whole.since, whole.pools == map.pools), (0, true));
    beats.abort();
}
