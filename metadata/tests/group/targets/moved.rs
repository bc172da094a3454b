//! Targets that another daemon serves than before.

use super::*;

/// The daemon that had it fails to serve it still, and has others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_moves_to_another_daemon_silences_no_other() {
    // No target is missed.
    let group = Group::start(1, |c| c.target_down_ms = 600_000).await;
    group.leader().await;
    let address = group.addresses()[0].clone();
    let mut control = control(&address).await;
    let registers = |daemon: &str, uuid: u8| {
        let target = v1::TargetInfo {
            uuid: vec![uuid; 16].into(),
            daemon: daemon.into(),
            address: "127.0.0.1:1".into(),
            ..Default::default()
        };
        v1::RegisterTargetRequest { target: Some(target), ..Default::default() }
    };
    let beat = |daemon: &str, targets: &[u32], failed: &[u32]| {
        let of = |&target: &u32| v1::TargetStat { target, opened: 1, ..Default::default() };
        v1::HeartbeatRequest {
            daemon: daemon.into(),
            targets: targets.iter().map(of).collect(),
            failed: failed.to_vec(),
            ..Default::default()
        }
    };
    let kind = |status: tonic::Status| {
        let code = status.metadata().get("weft-error").unwrap().to_str().unwrap();
        ErrorKind::from_code(code.parse().unwrap())
    };
    for uuid in [1, 2] {
        control.register_target(registers("old", uuid)).await.unwrap();
    }
    // One that is served stays.
    let refused = control.register_target(registers("new", 1)).await.unwrap_err();
    assert_eq!(kind(refused), ErrorKind::NotPermitted);
    control.heartbeat(beat("old", &[1, 2], &[1])).await.unwrap();
    let is = |id: u32, state| {
        move |m: &v1::ClusterMap| m.targets.iter().any(|t| t.id == id && t.state() == state)
    };
    map_until(&address, "one down", is(1, v1::TargetState::Down)).await;
    let moved = control.register_target(registers("new", 1)).await.unwrap().into_inner();
    assert_eq!(moved.id, 1);
    control.heartbeat(beat("new", &[1], &[])).await.unwrap();
    // Open, and not; and the other is heard.
    control.heartbeat(beat("old", &[1], &[1, 2])).await.unwrap();
    control.heartbeat(beat("old", &[2], &[1])).await.unwrap();
    let told = status(&address).await.targets;
    assert!(told.iter().all(|stat| !stat.refused && stat.opened == 1), "{told:?}");
    assert_eq!(told.len(), 2);
    // It is to see that the target is not its own any more.
    let refused = control.heartbeat(beat("old", &[1, 2], &[])).await.unwrap_err();
    assert_eq!(kind(refused), ErrorKind::NotFound);
    let some = v1::HeartbeatRequest { registers_some: true, ..beat("old", &[1, 2], &[]) };
    assert_eq!(control.heartbeat(some).await.unwrap().into_inner().unregistered, [1]);
}
