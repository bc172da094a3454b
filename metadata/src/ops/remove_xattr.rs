//! Removes an extended attribute.

use crate::operation::{Context, EMPTY, Fault, Operation, Reply, refuse};
use crate::schema::{self, Inode};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::acl::{self, Which};
use crate::tables::inodes;
use crate::tables::xattrs::Room;
use weft_proto::{ErrorKind, v1};

impl Operation for v1::RemoveXattrOp {
    /// The inode as it will be.
    type Plan = Inode;

    fn check(&self, state: &dyn Read, cx: &Context) -> Result<Inode, Fault> {
        let mut inode = inodes::existing(state, self.ino)?;
        inode.attr.ctime_ns = cx.now;
        if let Some(which) = Which::named(&self.name) {
            acl::remove(&mut inode, which);
            return Ok(inode);
        }
        let Some(value) = state.get(&schema::xattr(inode.ino(), &self.name))? else {
            return refuse(ErrorKind::NoAttribute, "no such attribute");
        };
        Room::accounted(&inode).without(Room::of(&self.name, &value)).account(&mut inode);
        Ok(inode)
    }

    fn apply(&self, inode: Inode, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        tx.delete(schema::xattr(inode.ino(), &self.name));
        tx.put_inode(&inode)?;
        Ok(EMPTY)
    }
}
