//! The Weft client: one mounted filesystem behind the [`Filesystem`] facade, by inodes and without
//! permission checks, and by paths with the rights of a user, a [`Caller`]. Programs without a
//! runtime of their own use the same in [`blocking`].
//!
//! What holds here:
//! - Written data goes to new segments, durable on every shard ([`weft_segments`]), before a commit
//!   makes it visible (I1); a file's commits are made one after the other.
//! - Every metadata request that changes something carries a number of its session and takes effect
//!   once, however often it is sent (I4).
//! - A write that could not be made durable is reported once on every handle of its file (I8).
//! - No lock is held across I/O, but the one that orders the commits of an inode.
//!
//! All time is `tokio::time` and all chance comes from [`Options::seed`], so that a simulation
//! replays.

#![warn(missing_docs)]

mod access;
pub mod blocking;
mod budget;
mod cache;
mod copies;
mod file;
mod filesystem;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod locks;
mod meta;
mod namespace;
mod options;
mod paths;
mod ranges;
mod tasks;
mod to_the_end;
mod types;

pub use access::{Access, Credentials, allows_in_any_group};
pub use cache::{ContentCache, Forgotten, NameCache};
pub use copies::{copied_bytes, note_copied};
pub use filesystem::{
    Alone, ChunkLook, FileTrace, Filesystem, Finding, FsckProgress, FsckReport, Successor,
};
pub use options::{KeepSession, Options};
pub use paths::{Append, AppendTo, Appends, Caller, OpenFile, ReadItem, Room};
pub use types::{
    Allocate, Attr, Counters, Creator, DirEntry, DirPage, FileKind, HandleId, Lock, LockKind,
    OpenFlags, Opened, Placed, ReadData, Seek, SetAttr, SetTime, StatFs, Via, Warmed, Writing,
};
/// Where a mount keeps what was read.
pub use weft_hot::HotOptions;
/// Locks that a forked process finds as it needs them.
pub use weft_net::sync;
/// What one operation did, and in which processes.
pub use weft_net::trace;
