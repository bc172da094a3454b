//! The suite over a network in memory that moves payloads as RDMA does.
#![cfg(feature = "sim")]

#[path = "suite/calls.rs"]
mod calls;
#[path = "suite/faults.rs"]
mod faults;
mod support;

use std::sync::{Arc, LazyLock};
use weft_net::{Buffer, Fabric, Outgoing, ServerOptions, Transport};

/// Where servers are reached.
fn host() -> &'static str {
    "127.0.0.1"
}

/// What the suite runs over.
fn transport() -> Arc<dyn Transport> {
    static FABRIC: LazyLock<Arc<Fabric>> = LazyLock::new(Fabric::new);
    FABRIC.host("127.0.0.1")
}

/// A payload of which is known whether anybody still has it.
struct Counted {
    buffer: Buffer,
    _held: Arc<()>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

/// The server reads no more, and the other side's card has no memory for it.
#[tokio::test]
async fn a_call_that_is_dropped_before_it_leaves_is_not_served_and_leaves_no_memory() {
    use bytes::Bytes;
    use support::*;
    const LEN: usize = 100_000;
    let (service, mut held) = holding();
    let options = ServerOptions { max_in_flight: 2 * LEN, ..options() };
    let server = Server::start(service, options).await;
    let peer = peer(&server.address);
    let asks = |len| {
        let peer = peer.clone();
        let head = Bytes::from(vec![1; len]);
        tokio::spawn(async move { peer.call_op::<_, Bytes>(ECHO, &head, soon()).await })
    };
    let mut served = async |len: usize| {
        let Held { request, answer } = held.recv().await.unwrap();
        let (op, head) = (request.op, request.head.len());
        assert!(op == ECHO && head >= len, "{head} bytes of request {op}");
        answer
    };
    let first = asks(LEN);
    let answer = served(LEN).await;
    // The window is full for it, and so is what the card takes without that.
    let second = asks(5 * LEN);
    tokio::task::yield_now().await;
    let payload = Arc::new(());
    {
        let sent = Counted { buffer: Buffer::take(4000), _held: payload.clone() };
        let (sent, into) = (Bytes::from_owner(sent), vec![Buffer::take(4000)]);
        let mut third = std::pin::pin!(put(&peer, OTHER, sent, into));
        tokio::select! {
            biased;
            _ = &mut third => panic!("nobody has answered it"),
            () = tokio::task::yield_now() => {}
        }
    }
    assert_eq!(Arc::strong_count(&payload), 1, "nobody reads it any more");
    answer.send(Ok(Outgoing::default())).unwrap();
    first.await.unwrap().unwrap();
    served(5 * LEN).await.send(Ok(Outgoing::default())).unwrap();
    second.await.unwrap().unwrap();
    let fourth = asks(1000);
    served(1000).await.send(Ok(Outgoing::default())).unwrap();
    fourth.await.unwrap().unwrap();
}
