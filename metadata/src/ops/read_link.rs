//! Where a symbolic link points.

use super::sym_link::MAX_TARGET;
use crate::operation::{BRIEF, Fault, Query, Reply, refuse};
use crate::store::Read;
use crate::tables::inodes;
use v1::FileKind;
use weft_proto::{ErrorKind, v1};

impl Query for v1::ReadLinkOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        let inode = inodes::existing(state, self.ino)?;
        match inode.kind() {
            FileKind::Symlink => Ok(Reply::Data(inode.target)),
            _ => refuse(ErrorKind::Invalid, format!("inode {} is no symbolic link", inode.ino())),
        }
    }
    fn longest(&self) -> usize {
        BRIEF + MAX_TARGET
    }

    fn is_single_read(&self) -> bool {
        true
    }
}
