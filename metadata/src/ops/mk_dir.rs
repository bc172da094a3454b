//! Creates a directory.

use crate::operation::{Context, Fault, Operation, Reply};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::inodes::{self, Wanted};
use crate::tables::names::{self, Place};
use v1::FileKind;
use weft_proto::v1;

impl Operation for v1::MkDirOp {
    type Plan = Place;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Place, Fault> {
        let place = Place::free(state, self.parent, &self.name)?;
        place.takes_directory()?;
        Ok(place)
    }

    fn apply(&self, place: Place, tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        let wanted = Wanted {
            kind: FileKind::Directory,
            mode: self.mode,
            umask: self.umask,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
        };
        let child = inodes::make(tx, &place.dir, &wanted, cx.now)?;
        tx.put_inode(&child)?;
        names::add(tx, place.dir, &place.name, child.ino(), FileKind::Directory, cx.now)?;
        Ok(Reply::Attr(child.attr))
    }
}
