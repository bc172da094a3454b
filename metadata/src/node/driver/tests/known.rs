//! What servers of older versions do not know.

use super::service::{incoming, serving};
use super::*;
use crate::node::Known;

/// A server of a version that knows no rules of tenants would pass over them. What else is kept in
/// full does not wait for it.
#[tokio::test(start_paused = true)]
async fn rules_of_tenants_are_set_once_all_servers_know_them() {
    use v1::control_server::Control;
    let (mut rig, _service) = serving().await;
    let node = rig.driver.node.clone();
    let control = crate::control::ControlService::new(node.clone(), Arc::default());
    let limits = Some(v1::QosLimits { weight: Some(50), ..Default::default() });
    let rule = v1::QosRule { tenant: "a".into(), limits };
    let rules = vec![rule.clone()];
    let request =
        move || tonic::Request::new(v1::SetQosRequest { rule: Some(rule.clone()), version: None });
    for known in [0, Known::Quotas as u32] {
        for server in [2, 3] {
            let ack = v1::RaftAck { known_entries: known, ..Default::default() };
            rig.driver.on_ack(NodeId(server), ack);
        }
        let refused = Control::set_qos(&control, request()).await.unwrap_err();
        assert_eq!(weft_control::from_status(&refused).kind, ErrorKind::NotSupported);
    }
    assert_eq!(rig.pump().await, 0);
    assert!(node.all_know(Known::Quotas) && !node.all_know(Known::Qos));
    for server in [2, 3] {
        let ack = v1::RaftAck { known_entries: Known::NEWEST, ..Default::default() };
        rig.driver.on_ack(NodeId(server), ack);
    }
    let asked = tokio::spawn(async move { Control::set_qos(&control, request()).await });
    assert_eq!(rig.pump().await, 1);
    let policy = asked.await.unwrap().unwrap().into_inner().policy;
    assert_eq!(policy, Some(v1::QosPolicy { version: 1, rules }));
}

/// A server of a version that does not know a step would pass over it, and be another than the
/// others from then on.
#[tokio::test(start_paused = true)]
async fn batches_change_extended_attributes_once_all_servers_know_such_steps() {
    use v1::batch_op::{Step, step::Op as Do};
    use v1::meta_request::Op;
    let (mut rig, service) = serving().await;
    let (node, service) = (rig.driver.node.clone(), Arc::new(service));
    let knows = |rig: &mut Rig, known_entries| {
        for server in [2, 3] {
            let ack = v1::RaftAck { known_entries, ..Default::default() };
            rig.driver.on_ack(NodeId(server), ack);
        }
    };
    let ask = |session, number, op| {
        let request = v1::MetaRequest { session, number, acked_below: 0, op: Some(op) };
        let service = service.clone();
        Box::pin(async move { service.call(incoming(&request)).await })
    };
    let nonce = vec![1; 16].into();
    let mut open = ask(0, 0, Op::OpenSession(v1::OpenSessionOp { nonce, ..Default::default() }));
    assert!(timeout(Duration::ZERO, &mut open).await.is_err(), "it waits for the log");
    assert_eq!(rig.pump().await, 1);
    open.await.unwrap();
    node.lease.extend(Instant::now());
    let set = v1::SetXattrOp { ino: 1, name: "user.a".into(), ..Default::default() };
    let steps = vec![Step { op: Some(Do::SetXattr(set)), ..Default::default() }];
    let batch = Op::Batch(v1::BatchOp { steps, ..Default::default() });
    let touch = v1::SetAttrOp { ino: 1, mtime_ns: Some(1), ..Default::default() };
    let steps = vec![Step { op: Some(Do::SetAttr(touch)), ..Default::default() }];
    let older = Op::Batch(v1::BatchOp { steps, ..Default::default() });
    knows(&mut rig, Known::OwnTimes as u32);
    let refused = ask(1, 1, batch.clone()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unavailable);
    for (number, op) in [(2, older), (3, batch)] {
        let mut told = ask(1, number, op);
        assert!(timeout(Duration::ZERO, &mut told).await.is_err(), "it waits for the log");
        assert_eq!(rig.pump().await, 1);
        told.await.unwrap();
        knows(&mut rig, Known::NEWEST);
    }
    // As many as a request can hold take no place in the log.
    let steps = vec![Step::default(); 1 << 16];
    let many = ask(1, 5, Op::Batch(v1::BatchOp { steps, ..Default::default() })).await;
    assert_eq!(many.unwrap_err().kind, ErrorKind::Invalid);
    // One of them is down when another leads.
    let mut reserved =
        ask(1, 4, Op::ReserveInodes(v1::ReserveInodesOp { count: 1, ..Default::default() }));
    assert!(timeout(Duration::ZERO, &mut reserved).await.is_err(), "it waits for the log");
    assert_eq!(rig.pump().await, 1);
    reserved.await.unwrap();
    node.known_entries.lock().remove(&NodeId(3));
    assert!(node.all_know(Known::Xattrs), "it is forgotten what all have known");
    knows(&mut rig, Known::OwnTimes as u32);
    assert!(!node.all_know(Known::Xattrs), "one is of an older version after all");
    let set = v1::SetXattrOp { ino: 1, name: "user.a".into(), ..Default::default() };
    let steps = vec![Step { op: Some(Do::SetXattr(set)), ..Default::default() }];
    let refused = ask(1, 6, Op::Batch(v1::BatchOp { steps, ..Default::default() })).await;
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Unavailable);
}

/// What one of an older version passed over it would lack for ever, also when it is a newer one
/// later.
#[tokio::test(start_paused = true)]
async fn a_server_is_sent_nothing_before_it_has_said_that_it_knows_what_all_did() {
    let mut rig = Rig::leading().await;
    let node = rig.driver.node.clone();
    node.once_known.store(Known::NEWEST, std::sync::atomic::Ordering::Relaxed);
    let says = |rig: &mut Rig, server, known_entries| {
        let ack = v1::RaftAck { changes_members: true, known_entries, ..Default::default() };
        rig.driver.on_ack(NodeId(server), ack);
    };
    let entries = |rig: &mut Rig, server| {
        rig.sent_to(server).iter().map(|message| message.entries.len()).sum::<usize>()
    };
    let alive = async |rig: &mut Rig, from| {
        let term = rig.driver.raw.raft.term;
        let kind = MessageType::MsgHeartbeatResponse;
        rig.receive(Message { term, ..message(from, kind) }).await;
    };
    says(&mut rig, 2, Known::NEWEST);
    says(&mut rig, 3, Known::NEWEST - 1);
    rig.carry_out(admit(7), &[2]).await;
    alive(&mut rig, 3).await;
    assert_eq!((entries(&mut rig, 2), entries(&mut rig, 3)), (1, 0));
    // It is made newer.
    says(&mut rig, 3, Known::NEWEST);
    alive(&mut rig, 3).await;
    assert!(entries(&mut rig, 3) > 0);
    // Another may come back in its place.
    rig.driver.on_ended(NodeId(2));
    let answer = rig.propose(admit(7));
    rig.settle().await;
    alive(&mut rig, 2).await;
    assert_eq!(entries(&mut rig, 2), 0);
    says(&mut rig, 2, Known::NEWEST);
    alive(&mut rig, 2).await;
    assert_eq!(entries(&mut rig, 2), 1);
    rig.acknowledge(&[2]).await;
    answer.await.unwrap().unwrap();
}
