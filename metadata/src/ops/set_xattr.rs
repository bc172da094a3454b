//! Sets an extended attribute, within Linux's limits.

use crate::operation::{Context, EMPTY, Fault, Operation, Reply, refuse};
use crate::schema::{self, Inode};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::acl::{self, Which};
use crate::tables::inodes;
use crate::tables::xattrs::{MAX_LIST, MAX_VALUE, Room};
use weft_proto::{ErrorKind, v1};

const CREATE: u32 = 1;
const REPLACE: u32 = 2;
const MAX_NAME: usize = 255;
/// Names and values of one inode together, in bytes.
const MAX_TOTAL: u64 = 1 << 20;

impl Operation for v1::SetXattrOp {
    /// The inode as it will be.
    type Plan = Inode;

    fn check(&self, state: &dyn Read, cx: &Context) -> Result<Inode, Fault> {
        let name = &self.name;
        if name.is_empty() || name.len() > MAX_NAME {
            return refuse(
                ErrorKind::OutOfRange,
                format!("attribute name of {} bytes, not 1..={MAX_NAME}", name.len()),
            );
        }
        if name.contains(&0) || self.flags & !(CREATE | REPLACE) != 0 {
            return refuse(ErrorKind::Invalid, "attribute name with a NUL, or unknown flags");
        }
        if self.value.len() > MAX_VALUE {
            return refuse(
                ErrorKind::TooLarge,
                format!("attribute of {} bytes is over {MAX_VALUE}", self.value.len()),
            );
        }
        let mut inode = inodes::existing(state, self.ino)?;
        inode.attr.ctime_ns = cx.now;
        if let Some(which) = Which::named(name) {
            acl::set(&mut inode, which, &self.value, self.clear_setgid)?;
            return Ok(inode);
        }
        let old = state.get(&schema::xattr(inode.ino(), name))?;
        if old.is_some() && self.flags & CREATE != 0 {
            return refuse(ErrorKind::Exists, "the attribute exists");
        }
        if old.is_none() && self.flags & REPLACE != 0 {
            return refuse(ErrorKind::NoAttribute, "no such attribute");
        }
        let freed = old.map_or(Room::default(), |value| Room::of(name, &value));
        let room = Room::accounted(&inode).without(freed).with(Room::of(name, &self.value));
        if room.total > MAX_TOTAL || room.list > MAX_LIST {
            let what = format!(
                "attributes of inode {} would exceed {MAX_TOTAL} bytes, or their names {MAX_LIST}",
                inode.ino()
            );
            return refuse(ErrorKind::NoSpace, what);
        }
        room.account(&mut inode);
        Ok(inode)
    }

    fn apply(&self, inode: Inode, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        tx.put_inode(&inode)?;
        if Which::named(&self.name).is_none() {
            tx.put_bytes(schema::xattr(inode.ino(), &self.name), self.value.clone());
        }
        Ok(EMPTY)
    }
}
