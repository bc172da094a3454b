//! Attributes by paths.

use super::caller::Caller;
use super::walk::{Links, Walk};
use crate::access::{self, Access};
use crate::types::{Attr, FileKind, SetAttr, SetTime};
use weft_proto::{Error, ErrorKind, InodeId, Result};

impl Caller {
    /// The inode at a path, for the calls by inodes and for [`Self::at`].
    pub async fn lookup(&self, path: &[u8]) -> Result<InodeId> {
        Ok(self.stat(path).await?.ino)
    }

    /// Attributes of what a path leads to.
    pub async fn stat(&self, path: &[u8]) -> Result<Attr> {
        Walk::begin(self, path).await?.end(Links::Follow).await
    }

    /// [`Self::stat`], of a symbolic link itself.
    pub async fn lstat(&self, path: &[u8]) -> Result<Attr> {
        Walk::begin(self, path).await?.end(Links::Stay).await
    }

    /// What `faccessat(2)` with `AT_EACCESS` answers. Errors: `AccessDenied`.
    pub async fn access(&self, path: &[u8], want: Access) -> Result<()> {
        let attr = self.stat(path).await?;
        self.check(&attr, want).await
    }

    /// Sets permission bits with set-id bits and sticky. Errors: `NotPermitted` to all but the
    /// owner. The set-group-id bit of a group that the owner is not in stays off.
    pub async fn chmod(&self, path: &[u8], mode: u32) -> Result<Attr> {
        let attr = self.stat(path).await?;
        let mode = Some(access::chmod(&self.who, &attr, mode)?);
        self.set(&attr, SetAttr { mode, ..Default::default() }).await
    }

    /// Sets owner and group; what is `None` stays, and with both nothing happens. Errors:
    /// `NotPermitted`.
    pub async fn chown(&self, path: &[u8], uid: Option<u32>, gid: Option<u32>) -> Result<Attr> {
        self.set_owner(self.stat(path).await?, uid, gid).await
    }

    /// [`Self::chown`], of a symbolic link itself.
    pub async fn lchown(&self, path: &[u8], uid: Option<u32>, gid: Option<u32>) -> Result<Attr> {
        self.set_owner(self.lstat(path).await?, uid, gid).await
    }

    /// Cuts a file, or extends it by a hole, to so many bytes. Errors: `AccessDenied`,
    /// `IsDirectory`, `Invalid` of what is no file.
    pub async fn truncate(&self, path: &[u8], size: u64) -> Result<Attr> {
        let attr = self.stat(path).await?;
        let refused = |kind, what| Err(Error::new(kind, format!("inode {} {what}", attr.ino)));
        match attr.kind {
            FileKind::Regular => {}
            FileKind::Directory => return refused(ErrorKind::IsDirectory, "is a directory"),
            _ => return refused(ErrorKind::Invalid, "is no file and has no size to set"),
        }
        self.check(&attr, Access::WRITE).await?;
        let mode = access::kept_mode(&self.who, &attr);
        self.set(&attr, SetAttr { size: Some(size), mode, ..Default::default() }).await
    }

    /// Sets times; what is `None` stays. Errors: `NotPermitted` to all but the owner, but for both
    /// times now: that needs permission to write (`AccessDenied`).
    pub async fn utimes(
        &self,
        path: &[u8],
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<Attr> {
        self.set_times(self.stat(path).await?, atime, mtime).await
    }

    /// [`Self::utimes`], of a symbolic link itself.
    pub async fn lutimes(
        &self,
        path: &[u8],
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<Attr> {
        self.set_times(self.lstat(path).await?, atime, mtime).await
    }

    async fn set_owner(&self, attr: Attr, uid: Option<u32>, gid: Option<u32>) -> Result<Attr> {
        let change = access::chown(&self.who, &attr, uid, gid)?;
        // Who changes neither takes the set-id bits all the same, as the kernel does.
        if (uid, gid, change.mode) == (None, None, None) {
            return Ok(attr);
        }
        self.set(&attr, change).await
    }

    async fn set_times(
        &self,
        attr: Attr,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<Attr> {
        if (atime, mtime) == (None, None) {
            return Ok(attr);
        }
        let beside = access::utimes(&self.who, &attr, atime, mtime)?;
        self.check(&attr, beside).await?;
        self.set(&attr, SetAttr { atime, mtime, ..Default::default() }).await
    }

    async fn set(&self, attr: &Attr, change: SetAttr) -> Result<Attr> {
        self.fs.set_attr(attr.ino, None, change).await
    }
}
