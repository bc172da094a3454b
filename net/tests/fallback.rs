//! A server that was to go over RDMA on a machine without it.

mod support;

use std::sync::Arc;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weft_net::{Fallback, RdmaOptions, Transport, network_stat, rdma_if_there, tcp_on_loopback};

/// Where servers are reached.
fn host() -> &'static str {
    "127.0.0.1"
}

fn transport() -> Arc<dyn Transport> {
    use std::sync::LazyLock;
    static RDMA: LazyLock<Arc<dyn Transport>> =
        LazyLock::new(|| rdma_if_there(tcp_on_loopback(), RdmaOptions::default()));
    RDMA.clone()
}

#[tokio::test]
async fn without_cards_all_goes_over_tcp_and_who_asks_is_told_why() {
    if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut all| all.next().is_some()) {
        println!("not tested: what a machine without RDMA says; this one has a device");
        return;
    }
    let server = Server::start(echo(), options()).await;
    let peer = peer(&server.address);
    assert_eq!(ask(&peer, ECHO, b"hello").await.unwrap(), "hello");

    // Nothing better was tried.
    transport().tried(&server.address.parse().unwrap(), Err("no hello".into()));
    let [Fallback { server: None, why }] = &transport().fallbacks()[..] else {
        panic!("{:?}", transport().fallbacks())
    };
    let known = ["libibverbs", "this kernel has no RDMA", "no RDMA device", "librdmacm", "5.12"];
    assert!(known.iter().any(|known| why.contains(known)), "{why}");
    let (served, calls) = (network_stat(true, &*transport()), network_stat(false, &*transport()));
    assert_eq!((served.fallbacks.len(), &served.fallbacks[0].why), (1, why));
    assert!(served.tcp > 0 && served.rdma == 0, "{served:?}");
    assert!(calls.tcp > 0 && calls.fallbacks == served.fallbacks, "{calls:?}");
    assert_eq!(calls.fallback_count, 1);

    // So does a caller that has cards.
    let mut stream = transport().stream(&server.address.parse().unwrap()).await.unwrap();
    stream.write_all(b"WRDM").await.unwrap();
    let mut said = Vec::new();
    let all = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said));
    all.await.expect("it is told, and the connection closed").unwrap();
    assert!(String::from_utf8_lossy(&said).contains(why), "{said:?}");
}

#[test]
fn what_a_daemon_is_not_configured_for_is_as_its_environment_says() {
    let said = |address: &str, traffic_class, busy_poll_us| RdmaOptions {
        addresses: address.parse().into_iter().collect(),
        traffic_class,
        busy_poll_us,
        ..RdmaOptions::default()
    };
    let environment = said("10.0.0.1", Some(1), 1);
    assert_eq!(RdmaOptions::default().or(&environment), environment);
    let own = said("10.0.0.2", Some(0), 2);
    assert_eq!(own.clone().or(&environment), own);
}
