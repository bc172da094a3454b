//! Set-id bits of files that are changed by whoever may not keep them.
//!
//! The kernel says with each write, truncation and change of owner whether its caller may. What
//! else takes them (`fallocate`, a change to the same owner) it tells by a change of attributes
//! that names none.

use crate::abi::{self, Header};
use crate::attr;
use crate::proc::groups;
use weft_client::{Attr, FileKind, Filesystem, HandleId, SetAttr};
use weft_proto::mode::{SET_IDS, without_set_ids};
use weft_proto::{InodeId, Result};

/// Who makes a request.
#[derive(Clone, Copy)]
pub struct Caller {
    uid: u32,
    gid: u32,
    pid: u32,
}

impl Caller {
    pub fn of(header: &Header) -> Self {
        Self { uid: header.uid, gid: header.gid, pid: header.pid }
    }

    /// Whether the caller is in a group, or stands above groups.
    async fn is_in(self, group: u32) -> bool {
        self.uid == 0 || self.gid == group || groups(self.pid).await.contains(&group)
    }

    async fn leaves(self, of: &Attr) -> u32 {
        match of.kind == FileKind::Directory || of.mode & SET_IDS == 0 {
            true => of.mode,
            false => without_set_ids(of.mode, self.is_in(of.gid).await),
        }
    }
}

/// Whether a file may have such bits, as far as is known without asking.
pub fn may_be_there(fs: &Filesystem, ino: InodeId) -> bool {
    match fs.get_attr_now(ino) {
        Some(attr) => attr.mode & SET_IDS != 0,
        None => !fs.has_no_set_ids(ino),
    }
}

/// Takes the bits of a file that `caller` is going to write.
pub async fn drop(fs: &Filesystem, ino: InodeId, caller: Caller) -> Result<()> {
    let attr = fs.get_attr(ino).await?;
    let left = caller.leaves(&attr).await;
    if left != attr.mode {
        let mode = Some(left);
        fs.set_attr(ino, None, SetAttr { mode, ..Default::default() }).await?;
    }
    Ok(())
}

/// Changes attributes, and takes the bits if the change does; the size only if that is `permitted`.
pub async fn set_attr(
    fs: &Filesystem,
    ino: InodeId,
    change: abi::SetAttr,
    caller: Caller,
    permitted: impl Fn() -> bool + Send + 'static,
) -> Result<Attr> {
    let handle = change.fh.map(HandleId);
    let mut wanted = attr::to_client(&change);
    let none = wanted == SetAttr::default();
    if none || change.drop_set_ids && change.mode.is_none() {
        let attr = fs.get_attr(ino).await?;
        wanted.mode = Some(caller.leaves(&attr).await).filter(|left| *left != attr.mode);
        if wanted == SetAttr::default() {
            return Ok(attr);
        }
    }
    fs.set_attr_while(ino, handle, wanted, permitted).await
}
