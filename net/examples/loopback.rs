//! What a call and a byte cost on this machine: `cargo run --release -p weft-net --example
//! loopback`.
//!
//! With `WEFT_TLS_CA`, `WEFT_TLS_CERT` and `WEFT_TLS_KEY` (a server's, for 127.0.0.1) all is
//! encrypted.
//!
//! Client and server share the process and its threads, so CPU figures are both sides together.

use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use weft_net::{
    Body, Buffer, Identity, Incoming, Outgoing, Peer, Peers, ServerOptions, Service, from_env,
    serve,
};
use weft_proto::{Result, op};

const PIECE: usize = 1 << 20;
const PARTS: usize = 8;
const RUN: Duration = Duration::from_secs(2);

struct Store(Bytes);

#[async_trait::async_trait]
impl Service for Store {
    async fn call(&self, request: Incoming) -> Result<Outgoing> {
        Ok(match request.op {
            op::GET => Outgoing { head: request.head, payload: vec![self.0.clone()] },
            _ => Outgoing { head: request.head, payload: vec![] },
        })
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Small,
    Get,
    Put,
}

fn cpu() -> f64 {
    // SAFETY: `usage` is plain data that getrusage fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

async fn one(peer: &Peer, kind: Kind, data: &Bytes, into: Vec<Buffer>) -> Result<Vec<Buffer>> {
    let deadline = Instant::now() + Duration::from_secs(10);
    let (op, send) = match kind {
        Kind::Small => return peer.call_op::<u64, u64>(op::META, &7, deadline).await.map(|_| into),
        Kind::Get => (op::GET, vec![]),
        Kind::Put => (op::PUT, vec![data.clone()]),
    };
    let answer = peer.exchange_op::<u64, u64>(op, &7, Body { send, into }, deadline).await?;
    Ok(answer.payload)
}

async fn measure(name: &str, peer: &Arc<Peer>, kind: Kind, in_flight: usize) -> Result<()> {
    let data = Bytes::from(vec![9; PIECE]);
    let (started, before) = (Instant::now(), cpu());
    let mut callers: JoinSet<Result<u64>> = JoinSet::new();
    for _ in 0..in_flight {
        let (peer, data) = (peer.clone(), data.clone());
        callers.spawn(async move {
            let mut into = match kind {
                Kind::Get => (0..PARTS).map(|_| Buffer::take(PIECE / PARTS)).collect(),
                _ => vec![],
            };
            let mut calls = 0u64;
            while started.elapsed() < RUN {
                into = one(&peer, kind, &data, into).await?;
                calls += 1;
            }
            Ok(calls)
        });
    }
    let mut calls = 0;
    for done in callers.join_all().await {
        calls += done?;
    }
    let (wall, cpu) = (started.elapsed().as_secs_f64(), cpu() - before);
    let each = |x: f64| x / calls as f64 * 1e6;
    match kind {
        Kind::Small => println!(
            "{name} x{in_flight}: {:.0} calls/s, {:.2} us CPU a call, {:.1} us for its caller",
            calls as f64 / wall,
            each(cpu),
            each(wall) * in_flight as f64
        ),
        _ => {
            let gib = calls as f64 * PIECE as f64 / (1u64 << 30) as f64;
            println!("{name} x{in_flight}: {:.2} GiB/s, {:.2} CPU-s/GiB", gib / wall, cpu / gib);
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let transport = from_env()?;
    let listener =
        transport.bind(&"127.0.0.1:0".parse().expect("an address")).await.expect("a free port");
    let address = listener.local_address().expect("bound").to_string();
    let options = ServerOptions {
        max_payload: 2 * PIECE,
        max_in_flight: 64 * PIECE,
        ..ServerOptions::new(Identity { name: "server".into(), cluster: None })
    };
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    let store = Arc::new(Store(vec![5; PIECE].into()));
    tokio::spawn(serve(listener, store, options, stopped));
    let peers = Peers::new(transport, Identity { name: "client".into(), cluster: None });
    let peer = peers.peer(&address);
    let only = std::env::args().nth(1);
    for (name, kind, in_flight) in [
        ("small", Kind::Small, 1),
        ("small", Kind::Small, 64),
        ("small", Kind::Small, 512),
        ("get", Kind::Get, 1),
        ("get", Kind::Get, 8),
        ("get", Kind::Get, 32),
        ("put", Kind::Put, 1),
        ("put", Kind::Put, 8),
    ] {
        if only.as_ref().is_none_or(|o| *o == format!("{name}{in_flight}")) {
            measure(name, &peer, kind, in_flight).await?;
        }
    }
    Ok(())
}
