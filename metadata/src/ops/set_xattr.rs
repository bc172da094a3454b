//! Sets an extended attribute, within Linux's limits.

use super::acl::{self, Which};
use super::{Context, EMPTY, Fault, Operation, Reply, inodes, refuse};
use crate::schema::{self, Inode};
use crate::store::{Read, StoreResult, Txn};
use weft_proto::{ErrorKind, v1};

const CREATE: u32 = 1;
const REPLACE: u32 = 2;
const MAX_NAME: usize = 255;
const MAX_VALUE: usize = 64 << 10;
/// Names and values of one inode together; keeps the list of names within what Linux can answer
/// (64 KiB, which `listxattr` needs) and a purge bounded.
const MAX_TOTAL: u64 = 256 << 10;
const MIN_VALUE_COST: u64 = 1024;

/// What an attribute counts against the limit, and in [`Inode::xattr_bytes`]. A small value costs
/// as if it were larger, which bounds how many names there are.
pub(super) fn cost(name: &[u8], value: &[u8]) -> u64 {
    name.len() as u64 + (value.len() as u64).max(MIN_VALUE_COST)
}

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
        let freed = old.map_or(0, |value| cost(name, &value));
        inode.xattr_bytes = inode.xattr_bytes.saturating_sub(freed) + cost(name, &self.value);
        if inode.xattr_bytes > MAX_TOTAL {
            return refuse(
                ErrorKind::NoSpace,
                format!("attributes of inode {} would exceed {MAX_TOTAL} bytes", inode.ino()),
            );
        }
        Ok(inode)
    }

    fn apply(&self, inode: Inode, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        tx.put_inode(&inode);
        if Which::named(&self.name).is_none() {
            tx.put_bytes(schema::xattr(inode.ino(), &self.name), self.value.clone());
        }
        Ok(EMPTY)
    }
}
