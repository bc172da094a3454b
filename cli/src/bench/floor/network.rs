//! The framed protocol over loopback TCP, with nothing behind it: payload either way, and calls
//! that carry nothing.

use crate::bench::context::{Context, Sample};
use crate::bench::task::{Outcome, goes_on};
use anyhow::Result;
use bytes::Bytes;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use weft_net::{
    AlignedBuf, Body, Buffer, Identity, Incoming, Outgoing, Peer, Peers, ServerOptions, Service,
    serve, tcp,
};
use weft_proto::{op, v1};

/// Bytes of one payload, as of a shard run.
const PAYLOAD: usize = 1 << 20;
/// Requests in flight.
const DEPTH: u64 = 8;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Takes payloads and drops them; answers a payload where one is asked for.
struct Floor {
    payload: Bytes,
}

impl Service for Floor {
    fn call<'a, 'b>(
        &'a self,
        request: Incoming,
    ) -> Pin<Box<dyn Future<Output = weft_proto::Result<Outgoing>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let payload = if request.op == op::GET { vec![self.payload.clone()] } else { Vec::new() };
        Box::pin(std::future::ready(Ok(Outgoing::with_payload(&(), payload))))
    }
}

pub fn run(context: &Context) -> Result<Vec<Sample>> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut buffer = AlignedBuf::take(PAYLOAD);
    buffer.as_mut_slice().fill(9);
    let payload = Bytes::from(buffer);
    let peer = runtime.block_on(start(payload.clone()))?;
    let (requests, limit) = ((context.size / PAYLOAD as u64).max(1), context.limit);
    let calls = || runtime.block_on(calls(&peer, context.operations, limit));
    Ok(vec![
        context
            .measure("net_write", || runtime.block_on(write(&peer, &payload, requests, limit)))?,
        context.measure("net_read", || runtime.block_on(read(&peer, requests, limit)))?,
        context.measure("net_call", calls)?,
    ])
}

/// Serves on a free port; answers the way there. Ends with the runtime.
async fn start(payload: Bytes) -> Result<Arc<Peer>> {
    let listener = tcp().bind(&"127.0.0.1:0".parse()?).await?;
    let address = listener.local_address()?.to_string();
    let identity = Identity { name: "bench".into(), cluster: None };
    let options = ServerOptions { max_payload: PAYLOAD, ..ServerOptions::new(identity.clone()) };
    let (_, shutdown) = tokio::sync::watch::channel(false);
    tokio::spawn(serve(listener, Arc::new(Floor { payload }), options, shutdown));
    let peer = Peers::new(tcp(), identity).peer(&address);
    peer.call(&v1::TargetStatRequest::default(), Instant::now() + REQUEST_TIMEOUT).await?;
    Ok(peer)
}

async fn write(
    peer: &Arc<Peer>,
    payload: &Bytes,
    requests: u64,
    limit: Duration,
) -> Result<Outcome> {
    let start = Instant::now();
    let mut lanes = tokio::task::JoinSet::new();
    for lane in 0..DEPTH {
        let (peer, payload) = (peer.clone(), payload.clone());
        lanes.spawn(async move {
            let mut done = 0;
            for _ in (lane..requests).step_by(DEPTH as usize) {
                if !goes_on(start.into_std(), limit) {
                    break;
                }
                let body = Body { send: vec![payload.clone()], into: Vec::new() };
                let deadline = Instant::now() + REQUEST_TIMEOUT;
                peer.exchange(&v1::PutRequest::default(), body, deadline).await?;
                done += 1;
            }
            Ok::<_, weft_proto::Error>(done)
        });
    }
    finish(lanes, start).await
}

async fn read(peer: &Arc<Peer>, requests: u64, limit: Duration) -> Result<Outcome> {
    let start = Instant::now();
    let mut lanes = tokio::task::JoinSet::new();
    for lane in 0..DEPTH {
        let peer = peer.clone();
        lanes.spawn(async move {
            let (mut into, mut done) = (vec![Buffer::take(PAYLOAD)], 0);
            for _ in (lane..requests).step_by(DEPTH as usize) {
                if !goes_on(start.into_std(), limit) {
                    break;
                }
                let deadline = Instant::now() + REQUEST_TIMEOUT;
                let body = Body { send: Vec::new(), into };
                into = peer.exchange(&v1::GetRequest::default(), body, deadline).await?.payload;
                done += 1;
            }
            Ok(done)
        });
    }
    finish(lanes, start).await
}

/// `lanes` answer how many requests they made.
async fn finish(
    lanes: tokio::task::JoinSet<weft_proto::Result<u64>>,
    start: Instant,
) -> Result<Outcome> {
    let mut requests = 0;
    for lane in lanes.join_all().await {
        requests += lane?;
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Outcome { bytes: requests * PAYLOAD as u64, seconds, ..Outcome::default() })
}

/// One after the other, each waiting for its answer.
async fn calls(peer: &Peer, count: u64, limit: Duration) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let start = Instant::now();
    for _ in 0..count {
        if !goes_on(start.into_std(), limit) {
            break;
        }
        let begun = Instant::now();
        peer.call(&v1::TargetStatRequest::default(), begun + REQUEST_TIMEOUT).await?;
        outcome.latencies_us.push(begun.elapsed().as_secs_f32() * 1e6);
        outcome.operations += 1;
    }
    outcome.seconds = start.elapsed().as_secs_f64();
    Ok(outcome)
}
