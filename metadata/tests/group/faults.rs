//! Garbage, strangers, and data folders of others.

use crate::support::*;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use v1::meta_request::Op;
use weft_proto::{ErrorKind, NodeId, op, v1};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_the_port_harms_nobody() {
    let group = Group::start(3, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    let mut noise = 0x1234_5678_u64;
    for round in 0..30 {
        let address = client.leader.clone();
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let bytes: Vec<u8> = (0..200 + round * 50)
            .map(|_| {
                noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (noise >> 56) as u8
            })
            .collect();
        let preface: &[u8] = match round % 3 {
            0 => b"",
            1 => b"WEFT",
            _ => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        };
        // The server may hang up at any point.
        let _ = stream.write_all(preface).await;
        let _ = stream.write_all(&bytes).await;
        // And nonsense in well-formed frames.
        for op in [op::META, op::RAFT, op::SNAPSHOT_PIECE, op::PUT, 999] {
            let nonsense = v1::Extent { file_off: noise, len: noise, source: None };
            let deadline = tokio::time::Instant::now() + PATIENCE;
            let answer = client
                .peers
                .peer(&address)
                .call_op::<_, v1::MetaReply>(op, &nonsense, deadline)
                .await;
            assert!(answer.is_err(), "operation {op} took nonsense");
        }
    }
    client.create("still alive").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_cannot_speak_in_the_group() {
    let group = Group::start(3, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    let address = client.leader.clone();
    let call = |batch: v1::RaftBatch| {
        let peer = client.peers.peer(&address);
        async move {
            let deadline = tokio::time::Instant::now() + PATIENCE;
            peer.call(&batch, deadline).await.unwrap_err().kind
        }
    };
    let batch = v1::RaftBatch { from: 9, ..Default::default() };
    assert_eq!(call(batch).await, ErrorKind::Protocol);
    let batch = v1::RaftBatch { from: 2, cluster: vec![9; 16].into(), ..Default::default() };
    assert_eq!(call(batch).await, ErrorKind::WrongCluster);
    client.create("undisturbed").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_folder_serves_only_its_own_server() {
    let mut group = Group::start(3, |_| {}).await;
    group.leader().await;
    group.stop(3).await;
    let mut config = group.config(3);
    config.data_dir = group.path(3);
    config.id = NodeId(2);
    let (_stop, stopped) = watch::channel(false);
    let e = weft_metadata::run(config, weft_net::tcp(), stopped).await.unwrap_err();
    assert!(e.message.contains("belongs to metadata server 3"), "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_need_a_session_and_a_number() {
    let group = Group::start(1, |_| {}).await;
    let mut client = group.client();
    client.open_session().await;
    for (session, number) in [(0, 1), (client.session, 0)] {
        let request =
            v1::MetaRequest { session, number, op: Some(create("x", 1)), ..Default::default() };
        assert_eq!(client.retry(&request).await.unwrap_err().kind, ErrorKind::Protocol);
    }
    let unknown = v1::MetaRequest {
        session: 12345,
        number: 1,
        op: Some(create("x", 1)),
        ..Default::default()
    };
    assert_eq!(client.retry(&unknown).await.unwrap_err().kind, ErrorKind::SessionExpired);
    let nothing = v1::MetaRequest::default();
    assert_eq!(client.retry(&nothing).await.unwrap_err().kind, ErrorKind::Protocol);
    assert_eq!(
        client.read(Op::GetAttr(v1::GetAttrOp { ino: 999 })).await.unwrap_err().kind,
        ErrorKind::Stale
    );
}
