//! What a user does by paths, each call to its end.

use super::connection::Connection;
use super::file::File;
use crate::access::{Access, Credentials};
use crate::paths::{Caller, ReadItem};
use crate::types::{Attr, DirPage, FileKind, OpenFlags, ReadData, SetTime, StatFs};
use bytes::Bytes;
use weft_proto::{InodeId, Result};

/// [`Caller`] for programs that wait: each call is that of the same name, which says what it does
/// and its errors, and may fail with `Disconnected`. Clones are cheap.
#[derive(Clone)]
pub struct User {
    connection: Connection,
    caller: Caller,
}

impl Connection {
    /// The filesystem with the rights of a user.
    pub fn as_user(&self, who: Credentials) -> User {
        User::new(self.clone(), self.filesystem().as_user(who))
    }

    /// The filesystem with the rights of this process: its effective user and groups, as they are
    /// now. Its umask is what [`User::with_umask`] says, and 0 at first.
    pub fn as_this_process(&self) -> User {
        // SAFETY: both only read the credentials of this process.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        self.as_user(Credentials { uid, gid, groups: groups() })
    }
}

/// Supplementary groups of this process.
fn groups() -> Vec<u32> {
    // SAFETY: with 0 it only answers how many there are.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    let mut groups = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: there is room for as many as it is told.
    let count = unsafe { libc::getgroups(count.max(0), groups.as_mut_ptr()) };
    // Fewer, or none, if they have changed meanwhile.
    groups.truncate(usize::try_from(count).unwrap_or(0));
    groups
}

impl User {
    pub(super) fn new(connection: Connection, caller: Caller) -> Self {
        Self { connection, caller }
    }

    /// The connection that it goes through.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The asynchronous face of the same.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// [`Caller::at`].
    #[must_use]
    pub fn at(&self, dir: InodeId) -> Self {
        Self { connection: self.connection.clone(), caller: self.caller.at(dir) }
    }

    /// [`Caller::with_umask`].
    #[must_use]
    pub fn with_umask(&self, umask: u32) -> Self {
        Self { connection: self.connection.clone(), caller: self.caller.with_umask(umask) }
    }

    /// [`Caller::credentials`].
    pub fn credentials(&self) -> &Credentials {
        self.caller.credentials()
    }

    fn run<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.connection.run(call)
    }

    /// [`Caller::open`].
    pub fn open(&self, path: impl AsRef<[u8]>, flags: OpenFlags) -> Result<File> {
        let file = self.run(self.caller.open(path.as_ref(), flags))?;
        Ok(File::new(self.connection.clone(), file))
    }

    /// [`Caller::create`].
    pub fn create(&self, path: impl AsRef<[u8]>, mode: u32, flags: OpenFlags) -> Result<File> {
        let file = self.run(self.caller.create(path.as_ref(), mode, flags))?;
        Ok(File::new(self.connection.clone(), file))
    }

    /// [`Caller::read_many`]. Errors: `Disconnected`; those of each read are given to `take`.
    pub fn read_many(
        &self,
        items: Vec<ReadItem>,
        take: impl FnMut(usize, Result<ReadData>),
    ) -> Result<()> {
        self.run(async {
            self.caller.read_many(items, take).await;
            Ok(())
        })
    }

    /// [`Caller::lookup`].
    pub fn lookup(&self, path: impl AsRef<[u8]>) -> Result<InodeId> {
        self.run(self.caller.lookup(path.as_ref()))
    }

    /// [`Caller::stat`].
    pub fn stat(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        self.run(self.caller.stat(path.as_ref()))
    }

    /// [`Caller::lstat`].
    pub fn lstat(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        self.run(self.caller.lstat(path.as_ref()))
    }

    /// [`Caller::access`].
    pub fn access(&self, path: impl AsRef<[u8]>, want: Access) -> Result<()> {
        self.run(self.caller.access(path.as_ref(), want))
    }

    /// [`Caller::chmod`].
    pub fn chmod(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<Attr> {
        self.run(self.caller.chmod(path.as_ref(), mode))
    }

    /// [`Caller::chown`].
    pub fn chown(
        &self,
        path: impl AsRef<[u8]>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<Attr> {
        self.run(self.caller.chown(path.as_ref(), uid, gid))
    }

    /// [`Caller::lchown`].
    pub fn lchown(
        &self,
        path: impl AsRef<[u8]>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<Attr> {
        self.run(self.caller.lchown(path.as_ref(), uid, gid))
    }

    /// [`Caller::truncate`].
    pub fn truncate(&self, path: impl AsRef<[u8]>, size: u64) -> Result<Attr> {
        self.run(self.caller.truncate(path.as_ref(), size))
    }

    /// [`Caller::utimes`].
    pub fn utimes(
        &self,
        path: impl AsRef<[u8]>,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<Attr> {
        self.run(self.caller.utimes(path.as_ref(), atime, mtime))
    }

    /// [`Caller::lutimes`].
    pub fn lutimes(
        &self,
        path: impl AsRef<[u8]>,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<Attr> {
        self.run(self.caller.lutimes(path.as_ref(), atime, mtime))
    }

    /// [`Caller::read_dir`].
    pub fn read_dir(
        &self,
        path: impl AsRef<[u8]>,
        cookie: u64,
        limit: u32,
        attrs: bool,
    ) -> Result<DirPage> {
        self.run(self.caller.read_dir(path.as_ref(), cookie, limit, attrs))
    }

    /// [`Caller::find_dir`].
    pub fn find_dir(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        self.run(self.caller.find_dir(path.as_ref()))
    }

    /// [`Caller::mkdir`].
    pub fn mkdir(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<Attr> {
        self.run(self.caller.mkdir(path.as_ref(), mode))
    }

    /// [`Caller::mknod`].
    pub fn mknod(
        &self,
        path: impl AsRef<[u8]>,
        kind: FileKind,
        mode: u32,
        rdev: u64,
    ) -> Result<Attr> {
        self.run(self.caller.mknod(path.as_ref(), kind, mode, rdev))
    }

    /// [`Caller::unlink`].
    pub fn unlink(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.run(self.caller.unlink(path.as_ref()))
    }

    /// [`Caller::rmdir`].
    pub fn rmdir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.run(self.caller.rmdir(path.as_ref()))
    }

    /// [`Caller::rename`].
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>, flags: u32) -> Result<()> {
        self.run(self.caller.rename(from.as_ref(), to.as_ref(), flags))
    }

    /// [`Caller::link`].
    pub fn link(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<Attr> {
        self.run(self.caller.link(from.as_ref(), to.as_ref()))
    }

    /// [`Caller::symlink`].
    pub fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<Attr> {
        self.run(self.caller.symlink(target.as_ref(), path.as_ref()))
    }

    /// [`Caller::readlink`].
    pub fn readlink(&self, path: impl AsRef<[u8]>) -> Result<Bytes> {
        self.run(self.caller.readlink(path.as_ref()))
    }

    /// [`Caller::get_xattr`].
    pub fn get_xattr(&self, path: impl AsRef<[u8]>, name: &[u8]) -> Result<Bytes> {
        self.run(self.caller.get_xattr(path.as_ref(), name))
    }

    /// [`Caller::list_xattr`].
    pub fn list_xattr(&self, path: impl AsRef<[u8]>) -> Result<Vec<Bytes>> {
        self.run(self.caller.list_xattr(path.as_ref()))
    }

    /// [`Caller::set_xattr`].
    pub fn set_xattr(
        &self,
        path: impl AsRef<[u8]>,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<()> {
        self.run(self.caller.set_xattr(path.as_ref(), name, value, flags))
    }

    /// [`Caller::remove_xattr`].
    pub fn remove_xattr(&self, path: impl AsRef<[u8]>, name: &[u8]) -> Result<()> {
        self.run(self.caller.remove_xattr(path.as_ref(), name))
    }

    /// [`crate::Filesystem::stat_fs`].
    pub fn stat_fs(&self) -> Result<StatFs> {
        self.run(self.connection.filesystem().stat_fs())
    }

    /// [`crate::Filesystem::sync`].
    pub fn sync(&self) -> Result<()> {
        self.run(self.connection.filesystem().sync())
    }

    /// [`Caller::sync_dir`].
    pub fn sync_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.run(self.caller.sync_dir(path.as_ref()))
    }
}
