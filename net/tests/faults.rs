//! Over TCP: peers that die, are not there, are of another kind, or speak nonsense.

#[path = "suite/faults.rs"]
mod faults;
mod support;

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;
use std::sync::Arc;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use weft_net::{Body, Buffer, Outgoing, ServerOptions, Transport, tcp};
use weft_proto::{ErrorKind, op, v1};

/// Where servers are reached.
fn host() -> &'static str {
    "127.0.0.1"
}

/// What the suite runs over.
fn transport() -> Arc<dyn Transport> {
    tcp()
}

#[tokio::test]
async fn another_version_is_refused_with_a_clear_error() {
    let server = Server::start(echo(), options()).await;
    let hello = v1::Hello { version: 99, min_version: 98, ..Default::default() };
    let mut socket = TcpStream::connect(&server.address).await.unwrap();
    socket.write_all(&frame(1, op::HELLO, 7, &hello.encode_to_vec(), &[])).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer[5], 3, "a failure");
    let error = v1::ErrorHead::decode(&answer[32..]).unwrap();
    assert_eq!(error.code, ErrorKind::Protocol.code());
    assert!(error.message.contains("98-99"), "{}", error.message);

    // And the other way round.
    let fake =
        FakeServer::start(move |_| Some(frame(2, op::HELLO, 1, &hello.encode_to_vec(), &[]))).await;
    let error = ask(&peer(&fake), ECHO, b"").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Protocol);
    assert!(error.message.contains("98-99"), "{error}");
}

#[tokio::test]
async fn almost_http2_is_garbage() {
    let (to, mut http2) = mpsc::channel(1);
    let mut options = options();
    options.http2 = Some(to);
    let server = Server::start(echo(), options).await;
    let mut socket = TcpStream::connect(&server.address).await.unwrap();
    socket.write_all(b"PRI * HTTP/2.1\r\n\r\nSM\r\n\r\n").await.unwrap();
    assert!(closed(&mut socket).await);
    assert!(http2.try_recv().is_err());
}

/// Reads until the end, which must come.
async fn closed(socket: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    timeout(PATIENCE, socket.read_to_end(&mut rest)).await.is_ok()
}

/// Says to each connection, once it has read its hello, what the test wants.
struct FakeServer;

impl FakeServer {
    async fn start(say: impl Fn(usize) -> Option<Vec<u8>> + Send + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            for n in 0.. {
                let Ok((mut socket, _)) = listener.accept().await else { return };
                let Some(said) = say(n) else { return };
                tokio::spawn(async move {
                    let mut hello = [0; 32];
                    let _ = socket.read_exact(&mut hello).await;
                    let _ = socket.write_all(&said).await;
                    let mut rest = Vec::new();
                    let _ = socket.shutdown().await;
                    let _ = socket.read_to_end(&mut rest).await;
                });
            }
        });
        address
    }
}

fn good_hello(kind: u8) -> Vec<u8> {
    let hello = v1::Hello { version: 1, min_version: 1, ..Default::default() };
    frame(kind, op::HELLO, 1, &hello.encode_to_vec(), &[])
}

/// Bytes that start right and go wrong.
fn nonsense(kind: u8) -> impl Strategy<Value = Vec<u8>> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..300);
    let damaged =
        (any::<prop::sample::Index>(), 1u8..=255, bytes()).prop_map(move |(at, xor, more)| {
            let mut frame = frame(kind, ECHO, 2, b"head", b"payload");
            let at = at.index(32);
            frame[at] ^= xor;
            frame.extend(more);
            frame
        });
    let cut = (any::<prop::sample::Index>(),).prop_map(move |(at,)| {
        let mut frame = frame(kind, ECHO, 2, &[1; 50], &[2; 5000]);
        frame.truncate(at.index(frame.len()));
        frame
    });
    let huge = (any::<u32>(), any::<u32>(), any::<u8>(), bytes()).prop_map(
        |(head, payload, kind, more)| {
            let mut frame = header(kind, ECHO, 2, head.max(5 << 20), payload.max(1 << 30));
            frame.extend(more);
            frame
        },
    );
    let tail = prop_oneof![bytes(), damaged, cut, huge];
    (prop::option::of(Just(())), tail).prop_map(move |(greet, tail)| {
        let mut all = if greet.is_some() { good_hello(kind) } else { vec![] };
        all.extend(tail);
        all
    })
}

#[test]
fn a_server_survives_nonsense() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let whoami = Handle::new(|request| async move {
        assert_eq!(request.peer.name, "client");
        Ok(weft_net::Outgoing::message(&request.peer.address))
    });
    let server = runtime.block_on(Server::start(whoami, options()));
    let peer = peer(&server.address);
    let address = server.address.clone();
    let before = runtime.block_on(ask(&peer, ECHO, b"")).unwrap();
    proptest!(ProptestConfig::with_cases(400), |(said in nonsense(1))| {
        runtime.block_on(async {
            let mut socket = TcpStream::connect(&address).await.unwrap();
            let _ = socket.write_all(&said).await;
            let _ = socket.shutdown().await;
            assert!(closed(&mut socket).await, "the connection was left open");
            // The connection that was there is still the same.
            assert_eq!(ask(&peer, ECHO, b"").await.unwrap(), before);
        });
    });
}

#[test]
fn a_caller_survives_nonsense() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    proptest!(ProptestConfig::with_cases(200), |(said in nonsense(2))| {
        runtime.block_on(async {
            let fake = FakeServer::start(move |_| Some(said.clone())).await;
            let peer = peer(&fake);
            let body = Body { send: vec![], into: vec![Buffer::take(5000)] };
            let head = Bytes::new();
            match peer.exchange_op::<_, Bytes>(ECHO, &head, body, soon()).await {
                // A cut frame that is whole by chance.
                Ok(answer) => assert_eq!(answer.payload.concat(), [2; 5000]),
                Err(e) => assert!(e.kind != ErrorKind::TimedOut, "{e}"),
            }
        });
    });
}

/// What it begins is dropped where it is begun, in the middle of the call.
#[test]
fn a_call_on_a_runtime_that_is_going_away_ends() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (handle, peer) = (runtime.handle().clone(), peer("127.0.0.1:1"));
    drop(runtime);
    let (told, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _gone = handle.enter();
        let mut call = std::pin::pin!(ask(&peer, ECHO, b""));
        let polled =
            call.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        told.send(polled.map(|answer| answer.map_err(|e| e.kind).map(drop)))
    });
    let polled = ended.recv_timeout(PATIENCE).expect("it does not wait for itself");
    assert_eq!(polled, std::task::Poll::Ready(Err(ErrorKind::Unavailable)));
}

#[tokio::test]
async fn a_call_dropped_in_mid_payload_is_drained() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = peer(&listener.local_addr().unwrap().to_string());
    let call = tokio::spawn({
        let peer = peer.clone();
        async move { put(&peer, ECHO, Bytes::new(), vec![Buffer::take(1 << 20)]).await }
    });
    let (mut socket, _) = listener.accept().await.unwrap();
    let request = read_frame(&mut socket).await;
    assert_eq!(request, (op::HELLO, 1));
    socket.write_all(&good_hello(2)).await.unwrap();
    assert_eq!(read_frame(&mut socket).await, (ECHO, 2));
    let answer = frame(2, ECHO, 2, &[], &vec![7; 1 << 20]);
    socket.write_all(&answer[..500_000]).await.unwrap();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    socket.write_all(&answer[500_000..]).await.unwrap();
    let next = tokio::spawn(async move { ask(&peer, OTHER, b"").await });
    assert_eq!(read_frame(&mut socket).await, (OTHER, 3));
    socket.write_all(&frame(2, OTHER, 3, &[], &[])).await.unwrap();
    assert_eq!(next.await.unwrap().unwrap(), "");
}

#[tokio::test]
async fn a_peer_that_is_dropped_closes_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = peer(&listener.local_addr().unwrap().to_string());
    let call = tokio::spawn(async move { ask(&peer, ECHO, b"").await });
    let (mut socket, _) = listener.accept().await.unwrap();
    read_frame(&mut socket).await;
    socket.write_all(&good_hello(2)).await.unwrap();
    read_frame(&mut socket).await;
    call.abort();
    let _ = call.await;
    // Not only does it say no more, it does not listen either.
    let refused =
        async { while socket.write_all(&frame(2, op::PING, 0, &[], &[])).await.is_ok() {} };
    timeout(PATIENCE, refused).await.unwrap();
}

/// The connection is not forgotten meanwhile: what it asked before is at work still.
#[tokio::test]
async fn a_request_that_breaks_off_leaves_the_memory_that_it_had() {
    const MIB: usize = 1 << 20;
    let (service, mut held) = holding();
    let options = ServerOptions { max_memory: 8 * MIB, ..options() };
    let server = Server::start(service, options).await;
    let mut socket = TcpStream::connect(&server.address).await.unwrap();
    socket.write_all(&good_hello(1)).await.unwrap();
    socket.write_all(&frame(1, ECHO, 2, &[], &[])).await.unwrap();
    let at_work = held.recv().await.unwrap();
    socket.write_all(&header(1, ECHO, 3, 0, 4 * MIB as u32)).await.unwrap();
    socket.write_all(&[1; 5000]).await.unwrap();
    socket.shutdown().await.unwrap();
    // The server ends the connection when it has found that nothing more comes.
    socket.read_to_end(&mut Vec::new()).await.unwrap();
    let peer = peer(&server.address);
    let mut call =
        tokio::spawn(async move { put(&peer, OTHER, vec![1; 3 * MIB].into(), vec![]).await });
    let Held { request, answer } = tokio::select! {
        served = held.recv() => served.unwrap(),
        ended = &mut call => panic!("it is not served: {ended:?}"),
    };
    assert_eq!((request.op, request.payload.len()), (OTHER, 3 * MIB));
    answer.send(Ok(Outgoing::default())).unwrap();
    call.await.unwrap().unwrap();
    drop(at_work);
}

/// Operation and id of the next request.
async fn read_frame(socket: &mut TcpStream) -> (u16, u64) {
    let mut header = [0; 32];
    socket.read_exact(&mut header).await.unwrap();
    let word = |i: usize| u32::from_le_bytes(header[i..i + 4].try_into().unwrap()) as usize;
    let mut rest = vec![0; word(16) + word(20)];
    socket.read_exact(&mut rest).await.unwrap();
    (u16::from_le_bytes([header[6], header[7]]), word(8) as u64)
}
