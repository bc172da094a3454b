//! Commits, leaders that die, restarts, followers that fell behind.

use crate::support::*;
use std::time::Duration;
use v1::meta_request::Op;
use weft_proto::{ErrorKind, v1};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_servers_elect_commit_and_outlive_their_leader() {
    let mut group = Group::start(3, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    let first = client.create("a").await.unwrap();
    assert_eq!(client.lookup("a").await.unwrap().ino, first.ino);

    let leader = group.leader().await;
    // A request whose answer was lost with the leader: sent, not waited for, then retried.
    let request = client.change(create("b", 7));
    let old = client.leader.clone();
    let _ = client.ask(&old, &request, Duration::from_millis(1)).await;
    group.kill(leader).await;
    client.retry(&request).await.unwrap();
    // Once more, with the same number: the same answer, no second file and no `Exists`.
    let again = client.retry(&request).await.unwrap();
    assert_eq!(again, client.retry(&request).await.unwrap());
    assert_ne!(group.leader().await, leader);
    assert_eq!(client.lookup("a").await.unwrap().ino, first.ino);
    assert_eq!(client.create("b").await.unwrap_err().kind, ErrorKind::Exists);

    // The old leader comes back and catches up; then it is needed for the majority.
    group.run(leader);
    let now = group.leader().await;
    let third = (1..=3).find(|id| *id != leader && *id != now).unwrap();
    group.kill(third).await;
    client.create("c").await.unwrap();
    assert_eq!(client.lookup("b").await.unwrap().kind(), v1::FileKind::Regular);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_a_restart_of_all() {
    let mut group = Group::start(3, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    let mut inos = Vec::new();
    for i in 0..50 {
        inos.push(client.create(&format!("f{i}")).await.unwrap().ino);
    }
    for id in 1..=3 {
        if id == 2 { group.stop(id).await } else { group.kill(id).await }
    }
    for id in 1..=3 {
        group.run(id);
    }
    for (i, ino) in inos.iter().enumerate() {
        assert_eq!(client.lookup(&format!("f{i}")).await.unwrap().ino, *ino);
    }
    client.create("after").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_fell_behind_gets_a_snapshot() {
    let mut group = Group::start(3, |c| c.log_entries = 40).await;
    let mut client = group.client();
    client.open_session().await;
    let leader = group.leader().await;
    let behind = (1..=3).find(|id| *id != leader).unwrap();
    group.kill(behind).await;
    for i in 0..400 {
        client.create(&format!("f{i}")).await.unwrap();
    }
    group.run(behind);
    // It has caught up when it can stand in for the other follower.
    let other = (1..=3).find(|id| *id != leader && *id != behind).unwrap();
    group.kill(other).await;
    client.create("with the one that was behind").await.unwrap();
    // And it has the whole state: alone with a server that only now comes back, it may lead.
    group.run(other);
    group.kill(leader).await;
    client.create("after").await.unwrap();
    for i in (0..400).step_by(37) {
        client.lookup(&format!("f{i}")).await.unwrap();
    }
    let folder = group.path(behind);
    let state = std::fs::read_to_string(folder.join("state/current")).unwrap();
    assert_ne!(state, "db-0", "it has a state that was made elsewhere");
    assert_eq!(files_in(&folder.join("incoming")), 0, "the snapshot was moved into place");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_after_a_change_of_leaders_sees_the_last_write() {
    let mut group = Group::start(3, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    for round in 0..3 {
        let name = format!("r{round}");
        let ino = client.create(&name).await.unwrap().ino;
        let leader = group.leader().await;
        group.kill(leader).await;
        // A client that knows nothing, as soon as anyone answers.
        let mut fresh = group.client();
        assert_eq!(fresh.lookup(&name).await.unwrap().ino, ino);
        group.run(leader);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nothing_is_acknowledged_and_nothing_is_read() {
    let mut group = Group::start(3, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    let leader = group.leader().await;
    for id in (1..=3).filter(|id| *id != leader) {
        group.kill(id).await;
    }
    let address = group.addresses()[leader as usize - 1].clone();
    let request = client.change(create("x", 1));
    assert!(client.ask(&address, &request, Duration::from_millis(1500)).await.is_err());
    // The lease has ended by now.
    let read =
        v1::MetaRequest { op: Some(Op::GetAttr(v1::GetAttrOp { ino: 1 })), ..Default::default() };
    assert!(client.ask(&address, &read, Duration::from_millis(500)).await.is_err());
    for id in (1..=3).filter(|id| *id != leader) {
        group.run(id);
    }
    client.retry(&request).await.unwrap();
}
