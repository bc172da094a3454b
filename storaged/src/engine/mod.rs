//! The engine of one target: chunks on one drive, behind put, get, delete and list.
//!
//! A target is a raw block device or a file, preallocated or sparse:
//!
//! ```text
//! | superblock | journal | chunks: header, data, header, data ...            | superblock |
//! ```
//!
//! and a RocksDB index `chunk → extents, length, checksums` in a directory beside it. The index has
//! no write-ahead log of its own: the journal on the target is that log. A put writes header and
//! data somewhere free, then the committer writes one journal record for all puts and deletes that
//! wait and flushes once, which makes data and record durable together. Then the index learns of it
//! and the callers are answered.
//!
//! Invariants:
//! - What was acknowledged is durable: the flush came after the data writes and the journal record.
//! - The index never knows more than the journal: it is told after the flush, and what it forgets
//!   in a crash is replayed. Only the last journal record can have data that was not flushed; its
//!   chunks are verified at start and those that do not match, which nobody was told of, are
//!   dropped.
//! - Space is reused only after the delete is durable and the last read of the chunk has ended, and
//!   never while it is being discarded: after that, or instead of it when there is no other space.
//! - Nothing waits for a drive that hangs: callers leave at their deadline, and at the end its
//!   threads are left behind with the memory that the kernel may still use.
//! - A failed flush or journal write ends all writes to the target until a restart (what the drive
//!   holds is then unknown); reads go on.

mod alloc;
mod bulk;
mod busy;
mod commit;
mod device;
mod discard;
mod encrypted;
mod entry;
mod file;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod header;
mod heal;
mod index;
mod journal;
mod kernel;
mod key;
mod ops;
mod options;
mod probe;
mod readers;
mod rebuild;
mod room;
mod scrub;
mod shared;
mod signature;
mod start;
mod superblock;
#[cfg(test)]
mod support;
mod unread;
mod uring;
mod verify;
mod waits;
mod worker;
mod xts;

pub use device::{BLOCK, Device, Done};
pub use encrypted::Encrypted;
pub use key::{KeyCheck, KeySource};
pub use ops::{ListPage, Range};
pub use options::{DISCARD_RATE, TargetOptions, Tuning};
pub use scrub::Scrub;
pub use signature::{Content, Inspection, inspect};
pub use superblock::Superblock;
pub use unread::Unread;

use alloc::Allocator;
use busy::Busy;
use commit::Committer;
use discard::Discard;
use readers::Readers;
use shared::Core;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_proto::{ChunkId, Error, ErrorKind, Result, TargetId, Uuid, v1};

/// One open target. Cheap to clone; the drive is released when the last clone is gone.
#[derive(Clone)]
pub struct Engine {
    core: Arc<Core>,
    committer: Arc<Committer>,
}

impl Engine {
    /// The device or file.
    pub fn path(&self) -> &Path {
        &self.core.path
    }

    /// The target's own identity, made when it was formatted.
    pub fn uuid(&self) -> Uuid {
        self.core.superblock.read().uuid
    }

    /// The cluster that the target joined.
    pub fn cluster(&self) -> Option<Uuid> {
        Some(self.core.superblock.read().cluster).filter(|&c| c != Uuid::NIL)
    }

    /// The id that the cluster gave to this target, once it joined.
    pub fn id(&self) -> Option<TargetId> {
        let superblock = self.core.superblock.read();
        (superblock.cluster != Uuid::NIL).then_some(superblock.target)
    }

    /// Why the target takes no more writes; `None` while it is well.
    pub fn failure(&self) -> Option<String> {
        self.core.failure.lock().clone()
    }

    /// Chunks that may be damaged, as far as that is known since the target was opened, once: those
    /// that were lost then, which were here, or were being put, and do not read as they were put;
    /// and what was damaged before.
    pub fn take_dropped(&self) -> Vec<ChunkId> {
        std::mem::take(&mut self.core.dropped.lock())
    }

    /// How long the drive has not answered its oldest request.
    pub fn stalled(&self) -> std::time::Duration {
        self.core.stalled()
    }

    /// Bytes that chunks can take, and bytes that chunks took.
    pub fn space(&self) -> (u64, u64) {
        let (capacity, used) = self.core.discard.space();
        (capacity * BLOCK, used * BLOCK)
    }

    /// Space, chunks and error counts.
    pub fn stat(&self) -> v1::TargetStat {
        let core = &self.core;
        let (capacity_bytes, used_bytes) = self.space();
        v1::TargetStat {
            target: self.id().map_or(0, |id| id.0),
            capacity_bytes,
            used_bytes,
            chunks: core.counters.chunks.load(Ordering::Relaxed),
            read_errors: core.counters.read_errors.load(Ordering::Relaxed),
            write_errors: core.counters.write_errors.load(Ordering::Relaxed),
            checksum_errors: core.counters.checksum_errors.load(Ordering::Relaxed),
            commits: core.counters.commits.load(Ordering::Relaxed),
            stalled_ms: self.stalled().as_millis() as u64,
            opened: core.opened,
            scrub: Some(self.scrub().into()),
            index_full: core.index.room.check().is_err(),
            ..Default::default()
        }
    }

    /// Writes the membership into both superblocks. Errors: `WrongCluster` if the target already
    /// belongs to another one; `Io`.
    pub async fn join(&self, cluster: Uuid, target: TargetId) -> Result<()> {
        let mut next = self.core.superblock.read().clone();
        if next.cluster == cluster && next.target == target {
            return Ok(());
        }
        if next.cluster != Uuid::NIL {
            return Err(Error::new(
                ErrorKind::WrongCluster,
                format!(
                    "{} is target {} of cluster {}; it was asked to become target {target} of \
                     cluster {cluster}",
                    self.core.path.display(),
                    next.target,
                    next.cluster
                ),
            ));
        }
        next.cluster = cluster;
        next.target = target;
        next.sequence += 1;
        superblock::write(&*self.core.device, &next).await.map_err(|e| {
            Error::new(ErrorKind::Io, format!("superblock of {}: {e}", self.core.path.display()))
        })?;
        *self.core.superblock.write() = next;
        Ok(())
    }

    /// Ends writes, makes the index durable and marks nothing left to replay. Reads still work.
    pub async fn close(&self) -> Result<()> {
        let committer = self.committer.clone();
        let closed = worker::aside("close", move || committer.close()).map_err(|e| {
            let what = format!("closing {}: starting a thread: {e}", self.core.path.display());
            Error::new(ErrorKind::Internal, what)
        })?;
        self.core.answer(closed).await.unwrap_or_else(|| {
            let what = format!("closing {} has panicked", self.core.path.display());
            Err(Error::new(ErrorKind::Internal, what))
        })
    }
}
