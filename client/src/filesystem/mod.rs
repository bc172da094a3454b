//! The facade: what a mounted filesystem does, by inodes and handles.

mod attrs;
mod bounds;
mod data;
mod dirs;
mod facade;
mod fsck;
mod hand_over;
mod inner;
pub(crate) mod layout_xattr;
mod locks;
mod lookup;
mod mend;
mod names;
mod open;
pub(crate) mod quota_xattr;
mod quotas;
mod report;
mod take_over;
mod trace;
mod write;
mod xattrs;

pub use facade::Filesystem;
pub use report::{Finding, FsckProgress, FsckReport};
pub use take_over::Successor;
pub use trace::{ChunkLook, FileTrace};
pub use write::Alone;
