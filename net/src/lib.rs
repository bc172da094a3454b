//! One connection type for requests with bulk payload.
//!
//! A frame is a 32-byte header, a protobuf head and a raw payload. Many requests are in flight on a
//! connection and answers come in any order; a payload is never copied between the network and the
//! buffer it is for.
//!
//! - [`Peers`] and [`Peer`]: the calling side. Connects lazily, reconnects with backoff, fails
//!   every call in flight at once when the peer dies.
//! - [`serve`] and [`Service`]: the answering side. Reads no more than its window allows; a panic
//!   of a handler answers `Internal` to that one request.
//! - [`Transport`]: what frames and payloads cross. [`tls()`], [`tcp()`] and [`rdma()`], and with
//!   feature `sim` [`sim`], a simulated TCP, and [`Fabric`], cards in memory.
//! - [`Credentials`]: what is trusted and shown, [`Subject`]: who is at the other end. Who it is
//!   decides which operations are served (`weft_proto::op`).
//! - [`trace`]: what one operation did, in which processes.
//! - [`Tenants`] and [`Gate`]: what a server does is shared fairly among who asks for it.
//! - [`Buffer`] and [`AlignedBuf`]: memory for payloads, which a transport can register;
//!   [`DeviceMemory`]: that of a GPU, which cards write into by themselves.
//!
//! Invariants: nothing here knows what a request means, but for `HELLO` and `PING`; bytes from the
//! network are bounded and checked before they cost memory; all time is tokio's, so that a
//! simulator owns the clock.
#![warn(missing_docs)]

mod address;
mod aligned;
mod buffer;
pub mod buggify;
mod client;
mod device;
mod dma_buf;
mod environment;
#[cfg(feature = "sim")]
mod fabric;
mod frame;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod hello;
pub mod metrics;
mod network;
mod qos;
mod rdma;
mod server;
pub mod slow;
mod stream;
pub mod sync;
mod tls;
pub mod trace;
mod transport;
mod way;

pub use address::Address;
pub use aligned::{AlignedBuf, Region, after_fork, before_fork, regions};
pub use buffer::{Bringing, Buffer, brought_back};
pub use client::{Answer, Body, Peer, Peers};
pub use device::{Device, DeviceMemory, Placing};
pub use dma_buf::DmaBuf;
pub use environment::from_env;
#[cfg(feature = "sim")]
pub use fabric::Fabric;
pub use frame::{Broken, Encode, Frame, Head, Header, Kind, MAX_HEAD, MAX_PAYLOAD};
pub use hello::{Features, Identity, PeerInfo};
pub use network::{bounded_network_stat, network_stat};
pub use qos::{Class, Gate, Limits, Pass, Policy, Served, Tenant, Tenants, Window};
pub use rdma::{RdmaOptions, rdma, rdma_if_there};
pub use server::{Incoming, Outgoing, ServerOptions, Service, serve};
#[cfg(feature = "sim")]
pub use stream::sim;
pub use stream::tcp::{tcp, tcp_on_loopback, tls};
pub use stream::{BoxStream, ReadHalf, Stream, WriteHalf};
pub use tls::{Confinement, Credentials, Subject, TlsFiles};
pub use transport::{
    Fallback, Fetch, Link, Listener, Opening, Progress, Pump, Receiver, Sender, Speaks, Transport,
    User,
};
pub use way::Way;
