//! The value of an extended attribute.

use super::{Fault, Query, Reply, inodes, refuse};
use crate::schema;
use crate::store::Read;
use weft_proto::{ErrorKind, InodeId, v1};

impl Query for v1::GetXattrOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        match state.get(&schema::xattr(InodeId(self.ino), &self.name))? {
            Some(value) => Ok(Reply::Data(value)),
            None => {
                inodes::existing(state, self.ino)?;
                refuse(ErrorKind::NoAttribute, "no such attribute")
            }
        }
    }
}
