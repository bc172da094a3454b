//! What Prometheus reads of a mount, at an address of its own.

use crate::network;
use anyhow::{Result, ensure};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use weft_control::{Page, Pages, Values};
use weft_net::{Identity, Incoming, Listener, Outgoing, ServerOptions, Service};
use weft_proto::Error;

/// The process that a mount is taken over from, or that was there before, has the address until it
/// ends.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Readers at a time.
const READERS: usize = 64;

struct Metrics;

#[async_trait::async_trait]
impl Pages for Metrics {
    async fn page(&self, path: &str) -> Option<Page> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let mut all = Values::default();
        let help = "The version of this process.";
        all.each("weft_build_info", help, "version", [(version, 1.0)]);
        (path == "/metrics").then(|| weft_control::metrics(all))
    }
}

/// Nobody is served but who reads pages.
struct Nothing;

#[async_trait::async_trait]
impl Service for Nothing {
    async fn call(&self, _: Incoming) -> weft_proto::Result<Outgoing> {
        Err(Error::new(weft_proto::ErrorKind::Protocol, "a mount serves nobody"))
    }
}

/// Has the address answered for as long as this process lives; as soon as it is free: a mount does
/// not fail for that. Errors: it is one that other machines reach, or is none of this machine.
pub async fn start(at: SocketAddr) -> Result<()> {
    let mut listening = listen(at).await;
    if let Err(error) = &listening {
        ensure!(error.kind() == ErrorKind::AddrInUse, "cannot answer Prometheus at {at}: {error}");
        tracing::warn!("{at} is taken: Prometheus is answered there when it is free");
    }
    tokio::spawn(async move {
        loop {
            if let Ok(listener) = listening {
                return serve(listener).await;
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
            listening = listen(at).await;
        }
    });
    Ok(())
}

async fn listen(at: SocketAddr) -> io::Result<Box<dyn Listener>> {
    network::without_certificates().bind(&at.to_string().parse()?).await
}

async fn serve(listener: Box<dyn Listener>) {
    let (http1, connections) = mpsc::channel(16);
    let identity = Identity { name: "mount".into(), cluster: None };
    let options = ServerOptions {
        http1: Some(http1),
        max_connections: READERS,
        // Whoever comes with frames gets little.
        max_payload: 0,
        max_in_flight: 16 << 10,
        max_memory: 1 << 20,
        ..ServerOptions::new(identity)
    };
    let (_never, shutdown) = watch::channel(false);
    let pages = weft_control::serve_pages(Arc::new(Metrics), connections, shutdown.clone());
    tokio::join!(pages, weft_net::serve(listener, Arc::new(Nothing), options, shutdown));
}
