//! Names of all extended attributes of an inode.

use crate::operation::{BRIEF, Fault, Query, Reply, item_len};
use crate::schema::{self, HEAD, Inode, Tag};
use crate::store::{Read, StoreResult};
use crate::tables::acl::Which;
use crate::tables::inodes;
use crate::tables::xattrs::MAX_LIST;
use bytes::Bytes;
use v1::xattrs::Item;
use weft_proto::{InodeId, v1};

/// A value that is longer, in bytes, is not sent before it is asked for.
const SHORT: usize = 512;
/// Nor are any of an inode whose names and short values are longer, or that has to be read through
/// long ones.
pub(crate) const SHORT_ALL: usize = 4 << 10;
const READ_ALL: u64 = 16 << 10;

impl Query for v1::ListXattrOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        let inode = inodes::existing(state, self.ino)?;
        let mut names = Vec::new();
        each(state, &inode, |name, _| {
            names.push(Bytes::copy_from_slice(name));
            true
        })?;
        Ok(Reply::ListXattr(v1::ListXattrReply { names }))
    }

    fn longest(&self) -> usize {
        // A name has a byte at least, and two that say how long it is in place of the one that ends
        // it.
        BRIEF + 2 * MAX_LIST as usize
    }
}

/// All attributes of an inode, those with long values without them; nothing if that is too much to
/// be sent unasked, or the inode is gone.
pub(crate) fn short_xattrs(state: &dyn Read, ino: InodeId) -> StoreResult<Option<v1::Xattrs>> {
    let inode = state.inode(ino)?.filter(|inode| inode.xattr_bytes <= READ_ALL);
    let Some(inode) = inode else { return Ok(None) };
    let (mut items, mut bytes) = (Vec::new(), 0);
    each(state, &inode, |name, value| {
        let value = (value.len() <= SHORT).then(|| Bytes::copy_from_slice(value));
        let item = Item { name: Bytes::copy_from_slice(name), value };
        bytes += item_len(&item);
        items.push(item);
        bytes <= SHORT_ALL
    })?;
    Ok((bytes <= SHORT_ALL).then_some(v1::Xattrs { ino: ino.0, items }))
}

/// Visits names and values in order, access control lists first, until `visit` answers false.
fn each(
    state: &dyn Read,
    inode: &Inode,
    mut visit: impl FnMut(&[u8], &[u8]) -> bool,
) -> StoreResult<()> {
    for which in Which::ALL.into_iter().filter(|which| !which.of(inode).is_empty()) {
        if !visit(which.name(), which.of(inode)) {
            return Ok(());
        }
    }
    if inode.xattr_bytes == 0 {
        return Ok(());
    }
    let (from, to) = schema::all_of(Tag::Xattr, inode.ino());
    state.scan(&from, &to, &mut |key, value| Ok(visit(&key[HEAD + 8..], value)))
}
