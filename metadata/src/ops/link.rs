//! Gives a file another name, or its first.

use crate::operation::{Context, Fault, Operation, Reply, refuse};
use crate::schema::{self, Inode};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::inodes::{self, MAX_LINKS};
use crate::tables::names::{self, Place};
use crate::tables::quotas::Marking;
use weft_proto::{ErrorKind, InodeId, v1};

pub(crate) struct Plan {
    file: Inode,
    place: Place,
}

/// Whether the only name of a file that is yet to be marked lies in a directory of the same quota.
fn is_beside(state: &dyn Read, file: &Inode, place: &Place) -> StoreResult<bool> {
    let (zone, walk) = (place.dir.zone(), Marking::now(state)?);
    if file.attr.nlink != 1 || !walk.is_some_and(|walk| walk.marks(file.quota, zone)) {
        return Ok(false);
    }
    Ok(state.inode(InodeId(file.parent))?.is_some_and(|dir| dir.zone() == zone))
}

impl Operation for v1::LinkOp {
    type Plan = Plan;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<Plan, Fault> {
        let place = Place::free(state, self.parent, &self.name)?;
        let file = inodes::existing(state, self.ino)?;
        let ino = file.ino();
        if file.is_dir() {
            return refuse(ErrorKind::NotPermitted, format!("inode {ino} is a directory"));
        }
        if file.attr.nlink == 0 && !file.nameless {
            return refuse(ErrorKind::NotFound, format!("inode {ino} was removed"));
        }
        if file.attr.nlink >= MAX_LINKS {
            return refuse(ErrorKind::TooManyLinks, format!("inode {ino} has {MAX_LINKS} names"));
        }
        if !file.nameless && file.quota != place.dir.zone() && !is_beside(state, &file, &place)? {
            return refuse(ErrorKind::CrossDevice, format!("inode {ino} counts for another quota"));
        }
        Ok(Plan { file, place })
    }

    fn apply(&self, plan: Plan, tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        let Plan { mut file, place } = plan;
        if file.nameless {
            file.nameless = false;
            file.parent = place.dir.attr.ino;
            tx.delete(schema::orphan(file.ino()));
        }
        // It is this already, or is yet to be marked.
        file.quota = place.dir.zone();
        file.attr.nlink += 1;
        if file.parent == 0 {
            file.parent = place.dir.attr.ino;
        }
        file.attr.ctime_ns = cx.now;
        tx.put_inode(&file)?;
        names::add(tx, place.dir, &place.name, file.ino(), file.kind(), cx.now)?;
        Ok(Reply::Attr(file.attr))
    }
}
