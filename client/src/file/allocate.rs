//! Makes room or holes in a file.
//!
//! What is buffered is committed first: then the change is one of extents alone, and the size that
//! it keeps is the one that the metadata group knows.

use super::inode::File;
use crate::meta::unexpected;
use crate::to_the_end::to_the_end;
use crate::types::{Allocate, Attr, Seek};
use std::sync::Arc;
use weft_proto::layout::MAX_FILE;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{ErrorKind, Result, v1};

impl File {
    /// What `fallocate(2)` does with `[off, off+len)`.
    pub async fn allocate(
        self: &Arc<Self>,
        off: u64,
        len: u64,
        what: Allocate,
        keep_size: bool,
    ) -> Result<()> {
        let file = self.clone();
        to_the_end(async move { file.allocate_in_order(off, len, what, keep_size).await }).await
    }

    async fn allocate_in_order(
        self: &Arc<Self>,
        off: u64,
        len: u64,
        what: Allocate,
        keep_size: bool,
    ) -> Result<()> {
        self.context.log.settle_all().await?;
        let _whole = self.begin_whole().await?;
        let mut seen = self.failures();
        self.flush_in_order(None).await;
        self.failure_since(&mut seen)?;
        let hole = what == Allocate::Hole;
        let op = v1::FallocateOp { ino: self.ino.0, off, len, keep_size, hole };
        let Reply::Attr(attr) = self.context.requests.change_in_order(Op::Fallocate(op)).await?
        else {
            return Err(unexpected("an allocation"));
        };
        let attr: Attr = attr.try_into()?;
        // Where there was nothing, a hole is nothing new.
        let gone = if hole { off..off.saturating_add(len) } else { off..off };
        self.state.lock().changed(&self.context.pages, attr, |e| e.punch(attr.data_version, gone));
        Ok(())
    }

    /// How many of `len` bytes at `off` are in holes.
    pub async fn holes(self: &Arc<Self>, off: u64, len: u64) -> Result<u64> {
        let end = off.saturating_add(len).min(MAX_FILE);
        let (mut at, mut holes) = (off, 0);
        while at < end {
            let data = match self.seek(at, Seek::Data).await {
                Err(error) if error.kind == ErrorKind::NoData => end,
                found => found?.min(end),
            };
            holes += data - at;
            if data == end {
                break;
            }
            at = self.seek(data, Seek::Hole).await?;
        }
        Ok(holes)
    }
}
