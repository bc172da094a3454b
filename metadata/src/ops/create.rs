//! Creates a regular file, or opens the one that is there.

use super::{get_extents, open};
use crate::operation::{Context, Fault, Operation, Reply, refuse};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::inodes::{self, Wanted};
use crate::tables::names::{self, Place};
use v1::FileKind;
use weft_proto::{ErrorKind, InodeId, v1};

/// Extents that come with a file that is there: fewer than with an open, for the reply is stored if
/// it was not there yet when the leader looked.
const FIRST_EXTENTS: usize = 32;
/// Bytes that such an answer is no longer than.
pub(crate) const LONGEST_THERE: usize = get_extents::longest(FIRST_EXTENTS);

/// What is answered where the file is there.
pub(crate) fn there(state: &dyn Read, ino: InodeId) -> Result<v1::OpenReply, Fault> {
    open::reply(state, ino, FIRST_EXTENTS)
}

pub(crate) struct Plan {
    place: Place,
    /// The file that is there.
    there: Option<v1::OpenReply>,
}

impl Operation for v1::CreateOp {
    type Plan = Plan;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Plan, Fault> {
        let place = Place::find(state, self.parent, &self.name)?;
        let Some(found) = &place.found else { return Ok(Plan { place, there: None }) };
        match found.kind() {
            FileKind::Regular if !self.exclusive => {
                let there = Some(there(state, InodeId(found.ino))?);
                Ok(Plan { place, there })
            }
            FileKind::Directory if !self.exclusive => {
                refuse(ErrorKind::IsDirectory, format!("{place} is a directory"))
            }
            _ => refuse(ErrorKind::Exists, format!("{place} exists")),
        }
    }

    fn apply(&self, plan: Plan, tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        let Plan { place, there } = plan;
        if let Some(reply) = there {
            return Ok(Reply::Open(reply));
        }
        let wanted = Wanted {
            kind: FileKind::Regular,
            mode: self.mode,
            umask: self.umask,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
        };
        let file = inodes::make(tx, &place.dir, &wanted, cx.now)?;
        tx.put_inode(&file)?;
        names::add(tx, place.dir, &place.name, file.ino(), FileKind::Regular, cx.now)?;
        Ok(Reply::Open(v1::OpenReply {
            attr: Some(file.attr),
            layout: file.layout,
            extents: Some(v1::ExtentsReply { attr: Some(file.attr), ..Default::default() }),
            owes: false,
        }))
    }
}
