//! Targets that are gone for good.

use super::*;
use v1::set_target_request::Action;

fn registers(uuid: u8) -> v1::RegisterTargetRequest {
    let target = v1::TargetInfo {
        uuid: vec![uuid; 16].into(),
        daemon: "d".into(),
        address: "127.0.0.1:1".into(),
        domain: format!("d{uuid}"),
        capacity_bytes: 1 << 30,
        ..Default::default()
    };
    v1::RegisterTargetRequest { target: Some(target), ..Default::default() }
}

fn says(refused: &tonic::Status) -> ErrorKind {
    let code = refused.metadata().get("weft-error").unwrap().to_str().unwrap();
    ErrorKind::from_code(code.parse().unwrap())
}

fn decision(target: u32, action: Action) -> v1::SetTargetRequest {
    v1::SetTargetRequest { target, action: action.into(), ..Default::default() }
}

type Control = ControlClient<tonic::transport::Channel>;

/// Of what has changed since `before`. An older version would keep it.
async fn told_that_it_is_gone(
    control: &mut Control,
    before: &v1::ClusterMap,
    newest: &v1::ClusterMap,
) {
    for dropped_targets in [true, false] {
        let have_epoch = before.epoch;
        let watch = v1::WatchMapRequest { have_epoch, changes: true, dropped_targets };
        let mut maps = control.watch_map(watch).await.unwrap().into_inner();
        let told = tokio::time::timeout(PATIENCE, maps.message()).await.expect("in time");
        let told = told.unwrap().expect("the watch goes on");
        if dropped_targets {
            assert_eq!((told.since, &told.dropped_targets[..]), (have_epoch, &[7][..]));
            let mut known = before.clone();
            weft_proto::map::apply(&mut known, told).unwrap();
            assert_eq!(known.targets, newest.targets);
        } else {
            assert_eq!((told.since, told.targets), (0, newest.targets.clone()));
        }
    }
}

/// Whoever was not answered asks again, and nothing is done. One that never was is another case.
async fn forgotten_once(control: &mut Control) {
    let again = control.set_target(decision(7, Action::Forget)).await.unwrap().into_inner();
    assert_eq!(again.target.map(|t| t.id), Some(7));
    for request in [decision(70, Action::Forget), decision(7, Action::TakeBack)] {
        let refused = control.set_target(request).await.unwrap_err();
        assert_eq!(says(&refused), ErrorKind::NotFound, "{refused}");
    }
    let told = v1::ListEventsRequest::default();
    let told = control.list_events(told).await.unwrap().into_inner().events;
    let decisions = told.iter().filter(|e| e.text.contains("forgotten, for good")).count();
    assert!(decisions <= 1, "{told:?}");
}

/// Without any of the others, which its daemon (of `all`) serves, and without an entry of the log.
async fn refused_when_it_is_back(control: &mut Control, all: &[u32]) {
    let refused = control.heartbeat(beat(all, 2)).await.unwrap_err();
    assert_eq!(says(&refused), ErrorKind::NotFound, "its daemon is to register it");
    // One that can registers that one only. It is refused, and nothing of that is in the log.
    let some = v1::HeartbeatRequest { registers_some: true, ..beat(all, 3) };
    let heard = control.heartbeat(some).await.unwrap().into_inner();
    assert_eq!(heard.unregistered, [7]);
    let status = control.status(v1::StatusRequest {}).await.unwrap().into_inner();
    let opened = status.targets.iter().filter(|stat| stat.opened == 3);
    assert!(opened.map(|stat| stat.target).eq(1..=6), "the others are heard: {:?}", status.targets);
    const OFTEN: u64 = 200;
    for _ in 0..OFTEN {
        let refused = control.register_target(registers(7)).await.unwrap_err();
        assert_eq!(says(&refused), ErrorKind::NotPermitted);
        assert!(refused.message().contains("target 7"), "{refused}");
    }
    let after = control.status(v1::StatusRequest {}).await.unwrap().into_inner();
    assert!(after.commit_index < status.commit_index + OFTEN, "that is not in the log");
}

/// It goes as soon as nobody serves it and no group needs it, and is refused when it comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_is_forgotten_when_nothing_needs_it() {
    // No target is missed.
    let group = Group::start(1, |c| c.target_down_ms = 600_000).await;
    group.leader().await;
    let address = group.addresses()[0].clone();
    let mut control = control(&address).await;
    for uuid in 1..=7 {
        control.register_target(registers(uuid)).await.unwrap();
    }
    let all: Vec<u32> = (1..=7).collect();
    control.heartbeat(beat(&all, 1)).await.unwrap();
    let names = |pg: &&v1::PgInfo| pg.targets.contains(&7);
    map_until(&address, "groups", |m| active(m).iter().any(names)).await;
    let set = |action| decision(7, action);
    let refused = control.set_target(set(Action::Forget)).await.unwrap_err();
    assert_eq!(says(&refused), ErrorKind::Invalid, "{refused}");
    control.set_target(set(Action::GiveUp)).await.unwrap();
    let refused = control.set_target(set(Action::Forget)).await.unwrap_err();
    assert!(says(&refused) == ErrorKind::Busy && refused.message().contains("serves"), "{refused}");
    let fails = v1::HeartbeatRequest { failed: vec![7], ..beat(&all, 1) };
    control.heartbeat(fails).await.unwrap();
    // Other groups come in the place of those that name it.
    let others = |m: &v1::ClusterMap| !active(m).is_empty() && !active(m).iter().any(names);
    let before = map_until(&address, "groups without it", others).await;
    let until = Instant::now() + PATIENCE;
    while let Err(refused) = control.set_target(set(Action::Forget)).await {
        assert!(says(&refused) == ErrorKind::Busy && Instant::now() < until, "{refused}");
        sleep(Duration::from_millis(20)).await;
    }
    let newest = map_until(&address, "it is gone", |m| m.targets.iter().all(|t| t.id != 7)).await;
    assert!(newest.groups().all(|pg| !names(&pg)) && !active(&newest).is_empty());
    told_that_it_is_gone(&mut control, &before, &newest).await;
    forgotten_once(&mut control).await;
    refused_when_it_is_back(&mut control, &all).await;
    control.heartbeat(beat(&all[..6], 2)).await.unwrap();
    let new = control.register_target(registers(8)).await.unwrap().into_inner();
    assert_eq!(new.id, 8);
}

/// A leader that has just begun to lead has heard of nobody yet who serves it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_forgets_nothing_that_may_be_served() {
    // Nobody is missed before that.
    let mut group = Group::start(1, |c| c.target_down_ms = 600_000).await;
    group.leader().await;
    let address = group.addresses()[0].clone();
    let set = |action| decision(1, action);
    {
        let mut control = control(&address).await;
        control.register_target(registers(1)).await.unwrap();
        control.heartbeat(beat(&[1], 1)).await.unwrap();
        control.set_target(set(Action::GiveUp)).await.unwrap();
    }
    group.stop(1).await;
    group.run(1);
    group.leader().await;
    let mut control = control(&address).await;
    let refused = control.set_target(set(Action::Forget)).await.unwrap_err();
    assert_eq!(says(&refused), ErrorKind::Busy, "{refused}");
    assert!(refused.message().contains("not known yet"), "{refused}");
    let until = Instant::now() + PATIENCE;
    loop {
        control.heartbeat(beat(&[1], 1)).await.unwrap();
        let refused = control.set_target(set(Action::Forget)).await.unwrap_err();
        assert!(says(&refused) == ErrorKind::Busy && Instant::now() < until, "{refused}");
        if !refused.message().contains("not known yet") {
            break;
        }
    }
    let fails = v1::HeartbeatRequest { failed: vec![1], ..beat(&[1], 1) };
    control.heartbeat(fails).await.unwrap();
    while let Err(refused) = control.set_target(set(Action::Forget)).await {
        assert!(says(&refused) == ErrorKind::Busy && Instant::now() < until, "{refused}");
        sleep(Duration::from_millis(20)).await;
    }
}
