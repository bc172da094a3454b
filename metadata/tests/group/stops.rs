//! Servers that are told to stop.

use crate::support::*;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Holds up whoever wakes it.
struct Late;

impl Wake for Late {
    #[allow(clippy::disallowed_methods)] // The thread that tells is what is to be held up.
    fn wake(self: Arc<Self>) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The tasks of a server do not hear of a stop at the same time: who tells them may be held up
/// between any two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_stops_whichever_of_its_tasks_hears_of_it_first() {
    let mut group = Group::start(1, |_| {}).await;
    let late = Waker::from(Arc::new(Late));
    for _ in 0..8 {
        group.client().open_session().await;
        // Told among the tasks of the server.
        let mut told: Vec<_> = (0..64).map(|_| group.stops(1)).collect();
        let mut told: Vec<_> = told.iter_mut().map(|stop| Box::pin(stop.changed())).collect();
        for stop in &mut told {
            assert!(stop.as_mut().poll(&mut Context::from_waker(&late)).is_pending());
        }
        group.stop(1).await;
        group.run(1);
    }
}

/// Nobody else stands for election here, however long it is: another leads because it was handed
/// the lead, with the vote of the one that stops.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_told_to_stop_has_another_lead_first() {
    let mut group = Group::start(3, |config| config.election_ms = 15_000).await;
    let mut client = group.client();
    client.open_session().await;
    client.create("before").await.unwrap();
    let leader = group.leader().await;
    for id in (1..=3).filter(|id| *id != leader) {
        group.stop(id).await;
        let mut config = group.config(id);
        (config.heartbeat_ms, config.election_ms) = (60_000, 600_000);
        group.run_as(config);
        follows(&group, leader, id).await;
    }
    group.stop(leader).await;
    assert_ne!(client.create("after").await.unwrap().ino, 0);
    client.lookup("before").await.unwrap();
    assert_ne!(group.leader().await, leader);
}

/// Waits until a server has said to the leader that it has all of the log.
async fn follows(group: &Group, leader: u64, id: u64) {
    let status = async |id| weft_control::status_of(&weft_net::tcp(), &group.address(id)).await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let (Ok(leads), Ok(status)) = (status(leader).await, status(id).await)
            && status.leader == leader
            && status.applied_index >= leads.commit_index
        {
            return;
        }
        assert!(Instant::now() < deadline, "server {id} does not follow");
        sleep(Duration::from_millis(20)).await;
    }
}
