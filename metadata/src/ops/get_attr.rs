//! Attributes of an inode.

use crate::operation::{Fault, Query, Reply};
use crate::store::Read;
use crate::tables::inodes;
use weft_proto::v1;

impl Query for v1::GetAttrOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        Ok(Reply::Attr(inodes::existing(state, self.ino)?.attr))
    }

    fn is_single_read(&self) -> bool {
        true
    }
}
