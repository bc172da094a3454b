//! One connection type for requests with bulk payload.
//!
//! A frame is a 32-byte header, a protobuf head and a raw payload. Many requests are in flight on a
//! connection and answers come in any order; a payload is never copied between the socket and the
//! buffer it is for.
//!
//! - [`Peers`] and [`Peer`]: the calling side. Connects lazily, reconnects with backoff, fails every
//!   call in flight at once when the peer dies.
//! - [`serve`] and [`Service`]: the answering side. Reads no more than its window allows; a panic
//!   of a handler answers `Internal` to that one request.
//! - [`Transport`]: where bytes flow, [`tcp()`] or (feature `sim`) a simulated network.
//!
//! Invariants: nothing here knows what a request means, but for `HELLO` and `PING`; bytes from the
//! network are bounded and checked before they cost memory; all time is tokio's, so that a simulator
//! owns the clock.

mod aligned;
mod client;
mod frame;
mod hello;
mod queue;
mod reader;
mod server;
#[cfg(feature = "sim")]
pub mod sim;
mod tcp;
mod transport;
mod way;

pub use aligned::{AlignedBuf, Region, regions};
pub use client::{Answer, Body, Peer, Peers};
pub use frame::{MAX_HEAD, MAX_PAYLOAD};
pub use hello::{Identity, PeerInfo};
pub use server::{Incoming, Outgoing, ServerOptions, Service, serve};
pub use tcp::tcp;
pub use transport::{BoxStream, Listener, ReadHalf, Stream, Transport, WriteHalf};
pub use way::Way;
