//! Names in directories.
//!
//! Invariants: every name has a dentry and an index entry that agree, under a cookie that it keeps
//! for life; a directory's `entries` counts them, its link count is 2 plus its subdirectories, and
//! a removed directory has none.

use super::inodes;
use crate::operation::{Fault, refuse};
use crate::schema::{self, Dentry, IndexEntry, Inode};
use crate::store::{Read, StoreResult, Txn};
use bytes::Bytes;
use v1::FileKind;
use weft_proto::{ErrorKind, InodeId, v1};

/// Longest name, in bytes.
pub(crate) const MAX_NAME: usize = 255;

/// A name in a directory and what stands there now.
pub(crate) struct Place {
    pub dir: Inode,
    pub name: Bytes,
    pub found: Option<Dentry>,
}

/// Refuses what cannot be a name.
pub(crate) fn valid(name: &[u8]) -> Result<(), Fault> {
    if name.len() > MAX_NAME {
        return refuse(
            ErrorKind::NameTooLong,
            format!("a name of {} bytes is over {MAX_NAME}", name.len()),
        );
    }
    if name.is_empty() || name == b"." || name == b".." || name.iter().any(|&b| b == 0 || b == b'/')
    {
        return refuse(
            ErrorKind::Invalid,
            format!("{:?} cannot be a name", String::from_utf8_lossy(name)),
        );
    }
    Ok(())
}

impl Place {
    /// Looks the name up in a directory that has not been removed.
    pub(crate) fn find(state: &dyn Read, parent: u64, name: &Bytes) -> Result<Self, Fault> {
        let dir = inodes::named_directory(state, parent)?;
        valid(name)?;
        let found = state.dentry(dir.ino(), name)?;
        Ok(Self { dir, name: name.clone(), found })
    }

    /// As [`Self::find`], for a name that must be free.
    pub(crate) fn free(state: &dyn Read, parent: u64, name: &Bytes) -> Result<Self, Fault> {
        let place = Self::find(state, parent, name)?;
        match place.found {
            None => Ok(place),
            Some(_) => refuse(ErrorKind::Exists, format!("{place} exists")),
        }
    }

    /// As [`Self::find`], for a name that must be taken, and what it stands for.
    pub(crate) fn taken(
        state: &dyn Read,
        parent: u64,
        name: &Bytes,
    ) -> Result<(Self, Dentry), Fault> {
        let mut place = Self::find(state, parent, name)?;
        match place.found.take() {
            Some(dentry) => Ok((place, dentry)),
            None => refuse(ErrorKind::NotFound, format!("{place} does not exist")),
        }
    }

    /// Refuses one more subdirectory where there are too many. They count as links of the
    /// directory; unlike a file's names they are bounded only by the counter.
    pub(crate) fn takes_directory(&self) -> Result<(), Fault> {
        match self.dir.attr.nlink {
            u32::MAX => {
                let what = format!("directory {} has too many subdirectories", self.dir.ino());
                refuse(ErrorKind::TooManyLinks, what)
            }
            _ => Ok(()),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} in directory {}", String::from_utf8_lossy(&self.name), self.dir.ino())
    }
}

fn write(tx: &mut Txn<'_>, dir: InodeId, name: &Bytes, dentry: &Dentry) {
    tx.put(schema::dentry(dir, name), dentry);
    let entry = IndexEntry { name: name.clone(), ino: dentry.ino, kind: dentry.kind };
    tx.put(schema::index(dir, dentry.cookie), &entry);
}

/// A directory changed: its times say so.
fn touch(dir: &mut Inode, now: i64) {
    dir.attr.mtime_ns = now;
    dir.attr.ctime_ns = now;
}

/// Gives a free name to an inode and stores the directory `dir`.
pub(crate) fn add(
    tx: &mut Txn<'_>,
    mut dir: Inode,
    name: &Bytes,
    ino: InodeId,
    kind: FileKind,
    now: i64,
) -> StoreResult<()> {
    let cookie = dir.next_cookie;
    dir.next_cookie += 1;
    dir.entries += 1;
    let come = u32::from(kind == FileKind::Directory);
    dir.attr.nlink = dir.attr.nlink.saturating_add(come);
    touch(&mut dir, now);
    tx.put_inode(&dir)?;
    write(tx, dir.ino(), name, &Dentry { ino: ino.0, kind: kind.into(), cookie });
    Ok(())
}

/// Lets a taken name stand for another inode. The name keeps its cookie.
pub(crate) fn replace(
    tx: &mut Txn<'_>,
    dir: InodeId,
    name: &Bytes,
    old: &Dentry,
    ino: u64,
    kind: FileKind,
    now: i64,
) -> StoreResult<()> {
    tx.edit_inode(dir, |dir| {
        let gone = u32::from(old.kind() == FileKind::Directory);
        let come = u32::from(kind == FileKind::Directory);
        dir.attr.nlink = dir.attr.nlink.saturating_sub(gone).saturating_add(come);
        touch(dir, now);
    })?;
    write(tx, dir, name, &Dentry { ino, kind: kind.into(), cookie: old.cookie });
    Ok(())
}

/// Takes a name away.
pub(crate) fn remove(
    tx: &mut Txn<'_>,
    dir: InodeId,
    name: &Bytes,
    old: &Dentry,
    now: i64,
) -> StoreResult<()> {
    tx.edit_inode(dir, |dir| {
        dir.entries = dir.entries.saturating_sub(1);
        let gone = u32::from(old.kind() == FileKind::Directory);
        dir.attr.nlink = dir.attr.nlink.saturating_sub(gone);
        touch(dir, now);
    })?;
    tx.delete(schema::dentry(dir, name));
    tx.delete(schema::index(dir, old.cookie));
    Ok(())
}
