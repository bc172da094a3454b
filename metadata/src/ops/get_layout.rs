//! How a file is laid out, or what a directory passes on to new children.

use super::{Fault, Query, Reply, inodes, refuse};
use crate::store::Read;
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
}
