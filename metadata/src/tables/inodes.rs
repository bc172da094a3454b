//! Inodes as operations see them: found or refused, made, and left by their last name.
//!
//! Invariant: an inode whose link count is 0 has an orphan record, and no other inode has one.

use super::acl;
use crate::operation::{Fault, refuse};
use crate::schema::{self, FIRST_COOKIE, Inode};
use crate::store::{Read, StoreResult, Txn};
use v1::FileKind;
use weft_proto::mode::{MODE_MASK, SETGID};
use weft_proto::{ErrorKind, InodeId, Layout, v1};

/// Most names of one file.
pub(crate) const MAX_LINKS: u32 = 65_000;
/// What `stat` answers as the size of a directory.
const DIR_SIZE: u64 = 4096;

/// The inode, or [`ErrorKind::Stale`] if it is gone.
pub(crate) fn existing(state: &dyn Read, ino: u64) -> Result<Inode, Fault> {
    match state.inode(InodeId(ino))? {
        Some(inode) => Ok(inode),
        None => refuse(ErrorKind::Stale, format!("inode {} is gone", InodeId(ino))),
    }
}

/// The directory, named or removed but still open.
pub(crate) fn directory(state: &dyn Read, ino: u64) -> Result<Inode, Fault> {
    let inode = existing(state, ino)?;
    if !inode.is_dir() {
        return refuse(
            ErrorKind::NotDirectory,
            format!("inode {} is not a directory", InodeId(ino)),
        );
    }
    Ok(inode)
}

/// The directory, if it has not been removed: nothing is in one that was, or can be made there.
pub(crate) fn named_directory(state: &dyn Read, ino: u64) -> Result<Inode, Fault> {
    let dir = directory(state, ino)?;
    if dir.attr.nlink == 0 {
        return refuse(ErrorKind::NotFound, format!("directory {} was removed", dir.ino()));
    }
    Ok(dir)
}

/// A file whose content may be changed, and how its data is laid out.
pub(crate) fn file(state: &dyn Read, ino: u64) -> Result<(Inode, Layout), Fault> {
    let inode = existing(state, ino)?;
    match inode.kind() {
        FileKind::Regular => {}
        FileKind::Directory => {
            return refuse(
                ErrorKind::IsDirectory,
                format!("directory {} has no data", inode.ino()),
            );
        }
        _ => return refuse(ErrorKind::Invalid, format!("inode {} is no file", inode.ino())),
    }
    match inode.checked_layout()? {
        Some(layout) => Ok((inode, layout)),
        None => refuse(ErrorKind::Internal, format!("file {} has no layout", inode.ino())),
    }
}

/// What a caller asks of a new inode.
pub(crate) struct Wanted {
    pub kind: FileKind,
    pub mode: u32,
    /// Taken off the mode if there is no list to inherit.
    pub umask: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
}

/// A new inode in `dir`, not stored yet; see [`describe`].
pub(crate) fn make(tx: &mut Txn<'_>, dir: &Inode, wanted: &Wanted, now: i64) -> StoreResult<Inode> {
    let number = tx.edit_counters(|c| {
        c.inodes += 1;
        c.next_inode += 1;
        c.next_inode - 1
    })?;
    describe(dir, wanted, InodeId::new(dir.ino().shard(), number), now)
}

/// What a new inode in `dir` is like: group, lists and layout come from the directory as Linux and
/// the layout rules say. The caller fills in what only its kind has.
pub(crate) fn describe(dir: &Inode, wanted: &Wanted, ino: InodeId, now: i64) -> StoreResult<Inode> {
    let is_dir = wanted.kind == FileKind::Directory;
    let inherits = dir.attr.mode & SETGID != 0;
    let mut mode = wanted.mode & MODE_MASK;
    if inherits && is_dir {
        mode |= SETGID;
    }
    let mut inode = Inode {
        attr: v1::Attr {
            ino: ino.0,
            kind: wanted.kind.into(),
            mode,
            nlink: if is_dir { 2 } else { 1 },
            uid: wanted.uid,
            gid: if inherits { dir.attr.gid } else { wanted.gid },
            rdev: wanted.rdev,
            size: if is_dir { DIR_SIZE } else { 0 },
            atime_ns: now,
            mtime_ns: now,
            ctime_ns: now,
            btime_ns: now,
            no_xattrs: true,
            ..Default::default()
        },
        layout: match wanted.kind {
            FileKind::Directory | FileKind::Regular => dir.layout,
            _ => None,
        },
        parent: dir.attr.ino,
        next_cookie: if is_dir { FIRST_COOKIE } else { 0 },
        quota: dir.zone(),
        ..Default::default()
    };
    acl::inherit(dir, &mut inode, wanted.umask)?;
    Ok(inode)
}

/// The root directory of a new tree.
pub(crate) fn root(ino: InodeId, layout: v1::LayoutInfo, now: i64) -> Inode {
    Inode {
        attr: v1::Attr {
            ino: ino.0,
            kind: FileKind::Directory.into(),
            mode: 0o755,
            nlink: 2,
            size: DIR_SIZE,
            atime_ns: now,
            mtime_ns: now,
            ctime_ns: now,
            btime_ns: now,
            no_xattrs: true,
            ..Default::default()
        },
        layout: Some(layout),
        parent: ino.0,
        next_cookie: FIRST_COOKIE,
        ..Default::default()
    }
}

/// Takes one name from an inode; without any it becomes an orphan. A directory has only one name.
pub(crate) fn drop_name(tx: &mut Txn<'_>, ino: InodeId, now: i64) -> StoreResult<()> {
    let inode = tx.edit_inode(ino, |inode| {
        let left = if inode.is_dir() { 0 } else { inode.attr.nlink.saturating_sub(1) };
        inode.attr.nlink = left;
        inode.attr.ctime_ns = now;
    })?;
    if inode.attr.nlink == 0 {
        tx.put_bytes(schema::orphan(ino), Default::default());
    }
    Ok(())
}
