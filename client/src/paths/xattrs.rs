//! Extended attributes and access control lists by paths. Symbolic links are followed; those of
//! links themselves cannot be set.

use super::caller::Caller;
use crate::access;
use bytes::Bytes;
use weft_proto::Result;

impl Caller {
    /// The value of an extended attribute. Errors: `NoAttribute`, `AccessDenied`.
    pub async fn get_xattr(&self, path: &[u8], name: &[u8]) -> Result<Bytes> {
        let attr = self.stat(path).await?;
        let beside = access::read_xattr(&self.who, &attr, name)?;
        self.check(&attr, beside).await?;
        self.fs.get_xattr(attr.ino, name).await
    }

    /// Names of extended attributes, which whoever finds an inode may see, but root's own.
    pub async fn list_xattr(&self, path: &[u8]) -> Result<Vec<Bytes>> {
        let mut names = self.fs.list_xattr(self.stat(path).await?.ino).await?;
        names.retain(|name| self.who.is_root() || !name.starts_with(b"trusted."));
        Ok(names)
    }

    /// Sets an extended attribute, as [`crate::Filesystem::set_xattr`] does; an access control list
    /// takes the set-group-id bit of a group that the user is not in. Errors: `NotPermitted`,
    /// `AccessDenied`.
    pub async fn set_xattr(
        &self,
        path: &[u8],
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<()> {
        let attr = self.stat(path).await?;
        let beside = access::write_xattr(&self.who, &attr, name)?;
        self.check(&attr, beside).await?;
        let clear_setgid = !(self.who.is_root() || self.who.is_in(attr.gid));
        self.fs.set_xattr(attr.ino, name, value, flags, clear_setgid).await
    }

    /// Removes an extended attribute. Errors: `NoAttribute`, `NotPermitted`, `AccessDenied`.
    pub async fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        let attr = self.stat(path).await?;
        let beside = access::write_xattr(&self.who, &attr, name)?;
        self.check(&attr, beside).await?;
        self.fs.remove_xattr(attr.ino, name).await
    }
}
