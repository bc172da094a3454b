//! Puts a chunk anew whose copy on the drive is damaged, or is another's.
//!
//! Invariants: the old copy stays what it was until the new
//! one is durable, whenever the power goes; blocks that did not hold what was written to them are
//! not used again while the target is open, and are found again by whoever meets them after that.

use super::entry::JournalEntry;
use super::ops::{MAX_PLACES, check_payload, run_to_end};
use super::shared::Core;
use super::unread::of_medium;
use super::{BLOCK, Engine, header};
use crate::engine::commit::Commit;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use weft_net::AlignedBuf;
use weft_proto::{ChunkId, ErrorKind, Result};

/// No more blocks of one copy that do not read are tried one by one: each may take seconds. Where
/// so many do not read that were just written, it is the drive that fails.
const MAX_UNREAD: usize = 64;

/// What a drive does not hold of a copy.
#[derive(Default)]
struct Bad {
    /// Header and data.
    blocks: Vec<u64>,
    /// So many of these do not read.
    unread: usize,
}

impl Bad {
    /// `good`: whether a block is; `None`: it does not read.
    fn note(&mut self, block: u64, good: Option<bool>) {
        self.unread += usize::from(good.is_none());
        if good != Some(true) {
            self.blocks.push(block);
        }
    }
}

impl Engine {
    /// Puts a chunk in the place of whatever is here under its id, somewhere else on the drive:
    /// both happen or neither. Errors as of [`Self::put`]; `NotFound` if nothing is here.
    pub async fn supersede(&self, id: ChunkId, data: Bytes, checksums: Vec<u32>) -> Result<()> {
        check_payload(id, &data, &checksums)?;
        self.core.check_writable()?;
        let engine = self.clone();
        run_to_end(async move {
            let core = &engine.core;
            let _hold = core.busy.hold(vec![id]).await;
            let old = core.newest(id).await?.ok_or_else(|| core.missing(id))?;
            let new = engine.write_new(id, data, checksums, true).await?;
            engine.swap(id, old, new).await
        })
        .await
    }

    /// As [`Self::supersede`], if the copy that is here is damaged; the new one is read back before
    /// it counts. Answers whether it was. Errors: also `Exists` if what is here has other
    /// checksums; `Io`, no place was found that keeps it.
    pub async fn heal(&self, id: ChunkId, data: Bytes, checksums: Vec<u32>) -> Result<bool> {
        check_payload(id, &data, &checksums)?;
        self.core.check_writable()?;
        let engine = self.clone();
        run_to_end(async move {
            let core = &engine.core;
            let _hold = core.busy.hold(vec![id]).await;
            let old = core.newest(id).await?.ok_or_else(|| core.missing(id))?;
            if old.checksums != checksums {
                return Err(core.error(ErrorKind::Exists, id, "is stored with other contents"));
            }
            // However much of it does not read: the new one shows whether the drive fails.
            let rotten = core.bad_blocks(id, &old).await?.blocks;
            if rotten.is_empty() {
                return Ok(false);
            }
            for _ in 0..MAX_PLACES {
                let new = engine.write_new(id, data.clone(), checksums.clone(), true).await?;
                let bad = core.bad_blocks(id, &new).await.and_then(|bad| match bad.unread {
                    0..=MAX_UNREAD => Ok(bad.blocks),
                    _ => Err(core.error(ErrorKind::Io, id, "does not read where it was written")),
                });
                let bad = match bad {
                    Ok(bad) => bad,
                    Err(e) => {
                        core.discard.give(&new.place.extents);
                        return Err(e);
                    }
                };
                if bad.is_empty() {
                    core.avoid(&rotten);
                    return engine.swap(id, old, new).await.map(|()| true);
                }
                core.avoid(&bad);
                core.discard.give(&new.place.extents);
            }
            Err(core.error(ErrorKind::Io, id, "does not read back, wherever it is written"))
        })
        .await
    }

    async fn swap(
        &self,
        id: ChunkId,
        old: Arc<JournalEntry>,
        new: Arc<JournalEntry>,
    ) -> Result<()> {
        self.committer.commit(vec![Commit::Delete(id, old), Commit::Restore(id, new)]).await
    }
}

impl Core {
    /// The blocks of the drive that do not hold what a copy put there, those that are not tried
    /// among them. Error: `Io`, the drive is away.
    async fn bad_blocks(&self, id: ChunkId, entry: &JournalEntry) -> Result<Bad> {
        let failed = |e: io::Error| {
            self.error(ErrorKind::Io, id, &format!("cannot be looked at on the drive: {e}"))
        };
        let mut bad = Bad::default();
        let header = header::encode(self.superblock.read().salt, id, entry);
        let blocks = header.as_ref().chunks(BLOCK as usize);
        for (block, expected) in (entry.place.extents[0].block..).zip(blocks) {
            let found = self.read_what_reads(block * BLOCK, BLOCK).await.map_err(failed)?;
            bad.note(block, found.map(|found| found.as_ref() == expected));
        }
        let mut sums = &entry.checksums[..];
        for (at, bytes) in entry.place.locate(0, entry.place.length) {
            let (own, rest) = sums.split_at((bytes / BLOCK) as usize);
            sums = rest;
            let is_whole = |found: AlignedBuf, sums: &[u32]| {
                weft_erasure::verify_blocks(found.as_ref(), sums).is_ok()
            };
            let run = self.read_what_reads(at, bytes).await.map_err(failed)?;
            let reads = run.is_some();
            if run.is_some_and(|run| is_whole(run, own)) {
                continue;
            }
            for (at, sum) in (at..).step_by(BLOCK as usize).zip(own) {
                let found = match reads || bad.unread <= MAX_UNREAD {
                    true => self.read_what_reads(at, BLOCK).await.map_err(failed)?,
                    false => None,
                };
                bad.note(at / BLOCK, found.map(|block| is_whole(block, &[*sum])));
            }
        }
        Ok(bad)
    }

    /// `None`: the drive says that it cannot read all of this.
    async fn read_what_reads(&self, at: u64, bytes: u64) -> io::Result<Option<AlignedBuf>> {
        match self.device.read(at, bytes as usize).wait().await {
            Ok(found) => Ok(Some(found)),
            Err(e) if of_medium(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn avoid(&self, blocks: &[u64]) {
        let mut allocator = self.allocator.lock();
        blocks.iter().for_each(|&block| allocator.avoid(block));
    }
}
