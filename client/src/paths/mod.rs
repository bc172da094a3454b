//! The facade by paths: what a program does with files that has no kernel in front of it.
//!
//! A [`Caller`] acts with credentials. Every call walks its path from a directory, asks [`access`]
//! for permission on the way and at the end, and does then by inodes what was asked for. Errors are
//! those of Linux, in its order.
//!
//! What is not here is policy of a machine (`fs.protected_symlinks`, `fs.protected_regular`), but
//! for links to files of others, which are refused as with `fs.protected_hardlinks`.
//!
//! [`access`]: crate::access

mod appends;
mod attrs;
mod caller;
mod dirs;
mod links;
mod names;
mod open;
mod open_file;
mod read_many;
mod rename;
mod walk;
mod xattrs;

pub use appends::{Append, AppendTo, Appends};
pub use caller::Caller;
pub use open_file::OpenFile;
pub use read_many::{ReadItem, Room};
