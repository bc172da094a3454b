//! The value of an extended attribute.

use crate::operation::{BRIEF, Fault, Query, Reply, refuse};
use crate::schema;
use crate::store::Read;
use crate::tables::acl::Which;
use crate::tables::inodes;
use crate::tables::xattrs::MAX_VALUE;
use weft_proto::{ErrorKind, InodeId, v1};

impl Query for v1::GetXattrOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        if let Some(which) = Which::named(&self.name) {
            let inode = inodes::existing(state, self.ino)?;
            return match which.of(&inode) {
                none if none.is_empty() => refuse(ErrorKind::NoAttribute, "no such list"),
                list => Ok(Reply::Data(list.clone())),
            };
        }
        match state.get(&schema::xattr(InodeId(self.ino), &self.name))? {
            Some(value) => Ok(Reply::Data(value)),
            None => {
                inodes::existing(state, self.ino)?;
                refuse(ErrorKind::NoAttribute, "no such attribute")
            }
        }
    }
    fn longest(&self) -> usize {
        BRIEF + MAX_VALUE
    }
}
