//! Sessions, opens and orphans.

use crate::support::*;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use v1::meta_request::Op;
use weft_proto::{ErrorKind, v1};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_session_dies_and_a_renewed_one_lives() {
    let group = Group::start(3, |c| c.session_ttl_ms = 600).await;
    let (mut silent, mut lively) = (group.client(), group.client());
    silent.open_session().await;
    lively.open_session().await;
    silent.create("mine").await.unwrap();
    silent.unlink("mine").await.unwrap();
    let inodes = lively.inodes().await;
    let died = Instant::now();
    loop {
        lively.renew(None).await.unwrap();
        if lively.inodes().await < inodes {
            break; // The orphan went with the session that had it open.
        }
        assert!(died.elapsed() < PATIENCE);
        sleep(Duration::from_millis(50)).await;
    }
    assert!(died.elapsed() > Duration::from_millis(400), "it died too early");
    assert_eq!(silent.renew(None).await.unwrap_err().kind, ErrorKind::SessionExpired);
    assert_eq!(silent.create("again").await.unwrap_err().kind, ErrorKind::SessionExpired);
    lively.create("alive").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_inode_outlives_its_name_and_its_leader() {
    let mut group = Group::start(3, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    let attr = client.create("x").await.unwrap();
    let open_seq = client.number;
    client.unlink("x").await.unwrap();
    let get = Op::GetAttr(v1::GetAttrOp { ino: attr.ino });
    sleep(Duration::from_millis(600)).await;
    client.read(get.clone()).await.unwrap();

    let leader = group.leader().await;
    group.kill(leader).await;
    // The new leader has not heard what is open, so it removes nothing.
    assert!(client.renew(None).await.unwrap().need_declare);
    sleep(Duration::from_millis(600)).await;
    client.read(get.clone()).await.unwrap();
    let open = v1::OpenOp { ino: attr.ino, open_seq, write: false };
    assert!(!client.renew(Some(vec![open])).await.unwrap().need_declare);
    sleep(Duration::from_millis(600)).await;
    client.read(get.clone()).await.unwrap();

    let begin = Instant::now();
    client.read(Op::Close(close(attr.ino, open_seq))).await.unwrap();
    while client.read(get.clone()).await.is_ok() {
        assert!(begin.elapsed() < PATIENCE);
        sleep(Duration::from_millis(20)).await;
    }
    let open = Op::Open(v1::OpenOp { ino: attr.ino, open_seq: open_seq + 1, write: false });
    assert!(client.read(open).await.is_err());
}
