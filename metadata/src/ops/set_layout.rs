//! Sets how new data is laid out: of a directory, what new children inherit; of an empty file, its
//! own layout.

use crate::operation::{Context, EMPTY, Fault, Operation, Reply, refuse};
use crate::schema::Inode;
use crate::store::{Read, StoreResult, Txn};
use crate::tables::inodes;
use v1::FileKind;
use weft_proto::{ErrorKind, Layout, v1};

impl Operation for v1::SetLayoutOp {
    /// The inode as it will be.
    type Plan = Inode;

    fn check(&self, state: &dyn Read, cx: &Context) -> Result<Inode, Fault> {
        let Some(info) = self.layout else {
            return refuse(ErrorKind::Protocol, "set layout without a layout");
        };
        let layout = Layout::try_from(info)?;
        let mut inode = inodes::existing(state, self.ino)?;
        match inode.kind() {
            FileKind::Directory => {}
            FileKind::Regular if inode.attr.size == 0 => {}
            FileKind::Regular => {
                return refuse(
                    ErrorKind::Busy,
                    format!("file {} has data: its layout stays", inode.ino()),
                );
            }
            _ => {
                return refuse(
                    ErrorKind::Invalid,
                    format!("inode {} is no file or directory and has no layout", inode.ino()),
                );
            }
        }
        inode.layout = Some(layout.into());
        inode.attr.ctime_ns = cx.now;
        Ok(inode)
    }

    fn apply(&self, inode: Inode, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        tx.put_inode(&inode)?;
        Ok(EMPTY)
    }
}
