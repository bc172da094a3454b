//! What operations share: one file for each sort of records and the rules that hold among them.
//!
//! Nothing here is an operation; nothing sees a clock, a socket or randomness.

pub(crate) mod acl;
pub(crate) mod cluster;
pub(crate) mod content;
pub(crate) mod events;
pub(crate) mod inodes;
pub(crate) mod locks;
pub mod members;
pub(crate) mod names;
pub(crate) mod numbers;
pub(crate) mod qos;
pub(crate) mod quotas;
pub(crate) mod scattered;
pub(crate) mod sessions;
pub(crate) mod usage;
pub(crate) mod xattrs;
