//! A connection by the second-best way, which is left for the best once that is there.
#![cfg(feature = "sim")]

mod support;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::*;
use weft_net::{Address, BoxStream, Fabric, Link, Listener, Outgoing, Peers, Transport};

/// Where servers are reached.
fn host() -> &'static str {
    "127.0.0.1"
}

/// Counts its links; the best way is there from the second attempt on.
struct TwoWays {
    fabric: Arc<dyn Transport>,
    links: AtomicUsize,
    attempts: AtomicUsize,
}

#[async_trait::async_trait]
impl Transport for TwoWays {
    async fn connect(&self, address: &Address) -> io::Result<Link> {
        self.links.fetch_add(1, Ordering::SeqCst);
        let link = self.fabric.connect(address).await?;
        Ok(Link { retry_after: Some(Duration::from_millis(10)), ..link })
    }

    async fn connect_best(&self, address: &Address) -> io::Result<Link> {
        if self.attempts.fetch_add(1, Ordering::SeqCst) == 0 {
            return Err(io::ErrorKind::HostUnreachable.into());
        }
        self.fabric.connect(address).await
    }

    async fn stream(&self, address: &Address) -> io::Result<BoxStream> {
        self.fabric.stream(address).await
    }

    async fn bind(&self, address: &Address) -> io::Result<Box<dyn Listener>> {
        self.fabric.bind(address).await
    }
}

fn transport() -> Arc<dyn Transport> {
    use std::sync::LazyLock;
    static FABRIC: LazyLock<Arc<Fabric>> = LazyLock::new(Fabric::new);
    FABRIC.host("127.0.0.1")
}

#[tokio::test]
async fn new_calls_go_the_better_way_and_those_under_way_end_where_they_began() {
    let (service, mut held) = holding();
    let server = Server::start(service, options()).await;
    let ways = Arc::new(TwoWays {
        fabric: transport(),
        links: AtomicUsize::new(0),
        attempts: AtomicUsize::new(0),
    });
    let peer = Peers::new(ways.clone(), identity("client", None)).peer(&server.address);
    let begun = tokio::spawn({
        let peer = peer.clone();
        async move { ask(&peer, ECHO, b"begun").await }
    });
    let first = held.recv().await.unwrap();
    let lost = tokio::spawn({
        let peer = peer.clone();
        async move { peer.lost().await }
    });
    // Each call says over which connection it came, by the address of its other end.
    let mut over = first.request.peer.address.clone();
    while over == first.request.peer.address {
        let (answer, ()) = tokio::join!(ask(&peer, OTHER, b"next"), async {
            let Held { request, answer } = held.recv().await.unwrap();
            over = request.peer.address.clone();
            answer.send(Ok(Outgoing { head: request.head, payload: vec![] })).unwrap();
        });
        assert_eq!(answer.unwrap(), "next");
    }
    assert_eq!(ways.links.load(Ordering::SeqCst), 1, "nothing was connected anew");
    assert!(ways.attempts.load(Ordering::SeqCst) >= 2);
    first.answer.send(Ok(Outgoing { head: first.request.head, payload: vec![] })).unwrap();
    assert_eq!(begun.await.unwrap().unwrap(), "begun");
    assert!(!lost.is_finished(), "what is replaced is not lost");
    drop(server);
    lost.await.unwrap();
}
