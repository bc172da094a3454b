//! What belongs to a trace is told the other side, if that knows of traces.

mod support;

use bytes::Bytes;
use prost::Message;
use std::sync::Arc;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use weft_net::trace::{self, Ended, Side, Span, carried};
use weft_net::{Outgoing, Transport, tcp};
use weft_proto::{Error, ErrorKind, Result, op, v1};

/// Where servers are reached.
fn host() -> &'static str {
    "127.0.0.1"
}

fn transport() -> Arc<dyn Transport> {
    tcp()
}

fn hello(features: u64) -> Vec<u8> {
    v1::Hello { version: 1, min_version: 1, features, ..Default::default() }.encode_to_vec()
}

async fn next(ended: &mut mpsc::UnboundedReceiver<Ended>) -> Ended {
    timeout(PATIENCE, ended.recv()).await.expect("a span ends").unwrap()
}

/// One test, since spans are collected once in a process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_is_followed_from_process_to_process() {
    let (collected, mut ended) = mpsc::unbounded_channel();
    trace::collect(1.0, move |span| drop(collected.send(span)));
    let far = Server::start(echo(), options()).await;
    // It asks another in a task of its own.
    let near = Handle::new({
        let far = peer(&far.address);
        move |request| {
            let far = far.clone();
            async move {
                if request.op == op::LIST {
                    return Err(Error::new(ErrorKind::Invalid, "a name that nobody is to see"));
                }
                let asked = async move { ask(&far, op::VERIFY, b"far").await };
                let head = tokio::spawn(carried(asked)).await.unwrap()?;
                Ok(Outgoing::message(&head))
            }
        }
    });
    let near = Server::start(near, options()).await;
    let peer = peer(&near.address);

    // Who is not traced leaves nothing behind.
    assert_eq!(ask(&peer, op::GET, b"near").await.unwrap(), "far");
    let mut span = Span::root("operation");
    span.note("weft.inode", 7);
    let answer = span.around(ask(&peer, op::GET, b"near")).await;
    assert_eq!(answer.unwrap(), "far");
    let mut all = Vec::new();
    while all.len() < 5 {
        all.push(next(&mut ended).await);
    }
    let root = all.iter().find(|s| s.parent.is_none()).unwrap();
    assert_eq!((root.name, root.side, &root.error), ("operation", Side::Internal, &None));
    assert!(root.attributes.contains(&("weft.inode", 7.into())), "{root:?}");
    let (mut above, mut took) = (root.context, root.took);
    let chain = [
        ("GET", Side::Client, false),
        ("GET", Side::Server, true),
        ("VERIFY", Side::Client, false),
        ("VERIFY", Side::Server, true),
    ];
    for (name, side, remote) in chain {
        let part = all.iter().find(|s| s.parent == Some(above.span)).unwrap();
        assert_eq!((part.name, part.side, part.remote), (name, side, remote));
        assert_eq!(part.context.trace, root.context.trace);
        assert!(part.took <= took, "{part:?} took longer than what it is a part of");
        (above, took) = (part.context, part.took);
    }

    // What fails is told by its kind.
    let refused: Result<Bytes> = Span::root("refused").around(ask(&peer, op::LIST, b"")).await;
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Invalid);
    for _ in 0..3 {
        let part = next(&mut ended).await;
        assert_eq!(part.error.as_deref(), Some("Invalid"), "{part:?}");
    }
    what_is_given_up_is_told(&mut ended).await;
    older_peers_are_asked_as_before().await;
    garbage_ends_its_connection(&near).await;
}

async fn what_is_given_up_is_told(ended: &mut mpsc::UnboundedReceiver<Ended>) {
    let (service, mut held) = holding();
    let holds = Server::start(service, options()).await;
    let waiting = support::peer(&holds.address);
    let waits = Span::root("given up").around(async move { ask(&waiting, op::GET, b"").await });
    let waits = tokio::spawn(waits);
    let kept = held.recv().await.unwrap();
    waits.abort();
    for name in ["GET", "given up"] {
        let part = next(ended).await;
        assert_eq!((part.name, part.error.as_deref()), (name, Some("given up")));
    }
    kept.answer.send(Ok(Outgoing::default())).unwrap();
    assert_eq!(next(ended).await.side, Side::Server);
}

/// A peer that knows nothing of traces.
async fn older_peers_are_asked_as_before() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = peer(&listener.local_addr().unwrap().to_string());
    let operation = Span::root("operation").around(async move { ask(&peer, op::GET, b"x").await });
    let asked = tokio::spawn(operation);
    let (mut socket, _) = listener.accept().await.unwrap();
    let read = async |socket: &mut TcpStream| {
        let mut header = [0; 32];
        socket.read_exact(&mut header).await.unwrap();
        let len = u32::from_le_bytes(header[16..20].try_into().unwrap());
        let mut head = vec![0; len as usize];
        socket.read_exact(&mut head).await.unwrap();
        (header, head)
    };
    let (said, _) = read(&mut socket).await;
    let id = |header: &[u8; 32]| u64::from_le_bytes(header[8..16].try_into().unwrap());
    socket.write_all(&frame(2, op::HELLO, id(&said), &hello(0), &[])).await.unwrap();
    let (request, head) = read(&mut socket).await;
    let plain = Bytes::from_static(b"x").encode_to_vec();
    assert_eq!((request[5], &head), (1, &plain));
    socket.write_all(&frame(2, op::GET, id(&request), &head, &[])).await.unwrap();
    assert_eq!(asked.await.unwrap().unwrap(), "x");
}

async fn garbage_ends_its_connection(server: &Server) {
    let place = [1; 24];
    // Too short for a place; an answer that has one; flags that there are not.
    for (kind, head) in [(0x11, &place[..23]), (0x11, &[]), (0x12, &place), (0x21, &place)] {
        let mut socket = TcpStream::connect(&server.address).await.unwrap();
        socket.write_all(&frame(1, op::HELLO, 1, &hello(1), &[])).await.unwrap();
        socket.write_all(&frame(kind, op::GET, 2, head, &[])).await.unwrap();
        let mut rest = Vec::new();
        let end = timeout(PATIENCE, socket.read_to_end(&mut rest)).await;
        end.expect("the connection ends").unwrap();
        assert!(rest.len() > 32 && rest[5] == 2, "the hello was answered");
        assert_eq!(&rest[6..8], &op::HELLO.to_le_bytes());
    }
    // No place at all is none.
    let mut socket = TcpStream::connect(&server.address).await.unwrap();
    socket.write_all(&frame(1, op::HELLO, 1, &hello(1), &[])).await.unwrap();
    socket.write_all(&frame(0x11, op::GET, 2, &[0; 24], &[])).await.unwrap();
    let mut answers = [0; 32];
    socket.read_exact(&mut answers).await.unwrap();
    assert_eq!(answers[5], 2);
}
