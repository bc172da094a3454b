//! The records of quotas. Field numbers are disk format.

use bytes::Bytes;
use prost::Message;
use weft_proto::v1;

/// Limits of one directory, user, group or project, and what is used. No limit is 0.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Quota {
    #[prost(message, required, tag = "1")]
    pub limits: v1::QuotaLimits,
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
    #[prost(uint64, tag = "3")]
    pub inodes: u64,
    /// Since when soft limits are exceeded; 0: they are not.
    #[prost(int64, tag = "4")]
    pub bytes_since: i64,
    #[prost(int64, tag = "5")]
    pub inodes_since: i64,
    /// Of a directory: the one above whose quota it counts for as well; 0: none.
    #[prost(uint64, tag = "6")]
    pub above: u64,
    /// Of a directory: what lies below waits to be marked, or is being marked.
    #[prost(enumeration = "Walk", tag = "7")]
    pub walk: i32,
    /// Of a directory: it is to be one like others again. Goes once nothing counts for it.
    #[prost(bool, tag = "8")]
    pub ends: bool,
    /// Of a directory: where it was.
    #[prost(bytes = "bytes", tag = "9")]
    pub path: Bytes,
    /// Of a directory: the project that it belongs to; 0: none.
    #[prost(uint64, tag = "10")]
    pub project: u64,
}

/// What is to be done to what lies below a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Walk {
    None = 0,
    /// It is marked with the quota of the directory.
    Mark = 1,
    /// It is marked with that of the one above again.
    Unmark = 2,
}

/// What usage is counted of.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Accounting {
    /// The directory below which things are being marked; 0: none.
    #[prost(uint64, tag = "1")]
    pub walking: u64,
    /// Inodes with numbers below this one are counted for their users and groups.
    #[prost(uint64, tag = "2")]
    pub owners_below: u64,
    /// Grows whenever limits are set, or begin to hold.
    #[prost(uint64, tag = "3")]
    pub version: u64,
}

/// All inodes are counted for their users and groups.
pub(crate) const ALL_OWNERS: u64 = u64::MAX;
