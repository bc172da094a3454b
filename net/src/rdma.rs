//! Frames over RDMA (design, 9): requests and answers are messages between queue pairs; the server
//! moves all payloads, between its buffers and memory of the caller that the request names.
//!
//! - [`rdma()`]: the transport. A connection begins as a stream, on which the server offers a port
//!   of the RDMA connection manager (`offer`, `manager`); where it has none, or none that can be
//!   reached, the stream's network carries the frames as it would without RDMA.
//! - `connection`, `link`, `pump`: one connection over any card (`nic`): `frames`, `post` and
//!   `arrive` are what leaves, what the card is asked for, and what comes; `wire`: the messages;
//!   `memory`: what a card knows of this process's memory, and of that of devices.
//! - `card`, `verbs`: real cards. libibverbs and librdmacm are loaded when the process starts, if
//!   they are there; nothing links to them.
//!
//! Invariants: memory that the other side may write to is given back when its answer has come or
//! its queue pair was destroyed, never before, unless nothing of the request has left, nor will; a
//! request leaves whole or not at all; a server lets nobody into its memory (over iWARP
//! only those it reads from, whose answers to reads are writes).

mod arrive;
mod card;
mod connection;
mod frames;
mod id;
mod link;
mod manager;
mod memory;
mod nic;
mod offer;
mod options;
mod post;
mod pump;
mod state;
mod transport;
mod verbs;
pub(crate) mod wire;

pub use options::RdmaOptions;
pub use transport::{rdma, rdma_if_there};

#[cfg(test)]
mod script;

#[cfg(feature = "sim")]
pub(crate) use in_memory::*;
pub(crate) use memory::Domain;
pub(crate) use nic::Keys;
pub(crate) use offer::{MAGIC, refuse};

/// What a card in memory needs to know.
#[cfg(feature = "sim")]
mod in_memory {
    pub(crate) use super::connection::{RECEIVES, SENDS, Side};
    use super::memory::Domain;
    pub(crate) use super::nic::{Completion, Done, Local, Nic, QueuePair};
    pub(crate) use super::pump::Watch;
    pub(crate) use super::wire::Piece;
    use crate::transport::Link;
    use std::io;
    use std::sync::Arc;
    use std::time::Duration;

    /// A connection over a queue pair that is connected.
    pub(crate) fn connected(
        qp: Box<dyn QueuePair>,
        domain: Arc<Domain>,
        side: Side,
        watch: Watch,
        busy_poll: Duration,
    ) -> io::Result<Link> {
        let connection = super::connection::Connection::new(qp, domain, side)?;
        Ok(super::link::link(connection, watch, None, busy_poll))
    }
}
