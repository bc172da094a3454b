//! Names of all extended attributes of an inode.

use super::acl::Which;
use super::{Fault, Query, Reply, inodes};
use crate::schema::{self, HEAD, Tag};
use crate::store::Read;
use bytes::Bytes;
use weft_proto::v1;

impl Query for v1::ListXattrOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        let inode = inodes::existing(state, self.ino)?;
        let there = Which::ALL.into_iter().filter(|which| !which.of(&inode).is_empty());
        let mut names: Vec<_> = there.map(|which| Bytes::from_static(which.name())).collect();
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
