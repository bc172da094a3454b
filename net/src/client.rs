//! The calling side: [`Peers`] knows the addresses, [`Peer`] keeps one connection to each,
//! `Connection` has the calls in flight.

mod calls;
mod connection;
mod peer;

pub use peer::{Peer, Peers};

use crate::buffer::Buffer;
use bytes::Bytes;

/// The payloads of an exchange.
#[derive(Default, Debug)]
pub struct Body {
    /// Goes out after the head, without a copy.
    pub send: Vec<Bytes>,
    /// If not empty, the answer's payload lands in these buffers: each is filled, in order, and
    /// their lengths must add up to the payload's. They are the connection's until the answer came
    /// or it is over, also if the call was dropped or its time is over: the other side may write
    /// there till then.
    pub into: Vec<Buffer>,
}

/// What came back.
#[derive(Debug)]
pub struct Answer<A> {
    /// The message.
    pub head: A,
    /// The buffers of [`Body::into`], filled; or a fresh one; or none if there was no payload.
    pub payload: Vec<Buffer>,
}
