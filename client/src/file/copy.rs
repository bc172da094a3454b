//! Copies a range of one file to another by sharing segments; where that cannot be, by moving
//! bytes.
//!
//! Invariant: while the destination is held in order, nothing waits for another mount to give up
//! the source: whoever reads it has waited before.

use super::handle::Handle;
use super::inode::File;
use super::write::{Way, Written};
use crate::cache::ALL;
use crate::meta::unexpected;
use crate::to_the_end::to_the_end;
use crate::types::Attr;
use std::sync::Arc;
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{ErrorKind, InodeId, Result, v1};

/// What is no longer is moved to another file, and goes with what is written there: sharing is a
/// commit of its own.
const SMALL: u64 = 128 << 10;
/// Bytes to move before sharing is tried again: past a piece that lives in metadata, and of a file
/// with another redundancy.
const PAST_INLINE: u64 = 64 << 10;
const PAST_WEAKER: u64 = 4 << 20;
/// Most bytes that one call moves. Its caller asks for the rest.
const MAX_MOVED: u64 = 128 << 20;

/// What `copy_file_range(2)` does, from an offset in one file to one in another. Answers how many
/// bytes were copied. `permitted` is asked whenever there was something to wait for.
pub(crate) async fn copy_range(
    (from, from_off): (&Handle, u64),
    (to, to_off): (&Handle, u64),
    len: u64,
    permitted: impl Fn() -> Result<()>,
) -> Result<u64> {
    to.failure()?;
    from.file.refresh().await?;
    // Within one file, the copy may move its end.
    let mut len = len.min(from.file.size().saturating_sub(from_off));
    if len <= SMALL && from.file.ino != to.file.ino {
        return move_small((from, from_off), (to, to_off), len, permitted).await;
    }
    if from.file.is_dirty() {
        from.file.flush().await?;
        from.file.refresh().await?;
        len = len.min(from.file.size().saturating_sub(from_off));
    }
    let (mut done, mut moved) = (0, 0);
    while done < len && moved < MAX_MOVED {
        permitted()?;
        let left = len - done;
        let (at, into) = (from_off.saturating_add(done), to_off.saturating_add(done));
        let most = match to.file.share(from.file.ino, at, into, left).await {
            Ok(0) => break,
            Ok(shared) => {
                done += shared;
                continue;
            }
            Err(error) if error.kind == ErrorKind::InlineFull => PAST_INLINE,
            Err(error) if error.kind == ErrorKind::CrossDevice => PAST_WEAKER,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        };
        match move_bytes((from, at), (to, into), left.min(most), &permitted).await {
            Ok(0) => break,
            Ok(n) => (done, moved) = (done + n, moved + n),
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    if to.sync {
        to.sync().await?;
    }
    Ok(done)
}

async fn move_small(
    from: (&Handle, u64),
    to: (&Handle, u64),
    len: u64,
    permitted: impl Fn() -> Result<()>,
) -> Result<u64> {
    if len == 0 {
        return Ok(0);
    }
    permitted()?;
    let mut moved = move_bytes(from, to, len, &permitted).await;
    if moved.is_ok() && to.0.sync {
        moved = to.0.sync().await.and(moved);
    }
    if moved.is_err() {
        // The kernel drops what it has cached of what it is told was copied.
        to.0.file.forget_behind(ALL);
    }
    moved
}

async fn move_bytes(
    (from, at): (&Handle, u64),
    (to, into): (&Handle, u64),
    len: u64,
    permitted: &impl Fn() -> Result<()>,
) -> Result<u64> {
    let data = from.file.read(at, len as usize, &from.ahead, false).await?;
    let mut done = 0;
    for part in data.parts() {
        let at = into.saturating_add(done);
        let records = Some(v1::Records::one(at..at.saturating_add(part.len() as u64)));
        let way = Way::Along(None);
        let written = Written { off: at, data: part, append: false, way, fate: None };
        let (written, buffered) = to.file.write(written, records, permitted).await?;
        if !buffered {
            to.flush().await?;
        }
        done += written as u64;
        if written < part.len() {
            break;
        }
    }
    Ok(done)
}

impl File {
    /// Makes `len` bytes at `to_off` show what another file, or this one, holds at `from_off`,
    /// without moving data. Answers how much was done. Errors: `InlineFull` and `CrossDevice` if
    /// what comes first has to be moved.
    async fn share(
        self: &Arc<Self>,
        from: InodeId,
        from_off: u64,
        to_off: u64,
        len: u64,
    ) -> Result<u64> {
        let file = self.clone();
        to_the_end(async move { file.share_in_order(from, from_off, to_off, len).await }).await
    }

    async fn share_in_order(
        self: &Arc<Self>,
        from: InodeId,
        from_off: u64,
        to_off: u64,
        len: u64,
    ) -> Result<u64> {
        self.context.log.settle_all().await?;
        let _whole = self.begin_whole().await?;
        let mut seen = self.failures();
        self.flush_in_order(None).await;
        self.failure_since(&mut seen)?;
        let op = v1::CopyRangeOp { from: from.0, from_off, to: self.ino.0, to_off, len };
        let reply = self.context.requests.change_in_order(Op::CopyRange(op)).await?;
        let Reply::CopyRange(v1::CopyRangeReply { attr: Some(attr), copied }) = reply else {
            return Err(unexpected("a copy"));
        };
        let attr: Attr = attr.try_into()?;
        let range = to_off..to_off.saturating_add(copied);
        let mut state = self.state.lock();
        match copied {
            // The version is not of our doing.
            0 => state.adopt(attr),
            _ => state.changed(&self.context.pages, attr, |e| e.lose(attr.data_version, range)),
        }
        Ok(copied)
    }
}
