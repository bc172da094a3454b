//! Over TCP: calls that succeed, fail by themselves, are many, or are dropped.

#[path = "suite/calls.rs"]
mod calls;
#[path = "suite/memory.rs"]
mod memory;
mod support;

use bytes::Bytes;
use std::sync::{Arc, Mutex};
use support::*;
use weft_net::{Outgoing, Transport, tcp};
use weft_proto::op;

/// Whether the other side writes into memory that was given to a call.
const WRITES_LATE: bool = false;

/// Where servers are reached.
fn host() -> &'static str {
    "127.0.0.1"
}

/// What the suite runs over.
fn transport() -> Arc<dyn Transport> {
    tcp()
}

fn hello() -> Vec<u8> {
    let hello = weft_proto::v1::Hello { version: 1, min_version: 1, ..Default::default() };
    prost::Message::encode_to_vec(&hello)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_reads_no_answers_does_not_fill_the_servers_memory() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    const ANSWER: usize = 1 << 20;
    let served = Arc::new(Mutex::new(0usize));
    let service = Handle::new({
        let served = served.clone();
        move |_| {
            *served.lock().unwrap() += 1;
            async { Ok(Outgoing { head: Bytes::new(), payload: vec![vec![0; ANSWER].into()] }) }
        }
    });
    let mut options = options();
    options.max_in_flight = 2 * ANSWER;
    let server = Server::start(service, options).await;
    let socket = tokio::net::TcpStream::connect(&server.address).await.unwrap();
    let (mut reader, mut writer) = socket.into_split();
    writer.write_all(&frame(1, op::HELLO, 1, &hello(), &[])).await.unwrap();
    // On its own: what the server does not read may not fit in the kernel's buffers.
    let requests = tokio::spawn(async move {
        for id in 1..=1000 {
            writer.write_all(&frame(1, ECHO, id, &[], &[0; 4096])).await.unwrap();
        }
        writer
    });
    let other = peer(&server.address);
    let count = || *served.lock().unwrap();
    let mut before = 0;
    while count() == 0 || count() != before {
        before = count();
        for _ in 0..100 {
            ask(&other, op::PING, b"").await.unwrap();
        }
    }
    let made = count();
    assert!(made < 500, "{made} answers of 1 MiB were made for a peer that reads none");
    // Once it reads, all is answered.
    let mut sink = vec![0; 1 << 20];
    let mut left = 1000 * (ANSWER + 32);
    while left > 0 {
        left = left.saturating_sub(reader.read(&mut sink).await.unwrap());
    }
    requests.await.unwrap();
    assert_eq!(*served.lock().unwrap(), 1000);
}
