//! What the machine itself can do, measured in the same run: nothing built on it is faster.

pub mod disk;
pub mod fuse;
pub mod isal;
pub mod log;
pub mod memory;
pub mod network;
