//! How a metadata server serves: its limits.

use tokio::sync::mpsc;
use weft_net::ServerOptions;

/// Largest payload of a request: none has one.
const MAX_PAYLOAD: usize = 0;
/// Bytes held for one connection: answers to requests that wait for other clients hold theirs all
/// the while.
const MAX_IN_FLIGHT: usize = 32 << 20;
/// Bytes held for all connections together.
const MAX_MEMORY: usize = 256 << 20;

/// How a metadata server serves.
pub fn options(
    identity: weft_net::Identity,
    max_connections: usize,
    http2: Option<mpsc::Sender<weft_net::BoxStream>>,
    http1: Option<mpsc::Sender<weft_net::BoxStream>>,
) -> ServerOptions {
    ServerOptions {
        identity,
        max_payload: MAX_PAYLOAD,
        max_in_flight: MAX_IN_FLIGHT,
        max_memory: MAX_MEMORY,
        max_connections,
        http2,
        http1,
    }
}
