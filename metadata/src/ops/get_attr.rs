//! Attributes of an inode.

use super::{Fault, Query, Reply, inodes};
use crate::store::Read;
use weft_proto::v1;

impl Query for v1::GetAttrOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        Ok(Reply::Attr(inodes::existing(state, self.ino)?.attr))
    }
}
