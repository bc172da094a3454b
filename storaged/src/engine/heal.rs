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
use weft_proto::{ChunkId, ErrorKind, Result};

/// With more blocks of one copy that do not read, it is the drive that fails.
const MAX_UNREAD: usize = 64;

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
            let rotten = core.bad_blocks(id, &old).await?;
            if rotten.is_empty() {
                return Ok(false);
            }
            for _ in 0..MAX_PLACES {
                let new = engine.write_new(id, data.clone(), checksums.clone(), true).await?;
                let bad = match core.bad_blocks(id, &new).await {
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
    /// The blocks of the drive that do not hold what a copy put there, header and data. Error:
    /// `Io`, the drive is away, or too much of it does not read to tell.
    async fn bad_blocks(&self, id: ChunkId, entry: &JournalEntry) -> Result<Vec<u64>> {
        let failed = |e: &io::Error| {
            self.error(ErrorKind::Io, id, &format!("cannot be looked at on the drive: {e}"))
        };
        let (mut bad, mut unread) = (Vec::new(), 0);
        let mut is_unread = |e: &io::Error| {
            unread += 1;
            of_medium(e) && unread <= MAX_UNREAD
        };
        let header = header::encode(self.superblock.read().salt, id, entry);
        let blocks = header.as_ref().chunks(BLOCK as usize);
        for (block, expected) in (entry.place.extents[0].block..).zip(blocks) {
            let good = match self.device.read(block * BLOCK, BLOCK as usize).wait().await {
                Ok(found) => found.as_ref() == expected,
                Err(e) if is_unread(&e) => false,
                Err(e) => return Err(failed(&e)),
            };
            if !good {
                bad.push(block);
            }
        }
        let mut sums = &entry.checksums[..];
        for (at, bytes) in entry.place.locate(0, entry.place.length) {
            let (own, rest) = sums.split_at((bytes / BLOCK) as usize);
            sums = rest;
            let whole = match self.device.read(at, bytes as usize).wait().await {
                Ok(run) => weft_erasure::verify_blocks(run.as_ref(), own).is_ok(),
                Err(e) if of_medium(&e) => false,
                Err(e) => return Err(failed(&e)),
            };
            if whole {
                continue;
            }
            for (at, sum) in (at..).step_by(BLOCK as usize).zip(own) {
                let good = match self.device.read(at, BLOCK as usize).wait().await {
                    Ok(block) => weft_erasure::verify_blocks(block.as_ref(), &[*sum]).is_ok(),
                    Err(e) if is_unread(&e) => false,
                    Err(e) => return Err(failed(&e)),
                };
                if !good {
                    bad.push(at / BLOCK);
                }
            }
        }
        Ok(bad)
    }

    fn avoid(&self, blocks: &[u64]) {
        let mut allocator = self.allocator.lock();
        blocks.iter().for_each(|&block| allocator.avoid(block));
    }
}
