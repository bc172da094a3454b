//! Peers that die, stop, are not there, or are of another kind.

use crate::support::*;
use crate::transport;
use bytes::Bytes;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use weft_net::{Body, Buffer, Outgoing, Peers, ServerOptions};
use weft_proto::ErrorKind;

#[tokio::test]
async fn the_death_of_a_peer_fails_all_calls_at_once_and_its_return_is_found() {
    let (service, mut held) = holding();
    let mut server = Server::start(service, options()).await;
    let peer = peer(&server.address);
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let peer = peer.clone();
        calls.spawn(async move { ask(&peer, ECHO, b"").await });
    }
    let mut waiting = Vec::new();
    for _ in 0..50 {
        waiting.push(held.recv().await.unwrap());
    }
    server.kill().await;
    // Not at their deadline: that would be `TimedOut`.
    for ended in calls.join_all().await {
        assert_eq!(ended.unwrap_err().kind, ErrorKind::Unavailable);
    }

    // Nobody listens: fails, and not only at the deadline.
    assert_eq!(ask(&peer, ECHO, b"").await.unwrap_err().kind, ErrorKind::Unavailable);
    // A deadline bounds the wait for an attempt that is backing off.
    let short = Instant::now() + Duration::from_millis(1);
    let error = peer.call_op::<u64, u64>(ECHO, &1, short).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::TimedOut | ErrorKind::Unavailable));

    let _back = Server::start_at(&server.address, echo(), options()).await;
    let found = timeout(PATIENCE, async {
        loop {
            match ask(&peer, ECHO, b"back").await {
                Ok(answer) => return answer,
                Err(error) => assert_eq!(error.kind, ErrorKind::Unavailable),
            }
        }
    });
    assert_eq!(found.await.unwrap(), "back");
}

#[tokio::test]
async fn a_stopping_server_finishes_what_it_began() {
    let (service, mut held) = holding();
    let mut server = Server::start(service, options()).await;
    let peer = peer(&server.address);
    let call = tokio::spawn({
        let peer = peer.clone();
        async move { ask(&peer, ECHO, b"last").await }
    });
    let Held { request, answer } = held.recv().await.unwrap();
    server.stop.send_replace(true);
    tokio::task::yield_now().await;
    answer.send(Ok(Outgoing { head: request.head, payload: vec![] })).unwrap();
    assert_eq!(call.await.unwrap().unwrap(), "last");
    timeout(PATIENCE, &mut server.task).await.unwrap().unwrap();
    assert_eq!(ask(&peer, ECHO, b"").await.unwrap_err().kind, ErrorKind::Unavailable);
}

#[tokio::test]
async fn another_cluster_is_refused_with_a_clear_error() {
    let mut options = options();
    options.identity = identity("storaged 1", Some(1));
    let server = Server::start(echo(), options).await;
    let peers = Peers::new(transport(), identity("mount", None));
    ask(&peers.peer(&server.address), ECHO, b"").await.unwrap();

    let peers = Peers::new(transport(), identity("mount", None));
    peers.set_cluster(weft_proto::Uuid([2; 16]));
    let error = ask(&peers.peer(&server.address), ECHO, b"").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::WrongCluster);
    for part in ["storaged 1", "mount", "0101", "0202"] {
        assert!(error.message.contains(part), "{error}");
    }
}

#[tokio::test]
async fn http2_is_handed_over_whole() {
    let (to, mut http2) = mpsc::channel(1);
    let options = ServerOptions { http2: Some(to), ..options() };
    let server = Server::start(echo(), options).await;
    let mut ours = transport().stream(&server.address.parse().unwrap()).await.unwrap();
    let said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nand more";
    ours.write_all(said).await.unwrap();
    let mut stream = http2.recv().await.unwrap();
    let mut heard = vec![0; said.len()];
    stream.read_exact(&mut heard).await.unwrap();
    assert_eq!(heard, said);
    stream.write_all(b"answer").await.unwrap();
    let mut answer = [0; 6];
    ours.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"answer");
}

#[tokio::test]
async fn what_is_no_address_cannot_be_reached() {
    for wrong in ["", "nowhere", "a b:1", "unknown://127.0.0.1:1"] {
        let error = ask(&peer(wrong), ECHO, b"").await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable, "{wrong}: {error}");
    }
    assert!(transport().bind(&"unknown://127.0.0.1:0".parse().unwrap()).await.is_err());
}

#[tokio::test]
async fn what_was_answered_before_the_end_is_received() {
    let (service, mut held) = holding();
    let mut server = Server::start(service, options()).await;
    for len in [0, 100, 5000, 3 << 20] {
        let peer = peer(&server.address);
        let into = if len > 0 { vec![Buffer::take(len)] } else { vec![] };
        let call = tokio::spawn(async move { put(&peer, ECHO, Bytes::new(), into).await });
        let Held { answer, .. } = held.recv().await.unwrap();
        let payload = vec![Bytes::from(vec![7; len])];
        answer.send(Ok(Outgoing { head: Bytes::new(), payload })).unwrap();
        server.stop.send_replace(true);
        (&mut server.task).await.unwrap();
        let answer = call.await.unwrap().unwrap();
        assert!(answer.concat() == vec![7; len], "{len} bytes");
        let (service, next) = holding();
        (server, held) = (Server::start(service, options()).await, next);
    }
}

#[tokio::test]
async fn who_vanishes_while_it_waits_for_memory_leaves_all_of_it() {
    let (service, mut held) = holding();
    let options = ServerOptions { max_memory: 8 << 20, ..options() };
    let server = Server::start(service, options).await;
    for _ in 0..5 {
        let gone = peer(&server.address);
        let mut calls = JoinSet::new();
        for _ in 0..12 {
            let gone = gone.clone();
            calls.spawn(async move {
                put(&gone, ECHO, Bytes::from(vec![1; 1 << 20]), vec![Buffer::take(1 << 20)]).await
            });
        }
        // A host gets half of what is not kept back: the fourth waits.
        let mut served = Vec::new();
        while served.len() < 3 {
            served.push(held.recv().await.unwrap());
        }
        drop(gone);
        calls.shutdown().await;
        for Held { answer, .. } in served {
            let payload = vec![Bytes::from(vec![1; 1 << 20])];
            answer.send(Ok(Outgoing { head: Bytes::new(), payload })).unwrap();
        }
    }
}

/// What it asked before is at work still, so that its connection is not forgotten yet.
#[tokio::test]
async fn what_who_vanished_was_sending_takes_no_memory() {
    const MIB: usize = 1 << 20;
    let service = Handle::new(|request| async move {
        if request.op == ECHO {
            std::future::pending::<()>().await;
        }
        Ok(Outgoing::default())
    });
    let options = ServerOptions { max_memory: 8 * MIB, ..options() };
    let server = Server::start(service, options).await;
    let other = peer(&server.address);
    for moment in 0..40 {
        let gone = peer(&server.address);
        ask(&gone, OTHER, b"").await.unwrap();
        let waits = tokio::spawn({
            let gone = gone.clone();
            async move { ask(&gone, ECHO, b"").await }
        });
        tokio::task::yield_now().await;
        ask(&gone, OTHER, b"what was asked before it has come, too").await.unwrap();
        let sends = tokio::spawn(async move {
            let (head, body) = (Bytes::from(vec![1; 2 * MIB]), Body::default());
            let sent = gone.exchange_op::<_, Bytes>(OTHER, &head, body, soon()).await;
            sent.map(|answer| answer.head)
        });
        for _ in 0..moment {
            tokio::task::yield_now().await;
        }
        for call in [waits, sends] {
            call.abort();
            let _ = call.await;
        }
        // It finds as much as ever, at the latest when it is noticed that the other has gone.
        put(&other, OTHER, Bytes::from(vec![1; 3 * MIB]), vec![]).await.unwrap();
    }
}
