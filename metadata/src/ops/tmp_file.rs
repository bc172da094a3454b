//! Creates a regular file without a name, for a caller that has it open and may name it later.

use crate::operation::{Context, Fault, Operation, Reply};
use crate::schema::{self, Inode};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::inodes::{self, Wanted};
use v1::FileKind;
use weft_proto::v1;

impl Operation for v1::TmpFileOp {
    /// The directory whose group and layout it inherits.
    type Plan = Inode;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Inode, Fault> {
        inodes::named_directory(state, self.parent)
    }

    fn apply(&self, dir: Inode, tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        let wanted = Wanted {
            kind: FileKind::Regular,
            mode: self.mode,
            umask: self.umask,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
        };
        let mut file = inodes::make(tx, &dir, &wanted, cx.now)?;
        file.attr.nlink = 0;
        file.nameless = true;
        tx.put_inode(&file)?;
        tx.put_bytes(schema::orphan(file.ino()), Default::default());
        Ok(Reply::Open(v1::OpenReply {
            attr: Some(file.attr),
            layout: file.layout,
            extents: Some(v1::ExtentsReply { attr: Some(file.attr), ..Default::default() }),
            owes: false,
        }))
    }
}
