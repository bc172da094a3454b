//! Compares what the drive holds of a chunk with what was put.

use super::entry::JournalEntry;
use super::ops::Reading;
use super::scrub::Scrub;
use super::{BLOCK, Engine, header};
use std::sync::atomic::Ordering;
use weft_proto::{ChunkId, ErrorKind, Result};

/// Bytes that are read at a time.
const PIECE: u64 = 4 << 20;

impl Engine {
    /// Reads a range of a chunk, or, if that is `(0, 0)`, all of it with the header from which a
    /// lost index would be made anew. Compares it with its checksums, counts and logs what does not
    /// match. Answers the offset of the first bad block, 0 for a bad header. Errors: `NotFound`,
    /// `Invalid`, `Io`.
    pub async fn verify(&self, id: ChunkId, off: u64, len: u64) -> Result<Option<u64>> {
        let core = &self.core;
        // So that the header stays where it is.
        let _reading = Reading::enter(core, id);
        let entry = core.lookup(id).await?.ok_or_else(|| core.missing(id))?;
        if (off, len) == (0, 0) && !self.has_header(id, &entry).await? {
            return Ok(Some(self.bad(id, 0, "its header does not say what it is")));
        }
        let len = if len == 0 { entry.place.length.saturating_sub(off) } else { len };
        // Beyond the chunk there is nothing to look at, as is said below.
        let (mut at, end) = (off, off.saturating_add(len));
        while at < end {
            let piece = PIECE.min(end - at);
            let range = core.get(id, at, piece).await?;
            let mut sums = &range.checksums[..];
            for run in &range.data {
                let (own, rest) = sums.split_at(run.len() / BLOCK as usize);
                if let Err(block) = weft_erasure::verify_blocks(run, own) {
                    let bad = at + block as u64 * BLOCK;
                    return Ok(Some(self.bad(id, bad, "it is corrupt on the drive")));
                }
                sums = rest;
                at += run.len() as u64;
            }
        }
        Ok(None)
    }

    fn bad(&self, id: ChunkId, offset: u64, what: &str) -> u64 {
        self.core.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
        tracing::error!(target = %self.core.path.display(), chunk = %id, offset, "{what}");
        offset
    }

    async fn has_header(&self, id: ChunkId, entry: &JournalEntry) -> Result<bool> {
        let (core, block) = (&self.core, entry.place.extents[0].block);
        let len = entry.place.header_blocks() * BLOCK;
        match core.device.read(block * BLOCK, len as usize).wait().await {
            Ok(bytes) => {
                let salt = core.superblock.read().salt;
                let found = header::decode(salt, block, bytes.as_ref());
                Ok(found.is_some_and(|(found, of)| found == id && of == *entry))
            }
            Err(e) => {
                core.counters.read_errors.fetch_add(1, Ordering::Relaxed);
                core.after_error(&e).await;
                let what = format!("has a header that could not be read: {e}");
                Err(core.error(ErrorKind::Io, id, &what))
            }
        }
    }

    /// How far a scrub has come.
    pub fn scrub(&self) -> Scrub {
        *self.core.scrub.lock()
    }

    /// Remembers how far a scrub has come, and what is damaged, for who opens the target next.
    pub async fn set_scrub(&self, scrub: Scrub, damaged: Vec<ChunkId>) -> Result<()> {
        *self.core.scrub.lock() = scrub;
        let core = self.core.clone();
        self.core.blocking(move || core.index.set_scrub(scrub, &damaged)).await
    }
}
