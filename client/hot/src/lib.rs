//! The hot tier of a mount: content that was read, kept on a drive of this machine.
//!
//! A segment is written once, and its id is never used twice. So what is kept under that id is
//! never out of date, no lease is needed for it, and nobody has to take it back: which segments a
//! file consists of is what leases are about, and that is asked as without a hot tier
//! (decision 064).
//!
//! A read follows [`tier`] → [`index`] (where it lies) → [`store`] (the file) → [`record`] (whether
//! it is what it should be). What the targets had to be asked for goes the other way, by a
//! [`writer`] for which nobody waits.
//!
//! What holds here:
//! - A byte is answered only from a block that matches its checksum, of a record that names its
//!   piece (I3): what a crash, a worn drive or a writer that was faster left is a miss.
//! - No read fails, or waits for long, because of this drive.
//! - Nothing is kept that was not verified before.

#![warn(missing_docs)]

#[cfg(feature = "fuzz")]
pub mod fuzz;
mod index;
mod list;
mod metrics;
mod piece;
mod record;
mod shared;
mod store;
mod tier;
mod writer;

pub use piece::{PIECE, Piece, pieces};
pub use shared::HotOptions;
pub use tier::Hot;
