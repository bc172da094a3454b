//! Makes and removes names by paths.

use super::caller::Caller;
use super::walk::{Last, Name, Walk, not_directory};
use crate::access;
use crate::types::{Attr, FileKind};
use weft_proto::{Error, ErrorKind, Result};

/// Permission bits and sticky, which a directory may be made with.
const OF_NEW_DIR: u32 = 0o1777;

/// A name that is free: the directory that it is to be made in.
pub(super) async fn free(caller: &Caller, path: &[u8], dir: bool) -> Result<Last> {
    let mut walk = Walk::begin(caller, path).await?;
    let last = walk.parent().await?;
    last.normal(ErrorKind::Exists)?;
    if let Some(found) = walk.look_if_there(&last.name).await? {
        return Err(Error::new(ErrorKind::Exists, format!("inode {} has that name", found.ino)));
    }
    if last.slash && !dir {
        return Err(Error::new(ErrorKind::NotFound, "a name that is none of a directory"));
    }
    Ok(last)
}

/// Whether the user may take the name of `victim` from `dir`. Errors: `AccessDenied`,
/// `NotPermitted`.
pub(super) async fn check_removal(caller: &Caller, dir: &Attr, victim: &Attr) -> Result<()> {
    caller.check_change(dir).await?;
    access::check_sticky(&caller.who, dir, victim)
}

pub(super) fn is_directory(attr: &Attr) -> Error {
    Error::new(ErrorKind::IsDirectory, format!("inode {} is a directory", attr.ino))
}

impl Caller {
    /// Makes a directory. Errors: `Exists`, `AccessDenied`.
    pub async fn mkdir(&self, path: &[u8], mode: u32) -> Result<Attr> {
        let last = free(self, path, true).await?;
        self.check_change(&last.dir).await?;
        let name = last.normal(ErrorKind::Exists)?;
        self.fs.mk_dir(last.dir.ino, name, mode & OF_NEW_DIR, self.creator()).await
    }

    /// Makes what is neither directory nor symbolic link. Errors: `Exists`, `AccessDenied`,
    /// `NotPermitted` of a device to all but root, `Invalid` of another kind.
    pub async fn mknod(&self, path: &[u8], kind: FileKind, mode: u32, rdev: u64) -> Result<Attr> {
        match kind {
            FileKind::Regular | FileKind::Fifo | FileKind::Socket => {}
            FileKind::CharDevice | FileKind::BlockDevice if self.who.is_root() => {}
            FileKind::CharDevice | FileKind::BlockDevice => {
                return Err(Error::new(ErrorKind::NotPermitted, "only root makes devices"));
            }
            FileKind::Directory | FileKind::Symlink => {
                return Err(Error::new(ErrorKind::Invalid, "a kind that has a call of its own"));
            }
        }
        let last = free(self, path, false).await?;
        self.check_change(&last.dir).await?;
        let name = last.normal(ErrorKind::Exists)?;
        let mode = access::mode_of_new(&self.who, &last.dir, mode);
        self.fs.mk_nod(last.dir.ino, name, kind, mode, rdev, self.creator()).await
    }

    /// Takes away a name of what is no directory. Errors: `IsDirectory`, `AccessDenied`, and
    /// `NotPermitted` for what is another user's in a sticky directory.
    pub async fn unlink(&self, path: &[u8]) -> Result<()> {
        let mut walk = Walk::begin(self, path).await?;
        let last = walk.parent().await?;
        let name = last.normal(ErrorKind::IsDirectory)?;
        let victim = walk.look(&last.name).await?;
        if last.slash {
            let is_dir = victim.is_dir();
            return Err(if is_dir { is_directory(&victim) } else { not_directory(&victim) });
        }
        check_removal(self, &last.dir, &victim).await?;
        self.fs.unlink(last.dir.ino, name).await
    }

    /// Removes an empty directory. Errors: `NotEmpty`, `NotDirectory`, `AccessDenied`, and
    /// `NotPermitted` for what is another user's in a sticky directory; `Invalid` for `.`, `Busy`
    /// for the root.
    pub async fn rmdir(&self, path: &[u8]) -> Result<()> {
        let mut walk = Walk::begin(self, path).await?;
        let last = walk.parent().await?;
        let name = last.normal(match last.name {
            Name::DotDot => ErrorKind::NotEmpty,
            Name::Dot => ErrorKind::Invalid,
            Name::Root | Name::Normal(_) => ErrorKind::Busy,
        })?;
        let victim = walk.look(&last.name).await?;
        check_removal(self, &last.dir, &victim).await?;
        if !victim.is_dir() {
            return Err(not_directory(&victim));
        }
        self.fs.rm_dir(last.dir.ino, name).await
    }
}
