//! Creates a symbolic link.

use crate::operation::{Context, Fault, Operation, Reply, refuse};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::inodes::{self, Wanted};
use crate::tables::names::{self, Place};
use v1::FileKind;
use weft_proto::{ErrorKind, v1};

/// Longest target, in bytes: Linux's PATH_MAX less the closing NUL.
pub(super) const MAX_TARGET: usize = 4095;

/// Refuses what cannot be a target.
pub(super) fn check_target(target: &[u8]) -> Result<(), Fault> {
    if target.is_empty() {
        return refuse(ErrorKind::NotFound, "a symbolic link must point somewhere");
    }
    if target.len() > MAX_TARGET {
        return refuse(
            ErrorKind::NameTooLong,
            format!("a link target of {} bytes is over {MAX_TARGET}", target.len()),
        );
    }
    if target.contains(&0) {
        return refuse(ErrorKind::Invalid, "a link target cannot hold a NUL");
    }
    Ok(())
}

impl Operation for v1::SymLinkOp {
    type Plan = Place;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Place, Fault> {
        check_target(&self.target)?;
        Place::free(state, self.parent, &self.name)
    }

    fn apply(&self, place: Place, tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        let wanted = Wanted {
            kind: FileKind::Symlink,
            mode: 0o777,
            umask: 0,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
        };
        let mut link = inodes::make(tx, &place.dir, &wanted, cx.now)?;
        link.attr.size = self.target.len() as u64;
        link.target = self.target.clone();
        tx.put_inode(&link)?;
        names::add(tx, place.dir, &place.name, link.ino(), FileKind::Symlink, cx.now)?;
        Ok(Reply::Attr(link.attr))
    }
}
