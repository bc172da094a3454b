//! Where the bytes of a file lie.

use crate::operation::{ATTR, BRIEF, EXTENT, Fault, Query, Reply, SEGMENT, item_len, refuse};
use crate::schema::Inode;
use crate::store::Read;
use crate::tables::{content, inodes};
use v1::FileKind;
use weft_proto::{ErrorKind, Layout, v1};

/// Most extents in one answer.
const MAX_EXTENTS: usize = 8192;
/// An answer is full once its extents are this long, in bytes.
const MAX_BYTES: usize = 512 << 10;

impl Query for v1::GetExtentsOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        let file = inodes::existing(state, self.ino)?;
        if file.kind() != FileKind::Regular {
            return refuse(ErrorKind::Invalid, format!("inode {} is no file", file.ino()));
        }
        let to = self.off.saturating_add(self.len);
        Ok(Reply::Extents(extents(state, &file, self.off, to, MAX_EXTENTS)?))
    }

    fn longest(&self) -> usize {
        longest(MAX_EXTENTS.min(usize::try_from(self.len).unwrap_or(usize::MAX)))
    }
}

/// Bytes that an answer with so many extents is no longer than.
pub(super) const fn longest(extents: usize) -> usize {
    BRIEF + ATTR + extents * (EXTENT + SEGMENT) + Layout::MAX_INLINE as usize
}

/// Extents that touch `[from, to)`, up to `limit` of them, and their segments.
pub(super) fn extents(
    state: &dyn Read,
    file: &Inode,
    from: u64,
    to: u64,
    limit: usize,
) -> Result<v1::ExtentsReply, Fault> {
    let mut reply = v1::ExtentsReply { attr: Some(file.attr), ..Default::default() };
    let mut bytes = 0;
    content::walk(state, file, from, false, |e| {
        if e.file_off >= to {
            return Ok(false);
        }
        if reply.extents.len() >= limit || bytes >= MAX_BYTES {
            reply.truncated = true;
            return Ok(false);
        }
        bytes += item_len(&e);
        reply.extents.push(e);
        Ok(true)
    })?;
    reply.segments = content::segments(state, &reply.extents)?;
    Ok(reply)
}
