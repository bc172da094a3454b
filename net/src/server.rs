//! The answering side: accepts connections, hands HTTP/2 to others, and runs a [`Service`].

mod budget;
mod door;
mod listen;
mod seated;
mod session;
mod window;

pub use listen::serve;

use crate::hello::{Identity, PeerInfo};
use crate::stream::BoxStream;
use bytes::Bytes;
use prost::Message;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;
use weft_proto::{Call, Error, ErrorKind, Result, parts};

/// Most parts of a request: each takes up to some hundred bytes once it is decoded. One for each
/// [`PART`] bytes more, as those have that mean something, up to [`COUNTED`].
const MAX_PARTS: usize = 1 << 16;
const PART: usize = 8;
const COUNTED: usize = 2 << 20;
/// Heads of so few bytes have not many.
const UNCOUNTED: usize = 4 << 10;

/// What a daemon does with requests. Called concurrently, from as many connections as there are.
#[async_trait::async_trait]
pub trait Service: Send + Sync + 'static {
    /// Answers one request. It runs on although the caller has gone: what was begun is ended. An
    /// unknown operation should be answered with `Protocol`; a panic is answered with `Internal`.
    async fn call(&self, request: Incoming) -> Result<Outgoing>;

    /// How many bytes the answer to a request will have, as far as can be told: it is served only
    /// once there is memory for them, and refused if it has a payload. Not asked of heads over
    /// 64 KiB: what would be answered at length, the service refuses then.
    fn weigh(&self, _op: u16, _head: &Bytes) -> usize {
        0
    }
}

/// A request.
#[derive(Debug)]
pub struct Incoming {
    /// The operation.
    pub op: u16,
    /// An encoded message.
    pub head: Bytes,
    /// Exactly as sent; its start is aligned to 4096 bytes. Drop it soon: it is recycled then.
    pub payload: Bytes,
    /// Who asks.
    pub peer: Arc<PeerInfo>,
    /// When the caller stops to wait.
    pub deadline: Option<Instant>,
}

impl Incoming {
    /// The message that was sent. Errors: `Protocol` if it does not read, or is of another
    /// operation; `Invalid` if it would take far more memory than its bytes.
    pub fn decode<C: Call>(&self) -> Result<C> {
        let wrong =
            |why: String| Error::new(ErrorKind::Protocol, format!("operation {}: {why}", self.op));
        if self.op != C::OP {
            return Err(wrong(format!("taken for {}", C::OP)));
        }
        let most = MAX_PARTS + self.head.len().min(COUNTED) / PART;
        if self.head.len() > UNCOUNTED && !parts::has_at_most::<C>(most, &self.head) {
            let what = format!("operation {}: more than {most} parts: split it", self.op);
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        C::decode(self.head.clone()).map_err(|e| wrong(e.to_string()))
    }

    /// Answers by what `serve` makes of the message.
    pub async fn answer<C: Call, F>(&self, serve: impl FnOnce(C) -> F) -> Result<Outgoing>
    where
        F: Future<Output = Result<C::Answer>>,
    {
        Ok(Outgoing::message(&serve(self.decode()?).await?))
    }

    /// As [`Self::answer`], with payload.
    pub async fn answer_with_payload<C: Call, F>(
        &self,
        serve: impl FnOnce(C) -> F,
    ) -> Result<Outgoing>
    where
        F: Future<Output = Result<(C::Answer, Vec<Bytes>)>>,
    {
        let (answer, payload) = serve(self.decode()?).await?;
        Ok(Outgoing::with_payload(&answer, payload))
    }
}

/// An answer.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// An encoded message.
    pub head: Bytes,
    /// Written after the head, without a copy.
    pub payload: Vec<Bytes>,
}

impl Outgoing {
    /// An answer without payload.
    pub fn message(head: &impl Message) -> Self {
        Self::with_payload(head, Vec::new())
    }

    /// An answer with payload.
    pub fn with_payload(head: &impl Message, payload: Vec<Bytes>) -> Self {
        Self { head: head.encode_to_vec().into(), payload }
    }
}

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// How the server presents itself to who connects.
    pub identity: Identity,
    /// Longest payload of a request, in bytes; a longer one is answered with `Invalid`. Nobody may
    /// send more than [`crate::MAX_PAYLOAD`].
    pub max_payload: usize,
    /// Payload bytes of one connection that are held at once, of requests being served and of
    /// answers not yet written. Above it, the connection is not read. One request always fits.
    pub max_in_flight: usize,
    /// Bytes of requests and answers that are held at once, of all connections together. Beyond a
    /// little that each may always hold, a connection that finds none left waits; see
    /// [`crate::Way`] too.
    pub max_memory: usize,
    /// Most connections at once. Idle ones make room for others, and so do those of the host that
    /// has most; who finds no place is told so.
    pub max_connections: usize,
    /// Takes connections that start with the HTTP/2 preface, with the preface still to be read.
    /// Without it they are closed.
    pub http2: Option<mpsc::Sender<BoxStream>>,
    /// The same, of HTTP/1: people and monitors look at this process so.
    pub http1: Option<mpsc::Sender<BoxStream>>,
}

impl ServerOptions {
    /// Limits for a few peers that ask for little, and no HTTP/2.
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            max_payload: 1 << 20,
            max_in_flight: 64 << 20,
            max_memory: 256 << 20,
            max_connections: 1024,
            http2: None,
            http1: None,
        }
    }
}
