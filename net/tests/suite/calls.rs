//! Calls that succeed, fail by themselves, are many, or are dropped.

use crate::support::*;
use crate::transport;
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use weft_net::{Body, Buffer, Incoming, Outgoing, Peers, ServerOptions, Service, Way};
use weft_proto::{Error, ErrorKind, Result, op, v1};

/// Sizes around every threshold in the code, and in between.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        0usize..40,
        1000usize..1050,
        4090usize..4100,
        16370usize..16400,
        65500usize..65600,
        0usize..200_000,
    ]
}

#[derive(Clone, Debug)]
struct Case {
    head: usize,
    pieces: Vec<usize>,
    /// Where the answer goes: fresh, or buffers cut at these places.
    into: Option<Vec<usize>>,
    seed: u8,
}

fn case() -> impl Strategy<Value = Case> {
    let into = prop::option::of(prop::collection::vec(0usize..300_000, 0..4));
    (size(), prop::collection::vec(size(), 0..4), into, any::<u8>())
        .prop_map(|(head, pieces, into, seed)| Case { head, pieces, into, seed })
}

fn bytes(len: usize, seed: u8) -> Bytes {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

async fn round_trip(peer: Arc<weft_net::Peer>, case: Case) {
    let head = bytes(case.head, case.seed);
    let send: Vec<Bytes> = case.pieces.iter().map(|&len| bytes(len, case.seed ^ 0x55)).collect();
    let sent: Vec<u8> = send.concat();
    let into: Vec<Buffer> = match &case.into {
        None => vec![],
        Some(cuts) => {
            let mut whole = Buffer::take(sent.len());
            let mut parts: Vec<_> =
                cuts.iter().map(|&cut| whole.split_to(cut.min(whole.len()))).collect();
            parts.push(whole);
            parts
        }
    };
    let lens: Vec<usize> = into.iter().map(|b| b.len()).collect();
    let answer =
        peer.exchange_op::<_, Bytes>(ECHO, &head, Body { send, into }, soon()).await.unwrap();
    assert_eq!(answer.head, head);
    assert!(answer.payload.concat() == sent, "payload of {case:?}");
    if case.into.is_some() {
        assert_eq!(answer.payload.iter().map(|b| b.len()).collect::<Vec<_>>(), lens);
    }
}

#[test]
fn whatever_is_sent_comes_back_as_it_was() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (server, peer) = runtime.block_on(async {
        let server = Server::start(echo(), options()).await;
        let peer = peer(&server.address);
        (server, peer)
    });
    proptest!(ProptestConfig::with_cases(100), |(cases in prop::collection::vec(case(), 1..8))| {
        runtime.block_on(async {
            let mut calls = JoinSet::new();
            for case in cases {
                calls.spawn(round_trip(peer.clone(), case));
            }
            calls.join_all().await;
        });
    });
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_calls_are_in_flight_and_answered_last_first() {
    let (service, mut held) = holding();
    let server = Server::start(service, options()).await;
    let peer = peer(&server.address);
    let mut calls = JoinSet::new();
    for i in 0..1000u64 {
        let peer = peer.clone();
        calls.spawn(async move {
            assert_eq!(peer.call_op::<u64, u64>(ECHO, &i, soon()).await.unwrap(), i);
        });
    }
    let mut waiting = Vec::new();
    while waiting.len() < 1000 {
        waiting.push(held.recv().await.unwrap());
    }
    let connections: HashSet<_> = waiting.iter().map(|h| h.request.peer.address.clone()).collect();
    assert_eq!(connections.len(), 1);
    for Held { request, answer } in waiting.into_iter().rev() {
        answer.send(Ok(Outgoing { head: request.head, payload: vec![] })).unwrap();
    }
    calls.join_all().await;
}

#[tokio::test]
async fn an_answer_lands_in_the_callers_memory() {
    let service = Handle::new(|request| async move {
        assert_eq!(request.payload.as_ptr() as usize % 4096, 0);
        Ok(Outgoing { head: Bytes::new(), payload: vec![request.payload] })
    });
    let server = Server::start(service, options()).await;
    let peer = peer(&server.address);
    let sent = bytes(1 << 20, 3);
    let mut whole = Buffer::take(sent.len());
    let start = whole.as_ptr();
    let into = vec![whole.split_to(300_000), whole.split_to(1), whole];
    let starts: Vec<_> = into.iter().map(|b| b.as_ptr()).collect();

    let payload = put(&peer, ECHO, sent.clone(), into).await.unwrap();
    assert_eq!(payload.iter().map(|b| b.as_ptr()).collect::<Vec<_>>(), starts);
    let whole = Buffer::join(payload);
    assert_eq!(whole.as_ptr(), start);
    assert_eq!(whole, sent);
}

#[tokio::test]
async fn a_payload_of_another_length_is_refused_and_harms_nothing() {
    let server = Server::start(echo(), options()).await;
    let peer = peer(&server.address);
    for len in [0, 1, 99, 101, 300_000] {
        let into = vec![Buffer::take(60), Buffer::take(40)];
        let refused = put(&peer, ECHO, bytes(len, 0), into).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Protocol, "{len}");
    }
    assert_eq!(ask(&peer, ECHO, b"still there").await.unwrap(), "still there");
}

#[tokio::test]
async fn errors_cross_as_they_are_and_a_panic_is_internal() {
    let service = Handle::new(|request| async move {
        if request.op == OTHER {
            panic!("on purpose");
        }
        Err(Error {
            kind: ErrorKind::NotLeader,
            message: "ask another".into(),
            hint: "10.0.0.1:7".into(),
        })
    });
    let server = Server::start(service, options()).await;
    let peer = peer(&server.address);
    let error = ask(&peer, ECHO, b"").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotLeader);
    assert_eq!((error.message.as_str(), error.hint.as_str()), ("ask another", "10.0.0.1:7"));
    assert_eq!(ask(&peer, OTHER, b"").await.unwrap_err().kind, ErrorKind::Internal);
    assert_eq!(ask(&peer, ECHO, b"").await.unwrap_err().kind, ErrorKind::NotLeader);
    assert_eq!(ask(&peer, op::PING, b"").await.unwrap(), "");
    assert_eq!(ask(&peer, op::HELLO, b"").await.unwrap_err().kind, ErrorKind::Protocol);
}

#[tokio::test]
async fn a_deadline_travels_and_ends_the_call() {
    const MS: Duration = Duration::from_millis(1);
    let (service, mut held) = holding();
    let server = Server::start(service, options()).await;
    let peer = peer(&server.address);
    ask(&peer, op::PING, b"").await.unwrap();
    let (begun, deadline) = (Instant::now(), soon());
    let call = tokio::spawn({
        let peer = peer.clone();
        async move { peer.call_op::<u64, u64>(ECHO, &1, deadline).await }
    });
    let first = held.recv().await.unwrap();
    // On one machine the clocks are one: the server may see it as late as the request took to come,
    // never early.
    let (seen, took) = (first.request.deadline.unwrap(), begun.elapsed());
    assert!(seen + 2 * MS >= deadline, "{:?} early", deadline - seen);
    assert!(seen <= deadline + took + 2 * MS, "{:?} late after {took:?}", seen - deadline);
    call.abort();

    let deadline = Instant::now() + 300 * MS;
    let unanswered = peer.call_op::<u64, u64>(ECHO, &1, deadline).await;
    assert_eq!(unanswered.unwrap_err().kind, ErrorKind::TimedOut);
    assert!(Instant::now() >= deadline);
    let past = Instant::now();
    assert_eq!(
        peer.call_op::<u64, u64>(ECHO, &1, past).await.unwrap_err().kind,
        ErrorKind::TimedOut
    );
}

#[tokio::test]
async fn a_dropped_call_leaves_the_connection_usable() {
    let (service, mut held) = holding();
    let server = Server::start(service, options()).await;
    let peer = peer(&server.address);
    let mut addresses = HashSet::new();
    for into in [vec![], vec![Buffer::take(3 << 20)]] {
        let call = tokio::spawn({
            let peer = peer.clone();
            async move { put(&peer, ECHO, bytes(10, 0), into).await }
        });
        let Held { request, answer } = held.recv().await.unwrap();
        addresses.insert(request.peer.address.clone());
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        let late = Outgoing { head: Bytes::new(), payload: vec![bytes(3 << 20, 1)] };
        answer.send(Ok(late)).unwrap();

        let next = tokio::spawn({
            let peer = peer.clone();
            async move { ask(&peer, OTHER, b"next").await }
        });
        let Held { request, answer } = held.recv().await.unwrap();
        addresses.insert(request.peer.address.clone());
        answer.send(Ok(Outgoing { head: request.head, payload: vec![] })).unwrap();
        assert_eq!(next.await.unwrap().unwrap(), "next");
    }
    assert_eq!(addresses.len(), 1, "one connection all the time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_window_holds_the_peer_back() {
    const PIECE: usize = 256 << 10;
    let now = Arc::new(AtomicUsize::new(0));
    let peak = Arc::new(AtomicUsize::new(0));
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let service = Handle::new({
        let (now, peak, gate) = (now.clone(), peak.clone(), gate.clone());
        move |request| {
            let (now, peak, gate) = (now.clone(), peak.clone(), gate.clone());
            async move {
                if request.op == OTHER {
                    return Ok(Outgoing::default());
                }
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let _pass = gate.acquire().await.unwrap();
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(Outgoing::default())
            }
        }
    });
    let mut options = options();
    options.max_in_flight = 4 * PIECE;
    let server = Server::start(service, options).await;
    let client = peer(&server.address);
    let mut calls = JoinSet::new();
    for _ in 0..64 {
        let client = client.clone();
        calls.spawn(async move { put(&client, ECHO, bytes(PIECE, 0), vec![]).await.unwrap() });
    }
    // Another connection is served all the time, and gives this one the time to overrun.
    let other = peer(&server.address);
    while now.load(Ordering::SeqCst) < 4 {
        ask(&other, OTHER, b"").await.unwrap();
    }
    for _ in 0..500 {
        ask(&other, OTHER, b"").await.unwrap();
    }
    assert_eq!(now.load(Ordering::SeqCst), 4);
    gate.add_permits(64);
    calls.join_all().await;
    assert_eq!(peak.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn what_is_told_is_served_in_order_without_an_answer() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let service = Handle::new({
        let heard = heard.clone();
        move |request| {
            heard.lock().unwrap().push(request.head);
            async { Ok(Outgoing::default()) }
        }
    });
    let server = Server::start(service, options()).await;
    let peer = peer(&server.address);
    assert!(!peer.tell_op(ECHO, &Bytes::from_static(b"lost")), "there is no connection yet");
    ask(&peer, op::PING, b"").await.unwrap();
    // More than the window has places for: each gives its place back without an answer.
    for round in 0..5000u32 {
        assert!(peer.tell_op(ECHO, &Bytes::from(round.to_be_bytes().to_vec())));
    }
    while heard.lock().unwrap().len() < 5000 {
        ask(&peer, op::PING, b"").await.unwrap();
    }
    let answers = heard.lock().unwrap();
    assert!(answers.is_sorted(), "served out of order");
}

#[tokio::test]
async fn a_request_over_the_limit_is_refused_and_others_go_on() {
    let whoami = Handle::new(|request| async move { Ok(Outgoing::message(&request.peer.address)) });
    let server = Server::start(whoami, options()).await;
    let peers = Peers::new(transport(), identity("client", None));
    let peer = peers.peer(&server.address);
    let before = ask(&peer, ECHO, b"").await.unwrap();
    let refused = put(&peer, ECHO, Bytes::from(vec![0; (16 << 20) + 1]), vec![]).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Invalid);
    let huge = Bytes::from(vec![0; weft_net::MAX_HEAD]);
    let refused = peer.call_op::<_, Bytes>(ECHO, &huge, soon()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Invalid);
    assert_eq!(ask(&peer, ECHO, b"").await.unwrap(), before, "the same connection");
}

#[tokio::test]
async fn a_full_window_holds_up_only_its_own_way() {
    let (service, mut held) = holding();
    let options = ServerOptions { max_in_flight: 4096, ..options() };
    let server = Server::start(service, options).await;
    let peers = Peers::new(transport(), identity("client", None));
    let common = peers.peer(&server.address);
    let mut calls = JoinSet::new();
    for _ in 0..3 {
        let common = common.clone();
        calls.spawn(async move { put(&common, ECHO, bytes(4096, 0), vec![]).await.unwrap() });
    }
    let first = held.recv().await.unwrap();
    for way in [Way::Freeing, Way::Prompt] {
        let peer = peers.peer_on(&server.address, way);
        assert!(Arc::ptr_eq(&peer, &peers.peer_on(&server.address, way)));
        let call = tokio::spawn(async move { ask(&peer, OTHER, b"on its own way").await });
        let Held { request, answer } = held.recv().await.unwrap();
        assert_eq!(request.op, OTHER);
        answer.send(Ok(Outgoing::default())).unwrap();
        call.await.unwrap().unwrap();
    }
    first.answer.send(Ok(Outgoing::default())).unwrap();
    for _ in 0..2 {
        held.recv().await.unwrap().answer.send(Ok(Outgoing::default())).unwrap();
    }
    calls.join_all().await;
}

const MIB: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_connections_together_hold_no_more_than_the_server_has() {
    let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let service = Handle::new({
        let (now, peak) = (now.clone(), peak.clone());
        move |request| {
            let (now, peak) = (now.clone(), peak.clone());
            async move {
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                // Others get the time to come in, too.
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(Outgoing { head: request.head, payload: vec![] })
            }
        }
    });
    // A quarter is kept back; of the rest, one host gets half: 6 MiB.
    let options = ServerOptions { max_memory: 16 * MIB, ..options() };
    let server = Server::start(service, options).await;
    let mut calls = JoinSet::new();
    for connection in 0..32u8 {
        let peer = peer(&server.address);
        for _ in 0..8 {
            let peer = peer.clone();
            calls.spawn(async move {
                put(&peer, ECHO, bytes(MIB, connection), vec![]).await.unwrap();
            });
        }
    }
    calls.join_all().await;
    let peak = peak.load(Ordering::SeqCst);
    assert!((1..=7).contains(&peak), "{peak} requests of 1 MiB at once");
}

#[tokio::test]
async fn requests_that_wait_for_memory_do_not_stop_one_that_frees_it() {
    let (service, mut held) = holding();
    let options = ServerOptions { max_memory: 8 * MIB, ..options() };
    let server = Server::start(service, options).await;
    // All memory of one kind is held by requests that wait for a small one and for a large one.
    let mut calls = JoinSet::new();
    let mut waiting = Vec::new();
    for _ in 0..12 {
        let peer = peer(&server.address);
        calls.spawn(async move { put(&peer, ECHO, bytes(MIB, 0), vec![]).await.unwrap() });
    }
    while waiting.len() < 3 {
        waiting.push(held.recv().await.unwrap());
    }
    let small = peer(&server.address);
    let call = tokio::spawn(async move { put(&small, OTHER, bytes(40_000, 0), vec![]).await });
    let Held { request, answer } = held.recv().await.unwrap();
    assert_eq!(request.op, OTHER, "every connection has a little memory of its own");
    answer.send(Ok(Outgoing::default())).unwrap();
    call.await.unwrap().unwrap();
    let peers = Peers::new(transport(), identity("client", None));
    let freeing = peers.peer_on(&server.address, Way::Freeing);
    let call = tokio::spawn(async move { put(&freeing, OTHER, bytes(2 * MIB, 0), vec![]).await });
    let Held { request, answer } = held.recv().await.unwrap();
    assert_eq!((request.op, request.payload.len()), (OTHER, 2 * MIB), "memory is kept back");
    answer.send(Ok(Outgoing::default())).unwrap();
    call.await.unwrap().unwrap();
    // What frees memory lets all others in.
    waiting.into_iter().for_each(|held| held.answer.send(Ok(Outgoing::default())).unwrap());
    for _ in 0..9 {
        held.recv().await.unwrap().answer.send(Ok(Outgoing::default())).unwrap();
    }
    calls.join_all().await;
}

/// Answers with as many MiB as the request asks for.
struct Reads {
    now: AtomicUsize,
    peak: AtomicUsize,
}

#[async_trait::async_trait]
impl Service for Reads {
    async fn call(&self, request: Incoming) -> weft_proto::Result<Outgoing> {
        let len = usize::from(request.head[request.head.len() - 1]) * MIB;
        let now = self.now.fetch_add(len, Ordering::SeqCst) + len;
        self.peak.fetch_max(now, Ordering::SeqCst);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        self.now.fetch_sub(len, Ordering::SeqCst);
        Ok(Outgoing { head: Bytes::new(), payload: vec![vec![0; len].into()] })
    }

    fn weigh(&self, _: u16, head: &Bytes) -> usize {
        usize::from(head[head.len() - 1]) * MIB
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_weighed_before_they_are_made() {
    let reads = Arc::new(Reads { now: AtomicUsize::new(0), peak: AtomicUsize::new(0) });
    let options = ServerOptions { max_memory: 32 * MIB, ..options() };
    let server = Server::start(reads.clone(), options).await;
    let peers: Vec<_> = (0..4).map(|_| peer(&server.address)).collect();
    let mut calls = JoinSet::new();
    for call in 0..64u8 {
        let peer = peers[usize::from(call % 4)].clone();
        let mebibytes = 1 + call % 5;
        calls.spawn(async move {
            let head = Bytes::copy_from_slice(&[mebibytes]);
            let answer =
                peer.exchange_op::<_, Bytes>(ECHO, &head, Body::default(), soon()).await.unwrap();
            assert_eq!(answer.payload.concat().len(), usize::from(mebibytes) * MIB);
        });
    }
    calls.join_all().await;
    // A payload makes no difference, so that none is taken.
    let head = Bytes::copy_from_slice(&[1]);
    let body = Body { send: vec![bytes(1, 1)], into: vec![] };
    let refused = peers[0].exchange_op::<_, Bytes>(ECHO, &head, body, soon()).await;
    assert_eq!(refused.map(drop).map_err(|e| e.kind), Err(ErrorKind::Invalid));
    // Of 24 MiB, one host gets half, and never more than one answer above that.
    let peak = reads.peak.load(Ordering::SeqCst);
    assert!(peak <= 12 * MIB + MIB, "{} MiB were being read at once", peak / MIB);
}

/// Reads what it is asked.
struct Reader;

#[async_trait::async_trait]
impl Service for Reader {
    async fn call(&self, request: Incoming) -> Result<Outgoing> {
        request.decode::<v1::DeleteRequest>().map(|_| Outgoing::default())
    }
}

/// Two bytes each, and hundreds once they are decoded.
#[tokio::test]
async fn a_request_of_very_many_parts_is_not_decoded() {
    let server = Server::start(Arc::new(Reader), options()).await;
    let peer = peer(&server.address);
    let ask = |key: v1::ChunkKey, count| v1::DeleteRequest {
        target: 1,
        chunks: vec![key; count],
        ..Default::default()
    };
    let nothing = v1::ChunkKey::default();
    peer.call(&ask(nothing, 60_000), soon()).await.unwrap();
    let refused = peer.call(&ask(nothing, 100_000), soon()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Invalid, "{refused}");
    // As many that say something are read.
    let segment = Some(v1::SegmentKey { session: 1 << 40, seq: 1 << 20 });
    peer.call(&ask(v1::ChunkKey { segment, shard: 3 }, 60_000), soon()).await.unwrap();
}

#[tokio::test]
async fn who_finds_no_place_is_told_so_and_gets_one_when_there_is() {
    let (service, mut held) = holding();
    let options = ServerOptions { max_connections: 2, ..options() };
    let server = Server::start(service, options).await;
    let mut calls = JoinSet::new();
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let peer = peer(&server.address);
        calls.spawn(async move { ask(&peer, ECHO, b"").await.unwrap() });
        waiting.push(held.recv().await.unwrap());
    }
    let third = peer(&server.address);
    let refused = ask(&third, ECHO, b"").await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unavailable);
    assert!(refused.message.contains("all 2 connections are taken"), "{refused}");
    assert!(refused.message.contains("max_connections"), "{refused}");
    // The others are served all the same.
    waiting.into_iter().for_each(|held| held.answer.send(Ok(Outgoing::default())).unwrap());
    calls.join_all().await;
    let call = tokio::spawn(async move {
        loop {
            match ask(&third, ECHO, b"").await {
                Err(error) => assert_eq!(error.kind, ErrorKind::Unavailable, "{error}"),
                Ok(answer) => return answer,
            }
        }
    });
    held.recv().await.unwrap().answer.send(Ok(Outgoing::default())).unwrap();
    call.await.unwrap();
}

#[tokio::test]
async fn empty_pieces_and_payloads_that_nobody_looks_at_do_no_harm() {
    let server = Server::start(echo(), options()).await;
    let peer = peer(&server.address);
    let piece = bytes(3000, 1);
    let send = vec![Bytes::new(), piece.clone(), Bytes::new(), piece.clone(), Bytes::new()];
    let body = Body { send, into: vec![] };
    let answer = peer.exchange_op::<_, Bytes>(ECHO, &Bytes::new(), body, soon()).await.unwrap();
    assert!(answer.payload.concat() == [&piece[..], &piece[..]].concat());
    for len in [10, 5000, MIB] {
        let none = put(&peer, weft_proto::op::PING, bytes(len, 2), vec![]).await.unwrap();
        assert!(none.concat().is_empty(), "a ping has no answer but that");
    }
    assert_eq!(ask(&peer, ECHO, b"still").await.unwrap(), "still");
}
