//! Notes when inodes were read. It is no change of theirs: the change time stays, and nobody's
//! lease is recalled. An access before the last change is not kept; to set an older time on purpose
//! is a change.

use crate::operation::{Context, EMPTY, Fault, Operation, Reply, refuse};
use crate::schema::Inode;
use crate::store::{Read, StoreResult, Txn};
use weft_proto::{ErrorKind, InodeId, v1};

/// Most inodes in one entry of the log.
pub(crate) const MAX_ACCESSES: usize = 4096;

impl Operation for v1::AccessedOp {
    /// The inodes as they will be.
    type Plan = Vec<Inode>;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Vec<Inode>, Fault> {
        if self.accesses.len() > MAX_ACCESSES {
            return refuse(
                ErrorKind::Invalid,
                format!("{} accesses at once, over {MAX_ACCESSES}", self.accesses.len()),
            );
        }
        let mut changed = Vec::new();
        for access in &self.accesses {
            if let Some(mut inode) = state.inode(InodeId(access.ino))?
                && access.atime_ns > inode.attr.atime_ns
                && access.atime_ns >= inode.attr.ctime_ns
            {
                inode.attr.atime_ns = access.atime_ns;
                changed.push(inode);
            }
        }
        Ok(changed)
    }

    fn apply(&self, changed: Vec<Inode>, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        for inode in &changed {
            tx.put_inode(inode)?;
        }
        Ok(EMPTY)
    }
}
