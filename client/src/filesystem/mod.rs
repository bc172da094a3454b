//! The facade: what a mounted filesystem does, by inodes and handles.

mod attrs;
mod data;
mod dirs;
mod facade;
mod fsck;
mod inner;
mod layout_xattr;
mod locks;
mod lookup;
mod names;
mod open;
mod report;
mod write;
mod xattrs;

pub use facade::Filesystem;
pub use report::{Finding, FsckProgress, FsckReport};
