//! The suite over a network in memory that moves payloads as RDMA does, by connections that look
//! for what their card has done instead of sleeping.
#![cfg(feature = "sim")]

#[path = "suite/calls.rs"]
mod calls;
#[path = "suite/faults.rs"]
mod faults;
mod support;

use std::sync::{Arc, LazyLock};
use std::time::Duration;
use weft_net::{Fabric, Transport};

/// Where servers are reached.
fn host() -> &'static str {
    "127.0.0.1"
}

/// What the suite runs over.
fn transport() -> Arc<dyn Transport> {
    static FABRIC: LazyLock<Arc<Fabric>> =
        LazyLock::new(|| Fabric::with_busy_poll(Duration::from_millis(1)));
    FABRIC.host("127.0.0.1")
}

#[tokio::test]
async fn no_connection_waits_to_be_woken_while_it_may_look() {
    use support::*;
    let counts = async |fabric: Arc<Fabric>| {
        let host = fabric.host("a");
        let listener = host.bind(&"a:0".parse().unwrap()).await.unwrap();
        let address = listener.local_address().unwrap().to_string();
        let (_stop, stopped) = tokio::sync::watch::channel(false);
        let serving = tokio::spawn(weft_net::serve(listener, echo(), options(), stopped));
        let peer = weft_net::Peers::new(host, identity("client", None)).peer(&address);
        for _ in 0..100 {
            assert_eq!(ask(&peer, ECHO, b"x").await.unwrap(), "x");
        }
        let waits = fabric.waits();
        serving.abort();
        waits
    };
    assert_eq!(counts(Fabric::with_busy_poll(Duration::from_secs(3600))).await, 0);
    assert!(counts(Fabric::new()).await > 0);
}
