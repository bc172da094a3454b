//! Counts what lies under a directory, by looking at all of it.

use crate::operation::{Fault, Query, Reply};
use crate::schema::{self, IndexEntry, Tag};
use crate::store::{Read, StoreError};
use crate::tables::inodes;
use std::collections::HashSet;
use v1::FileKind;
use weft_proto::{InodeId, v1};

impl Query for v1::GetUsageOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        let top = inodes::existing(state, self.ino)?;
        let all = state.counters()?.inodes;
        let mut usage = v1::GetUsageReply { inodes: 1, bytes: top.allocated };
        // Those that have other names, too.
        let mut counted = HashSet::new();
        let mut dirs = Vec::from_iter(top.is_dir().then(|| top.ino()));
        while let Some(dir) = dirs.pop() {
            if usage.inodes > all {
                // Directories that lead to themselves are counted for ever.
                let what = format!("more than {all} inodes lie under inode {}", self.ino);
                return Err(StoreError::corrupt(what).into());
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Counters;
    use crate::store::{Memory, Txn};
    use weft_proto::Layout;

    #[test]
    fn a_directory_that_lies_in_itself_is_not_counted_for_ever() {
        let memory = Memory::default();
        let base = memory.snapshot();
        let mut tx = Txn::new(&*base);
        let profile = "2+1".parse().unwrap();
        let root = inodes::root(InodeId::ROOT, Layout::for_profile(profile).into(), 1);
        tx.put_inode(&root).unwrap();
        let kind = FileKind::Directory.into();
        let entry = IndexEntry { name: "loop".into(), ino: root.attr.ino, kind };
        tx.put(schema::index(InodeId::ROOT, 3), &entry);
        tx.edit_counters(|c| *c = Counters { inodes: 1, ..Default::default() }).unwrap();
        let answer = v1::GetUsageOp { ino: InodeId::ROOT.0 }.answer(&tx);
        assert!(matches!(answer, Err(Fault::Store(e)) if e.is_of_content()));
    }
}
