//! Names in a directory, in the order of their cookies.

use crate::operation::{ATTR, BRIEF, Fault, GRANT, Query, Reply, item_len};
use crate::schema::{self, IndexEntry, Tag};
use crate::store::Read;
use crate::tables::inodes;
use crate::tables::names::MAX_NAME;
use weft_proto::{InodeId, v1};

/// Most names in one answer.
const MAX_ENTRIES: u32 = 16_384;
/// An answer is full once it is this long, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// A name is no longer without attributes, in bytes.
const ENTRY: usize = MAX_NAME + 64;

impl Query for v1::ReadDirOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        let dir = inodes::named_directory(state, self.ino)?;
        let limit =
            if self.limit == 0 { MAX_ENTRIES } else { self.limit.min(MAX_ENTRIES) } as usize;
        let (parent, next_cookie) = (dir.parent, dir.next_cookie);
        let mut reply = v1::ReadDirReply { entries: Vec::new(), end: true, parent, next_cookie };
        let (_, to) = schema::all_of(Tag::Index, dir.ino());
        let from = schema::index(dir.ino(), self.cookie.saturating_add(1));
        let mut bytes = 0;
        state.records((from, to), |key, entry: IndexEntry| {
            if reply.entries.len() == limit || bytes >= MAX_BYTES {
                reply.end = false;
                return Ok(false);
            }
            let attr = match self.attrs {
                true => Some(state.inode_that_exists(InodeId(entry.ino))?.attr),
                false => None,
            };
            let cookie = schema::number_at(key, schema::HEAD + 8)?;
            let IndexEntry { name, ino, kind } = entry;
            let item = v1::DirEntry { name, ino, kind, cookie, attr };
            bytes += item_len(&item);
            reply.entries.push(item);
            Ok(true)
        })?;
        Ok(Reply::ReadDir(reply))
    }

    fn longest(&self) -> usize {
        let limit =
            if self.limit == 0 { MAX_ENTRIES } else { self.limit.min(MAX_ENTRIES) } as usize;
        // They come with leases.
        let attrs = if self.attrs { limit * (ATTR + GRANT) } else { 0 };
        BRIEF + (limit * ENTRY).min(MAX_BYTES + ENTRY) + attrs
    }
}
