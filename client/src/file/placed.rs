//! Reads whose bytes go to the memory of a device by themselves, as far as they are committed,
//! whole blocks, and in segments.

use super::extents::Source;
use super::inode::File;
use crate::types::Placed;
use futures_util::future::join_all;
use std::ops::Range;
use std::sync::Arc;
use tokio::time::Instant;
use weft_net::DeviceMemory;
use weft_proto::Result;
use weft_proto::layout::BLOCK;

impl File {
    /// Up to `len` bytes from `off`, in order, those that can into the memory from `at` on. `None`:
    /// they are read as any others, since something is dirty, or kept here, or was not found; any
    /// part of the memory may have been written. When this has returned nobody writes to it.
    pub async fn read_placed(
        self: &Arc<Self>,
        off: u64,
        len: usize,
        (memory, at): (&Arc<DeviceMemory>, usize),
    ) -> Result<Option<Vec<Placed>>> {
        self.refresh().await?;
        let size = {
            let state = self.state.lock();
            if state.is_dirty() || self.context.hot.get().is_some_and(|hot| hot.is_open()) {
                return Ok(None);
            }
            state.attr.size
        };
        let range = off..off.saturating_add(len as u64).min(size).max(off);
        if range.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let deadline = self.context.requests.deadline();
        let parts = self.plan(range, deadline).await?.into_iter().map(|(part, source)| {
            let at = at + (part.start - off) as usize;
            self.place(part, source, (memory, at), deadline)
        });
        // All of them, so that none is written for any more if another has failed.
        let mut placed = Vec::new();
        for part in join_all(parts).await {
            // The usual way finds out what it is.
            let Ok(part) = part else { return Ok(None) };
            placed.extend(part);
        }
        Ok(Some(placed))
    }

    /// What comes from one place.
    async fn place(
        &self,
        part: Range<u64>,
        source: Option<Source>,
        (memory, at): (&Arc<DeviceMemory>, usize),
        deadline: Instant,
    ) -> Result<Vec<Placed>> {
        let copied = |bytes| Placed { bytes, is_there: false };
        let Some(Source::Segment { segment, off }) = source else {
            let parts = self.fetch(part, source, false, deadline).await?;
            return Ok(parts.into_iter().map(copied).collect());
        };
        let range = off..off + (part.end - part.start);
        // Whole blocks are verified where they land; what is around them goes the usual way.
        let block = u64::from(BLOCK);
        let start = range.start.next_multiple_of(block).min(range.end);
        let end = (range.end - range.end % block).max(start);
        let around = |range: Range<u64>| self.context.content(&segment, range, false, deadline);
        let mut placed = Vec::new();
        if range.start < start {
            placed.extend(around(range.start..start).await?.into_iter().map(copied));
        }
        if start < end {
            let into = (memory, at + (start - range.start) as usize);
            let whole = (start, end - start);
            let read = self.context.segments.get_into(&segment, whole, into, deadline).await;
            let (bytes, is_there) = read?;
            placed.push(Placed { bytes, is_there });
        }
        if end < range.end {
            placed.extend(around(end..range.end).await?.into_iter().map(copied));
        }
        Ok(placed)
    }
}
