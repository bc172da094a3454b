//! Finds a name in a directory.

use crate::operation::{Fault, Query, Reply, refuse};
use crate::store::Read;
use crate::tables::inodes;
use crate::tables::names::valid;
use weft_proto::{ErrorKind, InodeId, v1};

impl Query for v1::LookupOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        valid(&self.name)?;
        // The common answers cost two reads or one; only a miss asks whether the parent is at
        // fault.
        match state.dentry(InodeId(self.parent), &self.name)? {
            Some(d) => Ok(Reply::Attr(state.inode_that_exists(InodeId(d.ino))?.attr)),
            None => {
                inodes::directory(state, self.parent)?;
                refuse(ErrorKind::NotFound, "no such name")
            }
        }
    }
}
