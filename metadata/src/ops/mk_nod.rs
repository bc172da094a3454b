//! Creates an empty regular file, a FIFO, a socket or a device node.

use crate::operation::{Context, Fault, Operation, Reply, refuse};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::inodes::{self, Wanted};
use crate::tables::names::{self, Place};
use v1::FileKind;
use weft_proto::{ErrorKind, v1};

impl Operation for v1::MkNodOp {
    type Plan = Place;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Place, Fault> {
        let place = Place::free(state, self.parent, &self.name)?;
        match self.kind() {
            FileKind::Regular
            | FileKind::Fifo
            | FileKind::Socket
            | FileKind::CharDevice
            | FileKind::BlockDevice => Ok(place),
            FileKind::Directory => refuse(ErrorKind::NotPermitted, "mknod makes no directories"),
            kind => refuse(ErrorKind::Invalid, format!("mknod makes no inode of kind {kind:?}")),
        }
    }

    fn apply(&self, place: Place, tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        let kind = self.kind();
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let wanted = Wanted {
            kind,
            mode: self.mode,
            umask: self.umask,
            uid: self.uid,
            gid: self.gid,
            rdev: if is_device { self.rdev } else { 0 },
        };
        let node = inodes::make(tx, &place.dir, &wanted, cx.now)?;
        tx.put_inode(&node)?;
        names::add(tx, place.dir, &place.name, node.ino(), kind, cx.now)?;
        Ok(Reply::Attr(node.attr))
    }
}
