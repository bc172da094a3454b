//! A server whose disk is nearly full: the cluster takes nothing new, and all else goes on.

use super::support::{Client, Group, PATIENCE};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_proto::{ErrorKind, InodeId, NodeId, v1};

/// Creates files until that is refused.
async fn fill(client: &mut Client, name: &str) -> u32 {
    let begun = Instant::now();
    for made in 0.. {
        match client.create(&format!("{name}{made}")).await {
            Ok(_) => assert!(begun.elapsed() < PATIENCE, "nobody says that the disk is full"),
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
                assert!(error.message.contains("metadata server 2"), "{error}");
                return made;
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
    unreachable!()
}

async fn available(client: &mut Client) -> Option<u64> {
    match client.read(Op::StatFs(v1::StatFsOp {})).await.unwrap() {
        Reply::StatFs(stat) => stat.available_bytes,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn with_a_full_disk_nothing_new_is_taken_and_the_rest_goes_on() {
    let mut group = Group::start(3, |config| {
        if config.id == NodeId(2) {
            (config.reserve_percent, config.reserve_bytes) = (100, u64::MAX);
        }
    })
    .await;
    let mut client = group.client();
    client.open_session().await;
    let made = fill(&mut client, "first").await;
    // Whoever leads.
    let leader = group.leader().await;
    group.kill(leader).await;
    group.run(leader);
    fill(&mut client, "second").await;
    assert_eq!(available(&mut client).await, Some(0));
    // What makes room, and what keeps a session.
    client.renew(None).await.unwrap();
    let dir = InodeId::ROOT.0;
    let mode = v1::SetAttrOp { ino: dir, mode: Some(0o700), ..Default::default() };
    client.write(Op::SetAttr(mode)).await.unwrap();
    for file in 0..made {
        client.unlink(&format!("first{file}")).await.unwrap();
    }
    // There is more room; then the server is gone altogether.
    let roomy = weft_metadata::Config { reserve_bytes: 0, ..group.config(2) };
    group.kill(2).await;
    group.run_as(roomy);
    let begun = Instant::now();
    while client.create("again").await.is_err() {
        assert!(begun.elapsed() < PATIENCE);
        sleep(Duration::from_millis(20)).await;
    }
    group.kill(2).await;
    group.run(2);
    client.unlink("again").await.unwrap();
    fill(&mut client, "third").await;
    group.kill(2).await;
    let begun = Instant::now();
    while client.create("without it").await.is_err() {
        assert!(begun.elapsed() < PATIENCE);
        sleep(Duration::from_millis(20)).await;
    }
}
