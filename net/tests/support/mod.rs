//! A server to call, a service to hold requests, and frames made by hand.
#![allow(dead_code, reason = "each test binary uses its own part")]

use crate::transport;
use bytes::Bytes;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use weft_net::{
    Body, Buffer, Identity, Incoming, Outgoing, Peer, Peers, ServerOptions, Service, serve,
};
use weft_proto::{Error, Result, Uuid};

/// Only a hang takes so long, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub const ECHO: u16 = 100;
pub const OTHER: u16 = 101;

/// Far enough that only a hang reaches it.
pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}

type Handler =
    dyn Fn(Incoming) -> Pin<Box<dyn Future<Output = Result<Outgoing>> + Send>> + Send + Sync;

/// A service made of a closure.
pub struct Handle(Box<Handler>);

impl Handle {
    pub fn new<F: Future<Output = Result<Outgoing>> + Send + 'static>(
        f: impl Fn(Incoming) -> F + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self(Box::new(move |request| Box::pin(f(request)))))
    }
}

#[async_trait::async_trait]
impl Service for Handle {
    async fn call(&self, request: Incoming) -> Result<Outgoing> {
        (self.0)(request).await
    }
}

/// Answers with what came.
pub fn echo() -> Arc<Handle> {
    Handle::new(|request| async move {
        let payload = if request.payload.is_empty() { vec![] } else { vec![request.payload] };
        Ok(Outgoing { head: request.head, payload })
    })
}

pub fn identity(name: &str, cluster: Option<u8>) -> Identity {
    Identity { name: name.into(), cluster: cluster.map(|c| Uuid([c; 16])) }
}

pub fn options() -> ServerOptions {
    ServerOptions { max_payload: 16 << 20, ..ServerOptions::new(identity("server", None)) }
}

/// A server on a free port; killed when dropped.
pub struct Server {
    pub address: String,
    pub stop: watch::Sender<bool>,
    pub task: JoinHandle<()>,
}

impl Server {
    pub async fn start(service: Arc<dyn Service>, options: ServerOptions) -> Self {
        Self::start_at(&format!("{}:0", crate::host()), service, options).await
    }

    pub async fn start_at(at: &str, service: Arc<dyn Service>, options: ServerOptions) -> Self {
        let listener = transport().bind(&at.parse().unwrap()).await.unwrap();
        let address = listener.local_address().unwrap().to_string();
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(serve(listener, service, options, stopped));
        Self { address, stop, task }
    }

    /// Cuts all connections, as the death of the process would.
    pub async fn kill(&mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub fn peer(address: &str) -> Arc<Peer> {
    Peers::new(transport(), identity("client", None)).peer(address)
}

pub async fn ask(peer: &Peer, op: u16, head: &'static [u8]) -> Result<Bytes> {
    peer.call_op(op, &Bytes::from_static(head), soon()).await
}

pub async fn put(peer: &Peer, op: u16, payload: Bytes, into: Vec<Buffer>) -> Result<Vec<Buffer>> {
    let body = Body { send: vec![payload], into };
    Ok(peer.exchange_op::<_, Bytes>(op, &Bytes::new(), body, soon()).await?.payload)
}

/// A request that a service was asked, held until the test answers it.
pub struct Held {
    pub request: Incoming,
    pub answer: oneshot::Sender<Result<Outgoing>>,
}

/// A service that gives every request to the test.
pub fn holding() -> (Arc<Handle>, tokio::sync::mpsc::UnboundedReceiver<Held>) {
    let (to_test, held) = tokio::sync::mpsc::unbounded_channel();
    let service = Handle::new(move |request| {
        let (answer, answered) = oneshot::channel();
        let sent = to_test.send(Held { request, answer });
        async move {
            sent.map_err(|_| Error::new(weft_proto::ErrorKind::Unavailable, "the test is over"))?;
            answered.await.unwrap_or_else(|_| Ok(Outgoing::default()))
        }
    });
    (service, held)
}

/// A frame made by the book, not by the code under test.
pub fn frame(kind: u8, op: u16, id: u64, head: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = header(kind, op, id, head.len() as u32, payload.len() as u32);
    frame.extend_from_slice(head);
    frame.extend_from_slice(payload);
    frame
}

pub fn header(kind: u8, op: u16, id: u64, head_len: u32, payload_len: u32) -> Vec<u8> {
    let mut h = b"WEFT\x01".to_vec();
    h.push(kind);
    h.extend_from_slice(&op.to_le_bytes());
    h.extend_from_slice(&id.to_le_bytes());
    h.extend_from_slice(&head_len.to_le_bytes());
    h.extend_from_slice(&payload_len.to_le_bytes());
    h.extend_from_slice(&0u32.to_le_bytes());
    let crc = crc32fast::hash(&h);
    h.extend_from_slice(&crc.to_le_bytes());
    h
}
