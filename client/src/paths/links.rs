//! Links by paths, of both kinds.

use super::caller::Caller;
use super::names::free;
use super::walk::{Links, Walk};
use crate::access;
use crate::types::{Attr, FileKind};
use bytes::Bytes;
use weft_proto::{Error, ErrorKind, Result};

impl Caller {
    /// Gives an inode one more name; a symbolic link is not followed. Errors: `Exists`,
    /// `AccessDenied`, `NotPermitted` for directories, and for files of others that the user may
    /// not read and write, or that are run with the rights of others.
    pub async fn link(&self, from: &[u8], to: &[u8]) -> Result<Attr> {
        let source = Walk::begin(self, from).await?.end(Links::Stay).await?;
        let last = free(self, to, false).await?;
        let beside = access::link(&self.who, &source)?;
        self.check(&source, beside).await.map_err(|e| match e.kind {
            ErrorKind::AccessDenied => {
                let what = format!("inode {} is another user's", source.ino);
                Error::new(ErrorKind::NotPermitted, what)
            }
            _ => e,
        })?;
        self.check_change(&last.dir).await?;
        self.fs.link(source.ino, last.dir.ino, last.normal(ErrorKind::Exists)?).await
    }

    /// Makes a symbolic link at `path` that leads to `target`. Errors: `Exists`, `AccessDenied`.
    pub async fn symlink(&self, target: &[u8], path: &[u8]) -> Result<Attr> {
        let last = free(self, path, false).await?;
        self.check_change(&last.dir).await?;
        let name = last.normal(ErrorKind::Exists)?;
        self.fs.sym_link(last.dir.ino, name, target, self.creator()).await
    }

    /// Where a symbolic link leads. Errors: `Invalid` of what is none.
    pub async fn readlink(&self, path: &[u8]) -> Result<Bytes> {
        let link = self.lstat(path).await?;
        if link.kind != FileKind::Symlink {
            let what = format!("inode {} is no symbolic link", link.ino);
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        self.fs.read_link(link.ino).await
    }
}
