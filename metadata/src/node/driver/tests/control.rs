//! What is answered over gRPC by a leader that tests drive by hand.

use super::service::serving;
use super::*;
use crate::control::ControlService;
use crate::node::Known;
use v1::control_server::Control;
use weft_control::from_status;
use weft_proto::InodeId;

/// Who asks for it may do so often, and a confined client, too.
#[tokio::test(start_paused = true)]
async fn a_status_counts_once_a_second_for_all_who_ask() {
    let (rig, _service) = serving().await;
    let node = rig.driver.node.clone();
    let control = ControlService::new(node.clone(), Arc::default());
    let scattered = async || {
        let reply = Control::status(&control, tonic::Request::new(v1::StatusRequest {})).await;
        reply.unwrap().into_inner().scattered_files
    };
    for n in 0..3 {
        assert_eq!(scattered().await, n);
        let another = crate::schema::scattered(InodeId(100 + n));
        node.state.damage(another, Some(v1::Empty {}.encode_to_vec().into()));
        assert_eq!(scattered().await, n, "it was counted anew");
        advance(Duration::from_secs(1)).await;
    }
}

/// The map, which everybody has, would hold it for ever.
#[tokio::test(start_paused = true)]
async fn a_target_with_names_without_end_is_not_registered() {
    let (mut rig, _service) = serving().await;
    let control = ControlService::new(rig.driver.node.clone(), Arc::default());
    let target = |path: String| v1::TargetInfo {
        uuid: vec![7; 16].into(),
        daemon: "a".into(),
        address: "a:1".into(),
        path,
        ..Default::default()
    };
    let request =
        |path| v1::RegisterTargetRequest { target: Some(target(path)), ..Default::default() };
    let long = tonic::Request::new(request("p".repeat(1 << 20)));
    let asked = timeout(Duration::from_secs(30), Control::register_target(&control, long)).await;
    let refused = asked.expect("it is in the log").unwrap_err();
    assert_eq!(from_status(&refused).kind, ErrorKind::Invalid);
    assert_eq!(rig.pump().await, 0);
    let right = tonic::Request::new(request("/dev/nvme0n1".into()));
    let asked = tokio::spawn(async move { Control::register_target(&control, right).await });
    assert_eq!(rig.pump().await, 1);
    asked.await.unwrap().unwrap();
    assert_eq!(rig.driver.node.map().targets.len(), 1);
}

/// Two who change the rule of one tenant at the same time, each a part of it: neither is told that
/// it is done, and has its part undone.
#[tokio::test(start_paused = true)]
async fn a_rule_that_was_made_of_others_than_there_are_is_refused() {
    let (mut rig, _service) = serving().await;
    for server in [2, 3] {
        let ack = v1::RaftAck { known_entries: Known::NEWEST, ..Default::default() };
        rig.driver.on_ack(NodeId(server), ack);
    }
    let control = ControlService::new(rig.driver.node.clone(), Arc::default());
    let set = |weight, version| {
        let limits = Some(v1::QosLimits { weight: Some(weight), ..Default::default() });
        let rule = Some(v1::QosRule { tenant: "a".into(), limits });
        let (control, request) = (control.clone(), v1::SetQosRequest { rule, version });
        tokio::spawn(async move { Control::set_qos(&control, tonic::Request::new(request)).await })
    };
    let both = [set(1, Some(0)), set(2, Some(0))];
    assert_eq!(rig.pump().await, 1);
    let mut refused = Vec::new();
    for asked in both {
        refused.extend(asked.await.unwrap().err().map(|refused| from_status(&refused).kind));
    }
    assert_eq!(refused, [ErrorKind::Busy]);
    // Who has looked again may, and who has not looked at all.
    for (weight, version) in [(3, Some(1)), (4, None)] {
        let asked = set(weight, version);
        assert_eq!(rig.pump().await, 1);
        let policy = asked.await.unwrap().unwrap().into_inner().policy.unwrap();
        let weights: Vec<_> = policy.rules.iter().map(|rule| rule.limits.unwrap().weight).collect();
        assert_eq!((policy.version, weights), (u64::from(weight) - 1, vec![Some(weight)]));
    }
}
