//! Messages, ids, units, error kinds and layout arithmetic: what all rooms agree on. No I/O.
//!
//! Invariants: wire and disk numbers (`.proto` fields, [`ErrorKind`], [`op`]) are never reused;
//! conversions from the wire check every bound and answer [`ErrorKind::Protocol`] or `Invalid`.

#![warn(missing_docs)]

mod byte_ranges;
mod convert;
mod error;
mod footprint;
mod ids;
pub mod layout;
pub mod locks;
pub mod map;
pub mod mode;
pub mod op;
pub mod parts;
pub mod planted;
pub mod qos;
pub mod rename;
mod role;

/// Generated messages and gRPC stubs.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("weft.v1");
}

/// All messages, described: an encoded `google.protobuf.FileDescriptorSet`.
#[cfg(feature = "fuzz")]
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/weft.v1.descriptors"));

pub use byte_ranges::ByteRanges;
pub use error::{Error, ErrorKind, Result};
pub use footprint::{Footprint, Kind, Makes};
pub use ids::*;
pub use layout::{Geometry, Layout, Profile, exact_size};
pub use op::Call;
pub use role::{Role, Roles};

/// Version of the framed protocol that this build speaks.
pub const PROTOCOL_VERSION: u32 = 1;
/// Oldest version that it accepts from a peer.
pub const MIN_PROTOCOL_VERSION: u32 = 1;

/// A session's request may have a number so much above the lowest that was not acknowledged, less
/// one: what the metadata group keeps of a session is bounded so.
pub const REQUEST_WINDOW: u64 = 1 << 16;
