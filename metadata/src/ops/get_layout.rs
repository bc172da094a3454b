//! How a file is laid out, or what a directory passes on to new children.

use crate::operation::{Fault, Query, Reply, refuse};
use crate::store::Read;
use crate::tables::inodes;
use weft_proto::{ErrorKind, v1};

impl Query for v1::GetLayoutOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        let inode = inodes::existing(state, self.ino)?;
        match inode.layout {
            Some(layout) => Ok(Reply::Layout(layout)),
            None => refuse(
                ErrorKind::Invalid,
                format!("inode {} is no file or directory and has no layout", inode.ino()),
            ),
        }
    }

    fn is_single_read(&self) -> bool {
        true
    }
}
