//! A target that an admin has forgotten, and that is in the configuration of its daemon still.

use crate::daemon::{put, run};
use crate::metadata::{Metadata, Served};
use crate::support::make;
use std::time::Duration;
use tempfile::tempdir;
use tokio::time::{Instant, timeout};
use weft_proto::{ErrorKind, v1};
use weft_storaged::{Config, Target};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_forgotten_is_closed_and_no_other_is_registered_anew() {
    let dir = tempdir().unwrap();
    let metadata = Metadata::default();
    let mut config = Config::new("s1", "127.0.0.1:0", vec![metadata.serve().await]);
    config.targets =
        ["a", "b"].map(|name| Target::new(dir.path().join(name), Some(32 << 20))).into();
    config.targets.iter().for_each(|target| make(&target.options()));
    let daemon = run(config).await;
    let peer = daemon.peer();
    metadata.wait_for_beat(|b| b.targets.len() == 2).await;
    for target in [1, 2] {
        put(&peer, target, 5, 1).await.unwrap();
    }
    let gone = metadata.0.lock()[0].clone();
    metadata.1.forgotten.lock().push(gone.uuid);

    // It is refused, and asked for again now and then, should that have been taken back.
    let again = |served: &Served| served.refused >= 2;
    let mut served = metadata.1.served.subscribe();
    drop(timeout(PATIENCE, served.wait_for(again)).await.unwrap().unwrap());
    let until = Instant::now() + PATIENCE;
    for seq in 6.. {
        match put(&peer, gone.id, seq, 1).await {
            Err(e) if e.kind == ErrorKind::Unavailable => break,
            _ => assert!(Instant::now() < until, "it is served still"),
        }
    }
    // The other one goes on, and is not registered anew: that would be refused.
    let (before, other) = (metadata.1.beats.borrow().len(), 3 - gone.id);
    let of_other = |b: &v1::HeartbeatRequest| b.targets.iter().map(|t| t.target).eq([other]);
    let mut beats = metadata.1.beats.subscribe();
    let told = beats.wait_for(|beats| beats.iter().skip(before).any(of_other));
    drop(timeout(PATIENCE, told).await.unwrap().unwrap());
    put(&peer, other, 6, 1).await.unwrap();
    daemon.stop().await.unwrap();
}
