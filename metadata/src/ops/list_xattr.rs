//! Names of all extended attributes of an inode.

use super::{Fault, Query, Reply, inodes};
use crate::schema::{self, HEAD, Tag};
use crate::store::Read;
use bytes::Bytes;
use weft_proto::v1;

impl Query for v1::ListXattrOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        let inode = inodes::existing(state, self.ino)?;
        let mut names = Vec::new();
        if inode.xattr_bytes > 0 {
            let (from, to) = schema::all_of(Tag::Xattr, inode.ino());
            state.scan(&from, &to, &mut |key, _| {
                names.push(Bytes::copy_from_slice(&key[HEAD + 8..]));
                Ok(true)
            })?;
        }
        Ok(Reply::ListXattr(v1::ListXattrReply { names }))
    }
}
