//! Deletes orphans that nobody has open, a bounded number of extents and attributes at a time: an
//! orphan with more extents stays one, and the leader asks again.

use crate::operation::{Context, EMPTY, Fault, Operation, Reply, attempt};
use crate::schema::{self, Inode, Tag};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::content;
use crate::tables::content::STEP;
use crate::tables::quotas;
use weft_proto::{InodeId, v1};

/// Most inodes that one entry looks at.
const MAX_INODES: usize = 4096;

impl Operation for v1::PurgeInodesEntry {
    /// Those among the inodes that are orphans.
    type Plan = Vec<InodeId>;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Self::Plan, Fault> {
        let mut orphans = Vec::new();
        for &ino in self.inos.iter().take(MAX_INODES) {
            if state.get(&schema::orphan(InodeId(ino)))?.is_some() {
                orphans.push(InodeId(ino));
            }
        }
        orphans.sort_unstable();
        orphans.dedup();
        Ok(orphans)
    }

    fn apply(&self, orphans: Vec<InodeId>, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        let mut left = STEP;
        for ino in orphans {
            if left == 0 {
                break;
            }
            match attempt(tx, |tx| Ok(purge(tx, ino, left)?)) {
                Ok(deleted) => left = left.saturating_sub(deleted),
                // A check finds it without the record, and others can be removed.
                Err(fault) => {
                    fault.refusal()?;
                    tx.delete(schema::orphan(ino));
                }
            }
        }
        Ok(EMPTY)
    }
}

/// Deletes up to `limit` extents of an orphan, and it with the last. Answers how many, and
/// attributes.
fn purge(tx: &mut Txn<'_>, ino: InodeId, limit: usize) -> StoreResult<usize> {
    let inode = tx.state().inode_that_exists(ino)?;
    let (deleted, inode) = content::purge(tx, inode, limit)?;
    let attributes = if inode.allocated == 0 { delete(tx, &inode)? } else { 0 };
    Ok(deleted + attributes)
}

/// Deletes an inode without extents, and all that belongs to it. Answers how many attributes it
/// had.
fn delete(tx: &mut Txn<'_>, inode: &Inode) -> StoreResult<usize> {
    let ino = inode.ino();
    let mut attributes = 0;
    if inode.xattr_bytes > 0 {
        let (from, to) = schema::all_of(Tag::Xattr, ino);
        let mut keys = Vec::new();
        tx.scan(&from, &to, &mut |key, _| {
            keys.push(key.to_vec());
            Ok(true)
        })?;
        attributes = keys.len();
        keys.into_iter().for_each(|key| tx.delete(key));
    }
    if inode.has_quota {
        quotas::gone(tx, ino)?;
    }
    tx.delete_inode(inode)?;
    tx.delete(schema::orphan(ino));
    tx.delete(schema::trim(ino));
    tx.edit_counters(|c| c.inodes = c.inodes.saturating_sub(1))?;
    Ok(attributes)
}
