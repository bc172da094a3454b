//! Reads: what is dirty here first, below it what is committed.

use super::ahead::ReadAhead;
use super::committed::push_zeros;
use super::inode::File;
use crate::types::ReadData;
use std::sync::Arc;
use weft_proto::Result;

impl File {
    /// Up to `len` bytes from `off`; fewer only at the end of file. `fills`: the cache above.
    pub async fn read(
        self: &Arc<Self>,
        off: u64,
        len: usize,
        ahead: &ReadAhead,
        fills: bool,
    ) -> Result<ReadData> {
        let (parts, committed) = loop {
            self.refresh().await?;
            let state = &mut *self.state.lock();
            let wanted = |size: u64| off..off.saturating_add(len as u64).min(size).max(off);
            // What is not under the right to write nobody may see before all do, by its commit
            // (I6).
            let kept = |right| self.context.leases.keeps(self.ino, right);
            let shown = state.buffered_under.right.is_some_and(kept);
            if !shown && state.is_dirty() && state.buffered_under.right.is_some() {
                // It went a moment ago.
                continue;
            }
            if fills && (shown || state.dirty.is_empty()) {
                state.past.filled(off..off.saturating_add(len as u64));
            }
            let parts = match shown {
                true => state.dirty.read(wanted(state.size())),
                false => vec![(wanted(state.attr.size), None)],
            };
            break (parts, state.attr.size);
        };
        let mut data = ReadData::default();
        for (range, bytes) in parts {
            match bytes {
                Some(bytes) => data.push(bytes),
                None => {
                    let below = range.start.min(committed)..range.end.min(committed);
                    if !below.is_empty() {
                        ahead.read(self, below.clone(), &mut data).await?;
                    }
                    push_zeros(&mut data, (range.end - range.start) - (below.end - below.start));
                }
            }
        }
        Ok(data)
    }
}
