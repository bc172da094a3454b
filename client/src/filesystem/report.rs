//! What a full check finds, and tells on the way.

use std::collections::BTreeSet;
use std::fmt;
use weft_proto::{ChunkId, SegmentId, TargetId};

/// Something that is not as it should be.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Finding {
    /// A shard of a committed segment is not on its target.
    Missing {
        /// The shard.
        chunk: ChunkId,
        /// Where it should be.
        target: TargetId,
        /// Bytes that it should have.
        expected: u64,
    },
    /// A shard is there with another length than its segment says.
    WrongLength {
        /// The shard.
        chunk: ChunkId,
        /// Where it is.
        target: TargetId,
        /// Bytes that are there.
        length: u64,
        /// Bytes that should be.
        expected: u64,
    },
    /// A shard lies on a target where nobody looks for it.
    Misplaced {
        /// The shard.
        chunk: ChunkId,
        /// Where it is.
        target: TargetId,
    },
    /// Nothing refers to the chunk, no live session owns it, and it waits for no deletion.
    Leaked {
        /// What nobody owns.
        chunk: ChunkId,
        /// Where it is.
        target: TargetId,
    },
    /// A target could not be listed: what lies there was not checked.
    Unreachable {
        /// The target.
        target: TargetId,
        /// What asking it led to.
        why: String,
    },
    /// The namespace contradicts itself.
    Metadata(String),
    /// So many extents show content of which metadata knows that it is lost.
    Lost(u64),
}

impl Finding {
    /// The target on which something is wrong.
    pub fn target(&self) -> Option<TargetId> {
        match self {
            Self::Missing { target, .. }
            | Self::WrongLength { target, .. }
            | Self::Misplaced { target, .. }
            | Self::Leaked { target, .. }
            | Self::Unreachable { target, .. } => Some(*target),
            Self::Metadata(_) | Self::Lost(_) => None,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { chunk, target, .. } => {
                write!(f, "chunk {chunk} is missing on target {target}")
            }
            Self::WrongLength { chunk, target, length, expected } => {
                write!(f, "chunk {chunk} on target {target} has {length} bytes, not {expected}")
            }
            Self::Misplaced { chunk, target } => {
                write!(f, "chunk {chunk} lies on target {target}, where nobody looks for it")
            }
            Self::Leaked { chunk, target } => {
                write!(f, "chunk {chunk} on target {target} belongs to nothing")
            }
            Self::Unreachable { target, why } => {
                write!(f, "target {target} was not checked: {why}")
            }
            Self::Metadata(problem) => f.write_str(problem),
            Self::Lost(extents) => {
                write!(f, "{extents} extents show content that is lost: reading it is an error")
            }
        }
    }
}

/// What a check found.
#[derive(Clone, Default, Debug)]
pub struct FsckReport {
    /// Targets that were listed, or should have been.
    pub targets: u64,
    /// Segments that metadata knows, garbage too.
    pub segments: u64,
    /// Chunks that were found on targets.
    pub chunks: u64,
    /// Chunks of segments that wait for deletion.
    pub garbage_chunks: u64,
    /// Chunks of live sessions that are not committed yet.
    pub uncommitted_chunks: u64,
    /// Inodes, as the namespace's own check counts.
    pub inodes: u64,
    /// Extents, as that counts.
    pub extents: u64,
    /// Inodes without a name, as that counts.
    pub orphans: u64,
    /// What is not as it should be.
    pub findings: Vec<Finding>,
    /// Segments of which so few shards are whole, of those that could be listed, that their content
    /// cannot be made good.
    pub lost: BTreeSet<SegmentId>,
}

impl FsckReport {
    /// Nothing is wrong, and everything was looked at.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Where a check is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FsckProgress {
    /// The namespace checks itself.
    Namespace,
    /// It is mended, in so many looks before this one.
    MendingNamespace(u32),
    /// Listing the chunks of all targets, one after the other.
    Chunks {
        /// The target.
        target: TargetId,
        /// Chunks that were told so far, of all targets.
        listed: u64,
    },
    /// Comparing the chunks with the segments that they should be of.
    Segments {
        /// Segments so far.
        segments: u64,
        /// Chunks that were found to be of one of them.
        explained: u64,
        /// All chunks that were listed.
        chunks: u64,
    },
    /// So many findings are looked at again.
    Again(usize),
    /// So many findings wait to be mended.
    Mending(usize),
    /// Looking for the files that something is wrong with: so many were looked at so far.
    Files(u64),
}
