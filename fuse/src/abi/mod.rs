//! The kernel's FUSE protocol, version 7 (`linux/fuse.h`): bytes to requests, replies to bytes.
//! Pure functions; nothing here does I/O.
//!
//! Everything is in the byte order of this machine. A request is a header, a record of fixed length
//! that depends on the opcode, and names or data of any length. From `/dev/fuse` the three follow
//! each other; over io_uring they come apart. Lengths that do not add up are an error, never a
//! panic.

mod bytes;
mod errno;
mod init;
mod listing;
mod notice;
pub mod opcode;
mod reply;
mod request;

pub use bytes::Malformed;
pub use errno::Errno;
pub use init::{Init, InitReply, MAX_REQUEST, Wanted, flag, negotiate};
pub use listing::Listing;
pub use notice::{EXPIRES, Notice};
pub use reply::{Answer, Attr, Encoded, Entry, Open, Reply, StatFs, Time, open_flag};
pub use request::{
    Forgotten, Header, Lock, Op, Request, SetAttr, SetTime, decode, decode_parts, operation_len,
};

/// Length of the header of a request.
pub const IN_HEADER: usize = 40;
/// Length of the header of a reply.
pub const OUT_HEADER: usize = 16;

#[cfg(test)]
mod tests;
