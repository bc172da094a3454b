//! The calling side: [`Peers`] knows the addresses, [`Peer`] keeps one connection to each,
//! `Connection` has the calls in flight.

mod connection;
mod peer;

pub use peer::{Peer, Peers};

use bytes::{Bytes, BytesMut};

/// The payloads of an exchange.
#[derive(Default, Debug)]
pub struct Body {
    /// Goes out after the head, without a copy.
    pub send: Vec<Bytes>,
    /// If not empty, the answer's payload is read straight into these buffers: each is filled to its
    /// `len()`, in order, and their sum must be the payload's length.
    pub into: Vec<BytesMut>,
}

/// What came back.
#[derive(Debug)]
pub struct Answer<A> {
    pub head: A,
    /// The buffers of [`Body::into`], filled; or one fresh buffer; or nothing if there was no payload.
    pub payload: Vec<BytesMut>,
}
