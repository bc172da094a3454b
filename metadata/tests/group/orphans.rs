//! Very many removed files that somebody has open.

use crate::support::*;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_proto::v1;

/// More than are looked at in one go, several times.
const MANY: usize = 3000;
/// As many requests go on at a time.
const AT_ONCE: usize = 16;

/// What is closed goes, wherever it is among those that stay, and nothing is left for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_many_that_are_open_keep_none_that_is_closed() {
    let group = Group::start(1, |c| c.session_ttl_ms = 300_000).await;
    let mut client = group.client();
    client.open_session().await;
    let before = client.inodes().await;
    let requests = Vec::from_iter((0..MANY).map(|_| {
        let open_seq = client.number + 1;
        let op = v1::TmpFileOp { parent: 1, mode: 0o600, open_seq, ..Default::default() };
        v1::MetaRequest { acked_below: 1, ..client.change(Op::TmpFile(op)) }
    }));
    let mut making = JoinSet::new();
    for some in requests.chunks(MANY.div_ceil(AT_ONCE)) {
        let (mut maker, some) = (group.client(), some.to_vec());
        maker.session = client.session;
        making.spawn(async move {
            let mut made = Vec::new();
            for request in some {
                let Reply::Open(open) = maker.retry(&request).await.unwrap() else {
                    panic!("no file was opened");
                };
                let ino = open.attr.unwrap().ino;
                made.push(v1::close_op::Item { ino, open_seq: request.number });
            }
            made
        });
    }
    let mut files = making.join_all().await.concat();
    files.sort_unstable_by_key(|file| file.ino);
    assert!(client.inodes().await >= before + MANY as u64);
    // In this order: nothing of the list behind one that is closed is looked at before it.
    for at in [MANY - 1, MANY / 2, 0] {
        let file = files.remove(at);
        close_all(&mut client, vec![file]).await;
        let begun = Instant::now();
        while client.read(Op::GetAttr(v1::GetAttrOp { ino: file.ino })).await.is_ok() {
            keep_alive(&mut client, begun).await;
        }
    }
    assert!(client.inodes().await >= before + files.len() as u64);
    close_all(&mut client, files).await;
    let begun = Instant::now();
    while client.inodes().await > before {
        keep_alive(&mut client, begun).await;
    }
}

async fn close_all(client: &mut Client, items: Vec<v1::close_op::Item>) {
    client.read(Op::Close(v1::CloseOp { items })).await.unwrap();
}

async fn keep_alive(client: &mut Client, begun: Instant) {
    assert!(begun.elapsed() < PATIENCE);
    client.renew(None).await.unwrap();
    sleep(Duration::from_millis(20)).await;
}
