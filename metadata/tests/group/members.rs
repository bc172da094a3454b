//! Servers that come and go while the group serves.

use crate::support::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use v1::MemberRole;
use v1::set_member_request::Action;
use v1::set_server_entry::{Add, Change};
use weft_proto::{ErrorKind, Result, v1};

async fn ask(group: &Group, action: Action) -> Result<v1::SetMemberReply> {
    let deadline = Instant::now() + PATIENCE;
    let mut control = weft_control::Group::new(weft_net::tcp(), group.addresses());
    loop {
        let request = v1::SetMemberRequest { action: Some(action.clone()) };
        match control.call(request).await {
            Err(e)
                if matches!(
                    e.kind,
                    ErrorKind::NotLeader | ErrorKind::Unavailable | ErrorKind::TimedOut
                ) && Instant::now() < deadline =>
            {
                sleep(Duration::from_millis(20)).await;
            }
            answer => return answer,
        }
    }
}

async fn set(group: &Group, change: Change) -> Result<v1::SetMemberReply> {
    ask(group, Action::Set(v1::SetServerEntry { change: Some(change) })).await
}

fn add(group: &Group, id: u64, replaces: u64) -> Change {
    Change::Add(Add { id, address: group.address(id), replaces })
}

/// Waits until the leader says that these servers, and no others, have a vote. Answers who leads.
async fn become_voters(group: &Group, ids: &[u64]) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = weft_control::leader_status(&weft_net::tcp(), &group.addresses()).await;
        let now = status.map(|status| {
            let members = status.map.map(|map| map.members).unwrap_or_default();
            let voters = members.iter().all(|m| m.role() == MemberRole::Voter);
            let is: Vec<u64> = members.iter().map(|m| m.id).collect();
            (voters && is == ids, status.leader, status.membership, members)
        });
        match now {
            Ok((true, leader, ..)) => return leader,
            now => assert!(Instant::now() < deadline, "not the voters {ids:?}: {now:?}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Makes files until it is told to stop; answers how many were acknowledged.
fn write_on(mut client: Client, stop: Arc<AtomicBool>) -> tokio::task::JoinHandle<(Client, usize)> {
    tokio::spawn(async move {
        let mut made = 0;
        while !stop.load(Ordering::Relaxed) {
            client.create(&format!("w{made}")).await.unwrap();
            made += 1;
        }
        (client, made)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_servers_take_the_places_of_three() {
    // So short a log that who comes needs a snapshot.
    let mut group = Group::start(3, |config| config.log_entries = 64).await;
    let mut client = group.client();
    client.open_session().await;
    for i in 0..400 {
        client.create(&format!("f{i}")).await.unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writing = write_on(client, stop.clone());
    let mut voters = vec![1, 2, 3];
    // The one that leads is the first to go.
    for _ in 0..3 {
        let leader = become_voters(&group, &voters).await;
        let old = voters.iter().copied().find(|&id| id == leader && id <= 3);
        let old = old.or(voters.iter().copied().find(|&id| id <= 3)).unwrap();
        let new = group.run_new();
        set(&group, add(&group, new, old)).await.unwrap();
        // Told again, since the answer may be lost.
        let again = set(&group, add(&group, new, old)).await;
        assert!(again.is_ok_and(|reply| reply.members.iter().any(|m| m.id == new)));
        voters.retain(|&id| id != old);
        voters.push(new);
        become_voters(&group, &voters).await;
        group.ended(old).await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let (mut client, made) = writing.await.unwrap();
    for i in 0..400 {
        client.lookup(&format!("f{i}")).await.unwrap();
    }
    for i in 0..made {
        client.lookup(&format!("w{i}")).await.unwrap();
    }
    // Whoever has left stays away, also with its folder; the others go on with one less.
    group.run(1);
    let e = group.ended(1).await.unwrap_err();
    assert!(e.message.contains("left its group"), "{e}");
    let e = set(&group, add(&group, 1, 0)).await.unwrap_err();
    assert_eq!(e.kind, ErrorKind::Exists, "{e}");
    let leader = become_voters(&group, &voters).await;
    group.kill(leader).await;
    client.create("one less").await.unwrap();
    // All restart, and know each other without being told.
    group.run(leader);
    for id in voters {
        group.stop(id).await;
        group.run(id);
    }
    client.lookup("one less").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_is_replaced_and_finds_out() {
    let mut group = Group::start(3, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    client.create("before").await.unwrap();
    let leader = group.leader().await;
    let dead = (1..=3).find(|&id| id != leader).unwrap();
    group.kill(dead).await;
    // It waits for the new one, which does not run yet; and nobody who is needed may go.
    set(&group, Change::Add(Add { id: 4, address: "127.0.0.1:9".into(), replaces: dead }))
        .await
        .unwrap();
    let other = (1..=3).find(|&id| id != leader && id != dead).unwrap();
    set(&group, Change::Remove(other)).await.unwrap();
    client.create("meanwhile").await.unwrap();
    let new = group.run_new();
    assert_eq!(new, 4);
    let to = v1::set_server_entry::Move { id: new, address: group.address(new) };
    set(&group, Change::Move(to)).await.unwrap();
    // The other leaves as soon as it is not needed any more.
    let mut left = vec![leader, new];
    left.sort_unstable();
    become_voters(&group, &left).await;
    group.ended(other).await.unwrap();
    // The dead one comes back with its disk: it elects nobody, and ends.
    group.run(dead);
    group.ended(dead).await.unwrap();
    for name in ["before", "meanwhile"] {
        client.lookup(name).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_server_is_replaced_by_another() {
    let mut group = Group::start(1, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    client.create("a").await.unwrap();
    let new = group.run_new();
    set(&group, add(&group, new, 1)).await.unwrap();
    become_voters(&group, &[new]).await;
    group.ended(1).await.unwrap();
    let mut client = group.client();
    client.lookup("a").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lead_goes_where_it_is_wanted() {
    let group = Group::start(3, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    let stop = Arc::new(AtomicBool::new(false));
    let writing = write_on(client, stop.clone());
    for turn in 0..6 {
        let to = group.leader().await % 3 + 1;
        let deadline = Instant::now() + PATIENCE;
        // Asked again while another leads: if it was held up, the group has elected whom it wants,
        // as it may; also the one that led before.
        while group.leader().await != to {
            assert!(Instant::now() < deadline, "turn {turn}: {to} does not lead");
            let told = ask(&group, Action::TransferTo(to)).await;
            // It may lead by now, so that it is not another.
            let fine = told.as_ref().err().is_none_or(|e| e.kind == ErrorKind::NotFound);
            assert!(fine, "turn {turn}: {told:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }
    let e = ask(&group, Action::TransferTo(9)).await.unwrap_err();
    assert_eq!(e.kind, ErrorKind::NotFound);
    stop.store(true, Ordering::Relaxed);
    let (mut client, made) = writing.await.unwrap();
    for i in 0..made {
        client.lookup(&format!("w{i}")).await.unwrap();
    }
}

/// A configuration that was acted on is not forgotten with the power: else a server could lead by
/// one that is long over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_configuration_does_not_come_back_with_the_power() {
    let mut group = Group::start(1, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    client.create("a").await.unwrap();
    // What the drive has of the state as long as nothing was synced since.
    group.stop(1).await;
    let (state, kept) = (group.path(1).join("state"), group.path(1).join("kept"));
    copy(&state, &kept);
    group.run(1);
    for _ in 0..2 {
        let new = group.run_new();
        set(&group, add(&group, new, 0)).await.unwrap();
    }
    become_voters(&group, &[1, 2, 3]).await;
    let mut client = group.client();
    client.open_session().await;
    client.create("b").await.unwrap();
    for id in 1..=3 {
        group.kill(id).await;
    }
    std::fs::remove_dir_all(&state).unwrap();
    std::fs::rename(&kept, &state).unwrap();
    group.run(1);
    // Alone it is not the group any more, whatever its state had. It would lead within two election
    // timeouts, and not stop to.
    let enough = Duration::from_millis(2 * group.config(1).election_ms) + Duration::from_secs(2);
    let (begun, mut runs) = (Instant::now(), None);
    loop {
        match weft_control::status_of(&weft_net::tcp(), &group.address(1)).await {
            Ok(status) => {
                assert_ne!(status.leader, 1, "it leads alone");
                if runs.get_or_insert_with(Instant::now).elapsed() > enough {
                    break;
                }
            }
            Err(e) => assert!(begun.elapsed() < PATIENCE, "it does not answer: {e}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
    group.run(2);
    client.lookup("b").await.unwrap();
}

/// A server that was bootstrapped into a group of its own does not vote in another by that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_began_in_another_group_ends() {
    let mut group = Group::start(3, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    client.create("a").await.unwrap();
    let new = group.new_address();
    let mut config = group.config(new);
    config.peers.retain(|peer| [2, new].contains(&peer.id.0));
    weft_metadata::bootstrap(&config).unwrap();
    group.run_as(config);
    set(&group, add(&group, new, 0)).await.unwrap();
    let e = group.ended(new).await.unwrap_err();
    assert_eq!(e.kind, ErrorKind::Corrupt, "{e}");
    client.create("b").await.unwrap();
}

/// All servers are given other addresses while none runs: they find each other by what they are
/// configured with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_was_moved_as_a_whole_elects() {
    let mut group = Group::start(3, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    client.create("a").await.unwrap();
    for id in 1..=3 {
        group.stop(id).await;
    }
    let before = group.config(1).peers;
    group.move_all();
    for id in 1..=3 {
        group.run(id);
    }
    let mut client = group.client();
    client.lookup("a").await.unwrap();
    for id in 1..=3 {
        let to = v1::set_server_entry::Move { id, address: group.address(id) };
        set(&group, Change::Move(to)).await.unwrap();
    }
    become_voters(&group, &[1, 2, 3]).await;
    // What is recorded holds now, whatever the configurations say of the others.
    for id in 1..=3 {
        group.stop(id).await;
    }
    for id in 1..=3 {
        let mut config = group.config(id);
        for (peer, old) in config.peers.iter_mut().zip(&before) {
            if peer.id.0 != id {
                peer.address = old.address.clone();
            }
        }
        group.run_as(config);
    }
    client.lookup("a").await.unwrap();
}
