//! Changes of the group, step by step.

use super::*;
use v1::log_entry::Body;
use v1::set_server_entry::{Add, Change};

fn change(learn: u64, promote: u64, remove: u64) -> Body {
    Body::ChangeMembers(v1::ChangeMembersEntry { learn, promote, remove })
}

impl Rig {
    /// Leads a cluster in which server 4 is to take the place of this one.
    async fn being_replaced() -> Self {
        let mut rig = Self::leading().await;
        let member =
            |id| v1::NodeInfo { id, address: format!("127.0.0.1:{id}"), ..Default::default() };
        let made = Body::InitCluster(v1::InitClusterEntry {
            cluster: vec![7; 16].into(),
            profile: Some(v1::ProfileInfo { k: 1, m: 0 }),
            members: (1..=3).map(member).collect(),
            shard: 0,
        });
        let add = Add { id: 4, address: "127.0.0.1:4".into(), replaces: 1 };
        let wish = Body::SetServer(v1::SetServerEntry { change: Some(Change::Add(add)) });
        for body in [made, wish, change(4, 0, 0)] {
            rig.carry_out(body, &[2, 3]).await;
        }
        rig
    }

    /// Has an entry committed by these.
    pub(super) async fn carry_out(&mut self, body: Body, by: &[u64]) {
        let answer = self.propose(body);
        self.settle().await;
        self.acknowledge(by).await;
        let (_, stored) = answer.await.unwrap().unwrap();
        assert_eq!(stored.error, 0, "{}", stored.message);
    }
}

/// What the leader sends to server 3 is lost, and not what that sends.
#[tokio::test(start_paused = true)]
async fn who_asks_to_be_elected_does_not_answer_the_leader() {
    let mut rig = Rig::leading().await;
    let active = |rig: &mut Rig| -> Vec<u64> {
        rig.driver.on_tick().unwrap();
        rig.driver.node.followers.lock().iter().filter(|m| m.active).map(|m| m.id).collect()
    };
    rig.acknowledge(&[2, 3]).await;
    assert_eq!(active(&mut rig), [2, 3]);
    advance(rig.driver.node.config.election_timeout()).await;
    rig.acknowledge(&[2]).await;
    rig.votes(1, 1).await;
    assert!(rig.driver.leads.is_some());
    assert_eq!(active(&mut rig), [2]);
}

/// What follows the entry that ends its part in the group is committed by the others.
#[tokio::test(start_paused = true)]
async fn a_leader_that_has_left_leads_no_more() {
    let mut rig = Rig::being_replaced().await;
    rig.carry_out(change(0, 4, 1), &[2, 3, 4]).await;
    assert!(rig.driver.node.membership().is_joint());
    let left = rig.propose(change(0, 0, 0));
    rig.settle().await;
    let (term, index) = (rig.driver.raw.raft.term, rig.driver.raw.raft.raft_log.last_index());
    let late = rig.propose(admit(4));
    rig.settle().await;
    for from in [2, 3] {
        let kind = MessageType::MsgAppendResponse;
        rig.receive(Message { term, index, ..message(from, kind) }).await;
    }
    rig.acknowledge(&[2, 3, 4]).await;
    drop(left);
    assert_eq!(rig.driver.raw.raft.state, StateRole::Follower);
    // Whether it is committed the others know.
    assert!(late.await.unwrap().is_err());
    // It is needed until they have said that it is not.
    let node = rig.driver.node.clone();
    assert!(!*node.watch_removed().borrow());
    for (peer, removed) in [(2, true), (3, false), (3, true)] {
        assert!(!*node.watch_removed().borrow());
        let ack = v1::RaftAck { removed, changes_members: true, ..Default::default() };
        rig.driver.on_ack(NodeId(peer), ack);
    }
    assert!(*node.watch_removed().borrow());
}

/// Who is sent a snapshot must find itself in it.
#[tokio::test(start_paused = true)]
async fn a_snapshot_of_an_older_group_is_not_sent() {
    let mut rig = Rig::being_replaced().await;
    let snapshot = rig.driver.wiring.snapshots.make().await.unwrap();
    rig.carry_out(change(0, 4, 0), &[2, 3, 4]).await;
    rig.driver.offer(snapshot);
    let of = |rig: &Rig| raft::Storage::snapshot(rig.driver.raw.store(), 1, 4);
    assert!(of(&rig).is_err());
    let snapshot = rig.driver.wiring.snapshots.make().await.unwrap();
    rig.driver.offer(snapshot);
    let sent = of(&rig).unwrap();
    assert!(sent.get_metadata().get_conf_state().voters.contains(&4));
}

/// The commit index alone is not written; it goes with the next entries, which may hang on it.
#[tokio::test(start_paused = true)]
async fn what_is_committed_is_known_to_a_log_that_has_more() {
    let mut rig = Rig::following(2, |_| {}).await;
    let entry = |index: u64, commit: u64| Message {
        term: 5,
        log_term: 5,
        index: index - 1,
        commit,
        entries: vec![Entry { index, term: 5, ..Default::default() }],
        ..message(2, MessageType::MsgAppend)
    };
    rig.receive(entry(3, 2)).await;
    let commit = Message { term: 5, commit: 3, ..message(2, MessageType::MsgHeartbeat) };
    rig.receive(commit).await;
    rig.receive(entry(4, 3)).await;
    let log = rig.dir.path().join(LOG);
    let Rig { driver, dir: _dir, .. } = rig;
    drop(driver);
    let log = LogStorage::open(&log, 0).unwrap();
    let state = raft::Storage::initial_state(&log).unwrap();
    assert_eq!(state.hard_state.commit, 3);
}

/// What nobody holds in the table of a lead that is over, others may hold.
#[tokio::test(start_paused = true)]
async fn who_leads_no_more_answers_nothing_of_what_others_hold() {
    let rig = Rig::leading().await;
    let node = rig.driver.node.clone();
    let deadline = Instant::now() + Duration::from_secs(60);
    let (me, ino) = (weft_proto::SessionId(1), weft_proto::InodeId(1));
    crate::conflicts::readable(&node, me, ino, deadline).await.unwrap();
    node.soft.with(|s| s.start(Instant::now(), 0, Vec::new()));
    for answer in [
        crate::conflicts::all_declared(&node, me, deadline).await,
        crate::conflicts::readable(&node, me, ino, deadline).await,
    ] {
        assert_eq!(answer.unwrap_err().kind, ErrorKind::NotLeader);
    }
}

/// A server that would take no notice of a change of the group holds it up.
#[tokio::test(start_paused = true)]
async fn an_old_version_is_upgraded_first() {
    use v1::control_server::Control;
    let mut rig = Rig::being_replaced().await;
    let node = rig.driver.node.clone();
    let control = crate::control::ControlService::new(node, Arc::default());
    let change = Some(Change::Remove(3));
    let action = v1::set_member_request::Action::Set(v1::SetServerEntry { change });
    let request =
        move || tonic::Request::new(v1::SetMemberRequest { action: Some(action.clone()) });
    rig.driver.on_ack(NodeId(2), v1::RaftAck::default());
    rig.driver.note_followers();
    let refused = Control::set_member(&control, request()).await.unwrap_err();
    assert_eq!(weft_control::from_status(&refused).kind, ErrorKind::NotSupported);
    rig.driver.on_ack(NodeId(2), v1::RaftAck { changes_members: true, ..Default::default() });
    rig.driver.note_followers();
    let asked = tokio::spawn(async move { Control::set_member(&control, request()).await });
    assert_eq!(rig.pump().await, 1);
    asked.await.unwrap().unwrap();
}

/// Its disk is nobody's concern any more, and it says nothing of that.
#[tokio::test(start_paused = true)]
async fn a_server_that_has_left_keeps_nobody_from_growing() {
    let mut rig = Rig::being_replaced().await;
    let node = rig.driver.node.clone();
    let ack = v1::RaftAck { low_on_room: true, changes_members: true, ..Default::default() };
    rig.driver.on_ack(NodeId(3), ack.clone());
    assert_eq!(node.has_room().map_err(|e| e.kind), Err(ErrorKind::NoSpace));
    let mut group = (*node.membership()).clone();
    group.members.retain(|member| member.id != 3);
    *node.membership.lock() = Arc::new(group);
    node.has_room().unwrap();
    // Nor does what was on its way.
    rig.driver.on_ack(NodeId(3), ack);
    node.has_room().unwrap();
}

/// A leader that has more to propose each time hears of the rest all the same.
#[tokio::test(start_paused = true)]
async fn what_others_report_waits_behind_nothing() {
    let mut rig = Rig::being_replaced().await;
    let ack = v1::RaftAck { low_on_room: true, ..Default::default() };
    rig.reports.send(Report::Answered { peer: NodeId(2), ack }).unwrap();
    rig.driver.drain().unwrap();
    assert_eq!(rig.driver.node.has_room().map_err(|e| e.kind), Err(ErrorKind::NoSpace));
}

/// Of its own disk it knows nothing before it has looked.
#[tokio::test(start_paused = true)]
async fn without_any_room_nothing_more_is_taken_in() {
    let rig = Rig::leading().await;
    let node = rig.driver.node.clone();
    node.has_last_room().unwrap();
    node.note_room(0, 2 << 30);
    assert_eq!(node.has_last_room().map_err(|e| e.kind), Err(ErrorKind::Unavailable));
    node.note_room(1 << 30, 2 << 30);
    node.has_last_room().unwrap();
}
