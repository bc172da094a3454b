//! Counts what lies under a directory, by looking at all of it.

use crate::operation::{Fault, Query, Reply};
use crate::schema::{self, IndexEntry, Tag};
use crate::store::Read;
use crate::tables::inodes;
use std::collections::HashSet;
use v1::FileKind;
use weft_proto::{InodeId, v1};

impl Query for v1::GetUsageOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        let top = inodes::existing(state, self.ino)?;
        let mut usage = v1::GetUsageReply { inodes: 1, bytes: top.allocated };
        // Those that have other names, too.
        let mut counted = HashSet::new();
        let mut dirs = Vec::from_iter(top.is_dir().then(|| top.ino()));
        while let Some(dir) = dirs.pop() {
            state.records(schema::all_of(Tag::Index, dir), |_, entry: IndexEntry| {
                let ino = InodeId(entry.ino);
                if entry.kind == FileKind::Directory as i32 {
                    dirs.push(ino);
                    usage.inodes += 1;
                    return Ok(true);
                }
                let inode = state.inode_that_exists(ino)?;
                if inode.attr.nlink <= 1 || counted.insert(ino) {
                    usage.inodes += 1;
                    usage.bytes = usage.bytes.saturating_add(inode.allocated);
                }
                Ok(true)
            })?;
        }
        Ok(Reply::Usage(usage))
    }
}
