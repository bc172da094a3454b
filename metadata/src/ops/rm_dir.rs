//! Removes an empty directory.

use crate::operation::{Context, EMPTY, Fault, Operation, Reply, refuse};
use crate::schema::Dentry;
use crate::store::{Read, StoreResult, Txn};
use crate::tables::inodes;
use crate::tables::names::{self, Place};
use v1::FileKind;
use weft_proto::{ErrorKind, InodeId, v1};

impl Operation for v1::RmDirOp {
    type Plan = (Place, Dentry);

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Self::Plan, Fault> {
        let (place, dentry) = Place::taken(state, self.parent, &self.name)?;
        if dentry.kind() != FileKind::Directory {
            return refuse(ErrorKind::NotDirectory, format!("{place} is not a directory"));
        }
        if state.inode_that_exists(InodeId(dentry.ino))?.entries > 0 {
            return refuse(ErrorKind::NotEmpty, format!("{place} is not empty"));
        }
        Ok((place, dentry))
    }

    fn apply(&self, plan: Self::Plan, tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        let (place, dentry) = plan;
        names::remove(tx, place.dir.ino(), &place.name, &dentry, cx.now)?;
        inodes::drop_name(tx, InodeId(dentry.ino), cx.now)?;
        Ok(EMPTY)
    }
}
