//! A file that a user has opened.

use super::caller::Caller;
use crate::access::{self, Credentials};
use crate::filesystem::Filesystem;
use crate::to_the_end::to_the_end;
use crate::types::{
    Allocate, Attr, HandleId, Lock, LockKind, OpenFlags, Opened, Placed, ReadData, Seek, SetAttr,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime;
use weft_net::DeviceMemory;
use weft_proto::locks::LAST;
use weft_proto::mode::SET_IDS;
use weft_proto::{Error, ErrorKind, InodeId, Result};

/// A file that a user has opened, to do with it what it was opened for. [`Self::close`] tells what
/// could not be written; a file that is dropped is closed, too, and nobody is told.
pub struct OpenFile {
    fs: Filesystem,
    who: Arc<Credentials>,
    ino: InodeId,
    handle: HandleId,
    reads: bool,
    writes: bool,
    appends: bool,
    closed: AtomicBool,
    /// Closes it if it is dropped.
    runtime: runtime::Handle,
}

impl OpenFile {
    pub(super) fn new(caller: &Caller, opened: Opened, flags: OpenFlags) -> Self {
        Self {
            fs: caller.fs.clone(),
            who: caller.who.clone(),
            ino: opened.attr.ino,
            handle: opened.handle,
            reads: !flags.write || flags.both,
            writes: flags.write,
            appends: flags.append,
            closed: AtomicBool::new(false),
            runtime: runtime::Handle::current(),
        }
    }

    /// Which inode it is.
    pub fn ino(&self) -> InodeId {
        self.ino
    }

    /// The handle, for calls of [`Filesystem`], which check nothing.
    pub fn handle(&self) -> HandleId {
        self.handle
    }

    /// Its attributes.
    pub async fn stat(&self) -> Result<Attr> {
        self.fs.get_attr(self.ino).await
    }

    /// [`Filesystem::read`]. Errors: `NotPermitted` if it was not opened to read.
    pub async fn read(&self, off: u64, len: usize) -> Result<ReadData> {
        self.opened_to(self.reads, "read")?;
        self.fs.read(self.handle, off, len).await
    }

    /// [`Filesystem::read_placed`]. Errors: `NotPermitted` if it was not opened to read.
    pub async fn read_placed(
        &self,
        off: u64,
        len: usize,
        into: (&Arc<DeviceMemory>, usize),
    ) -> Result<Option<Vec<Placed>>> {
        self.opened_to(self.reads, "read")?;
        self.fs.read_placed(self.handle, off, len, into).await
    }

    /// [`Filesystem::write`]; a program loses its set-id bits. Errors: `NotPermitted` if it was not
    /// opened to write.
    pub async fn write(&self, off: u64, data: &[u8]) -> Result<usize> {
        self.opened_to(self.writes, "write")?;
        self.drop_set_ids().await?;
        self.fs.write(self.handle, off, data).await
    }

    /// A program that somebody else changes does not run with its owner's rights any more.
    async fn drop_set_ids(&self) -> Result<()> {
        if !self.who.is_root()
            && self.fs.get_attr_now(self.ino).is_none_or(|attr| attr.mode & SET_IDS != 0)
            && let Some(mode) = access::kept_mode(&self.who, &self.stat().await?)
        {
            self.set(SetAttr { mode: Some(mode), ..Default::default() }).await?;
        }
        Ok(())
    }

    /// Cuts it, or extends it by a hole. Errors: `Invalid` if it was not opened to write.
    pub async fn truncate(&self, size: u64) -> Result<Attr> {
        if !self.writes {
            return Err(Error::new(ErrorKind::Invalid, "the file was not opened to write"));
        }
        let mode = access::kept_mode(&self.who, &self.stat().await?);
        self.set(SetAttr { size: Some(size), mode, ..Default::default() }).await
    }

    /// What was written is durable and visible to all.
    pub async fn sync(&self) -> Result<()> {
        self.fs.fsync(self.handle, false).await
    }

    /// [`Filesystem::copy_range`], from this file to another, or to itself. Errors: `NotPermitted`
    /// if this was not opened to read, or that not to write, or to append; `CrossDevice` if the
    /// other came through another connection.
    pub async fn copy_to(&self, off: u64, to: &Self, to_off: u64, len: u64) -> Result<u64> {
        self.opened_to(self.reads, "read")?;
        to.opened_to(to.writes && !to.appends, "write anywhere")?;
        if !self.fs.is_same(&to.fs) {
            let what = "the files were opened through two connections";
            return Err(Error::new(ErrorKind::CrossDevice, what));
        }
        to.drop_set_ids().await?;
        self.fs.copy_range(self.handle, off, to.handle, to_off, len).await
    }

    /// [`Filesystem::fallocate`]. Errors: `NotPermitted` if it was not opened to write.
    pub async fn allocate(
        &self,
        off: u64,
        len: u64,
        what: Allocate,
        keep_size: bool,
    ) -> Result<()> {
        self.opened_to(self.writes, "write")?;
        self.drop_set_ids().await?;
        self.fs.fallocate(self.handle, off, len, what, keep_size).await
    }

    /// [`Filesystem::seek`].
    pub async fn seek(&self, off: u64, what: Seek) -> Result<u64> {
        self.fs.seek(self.handle, off, what).await
    }

    /// What `flock(2)` does: locks the whole file for this open file, in the place of the lock that
    /// it has. Errors: `WouldBlock`, if it is not to wait; `Io` if its locks were lost.
    pub async fn lock(&self, kind: LockKind, wait: bool) -> Result<()> {
        let (owner, pid) = (self.handle.0, std::process::id());
        let lock = Lock { flock: true, owner, kind, start: 0, end: LAST, pid };
        match wait {
            true => self.fs.wait_lock(self.handle, lock, std::future::pending()).await,
            false => self.fs.set_lock(self.handle, lock).await,
        }
    }

    /// Closes it, as `close(2)` on a mount does: what was written is visible to all, and durable
    /// when it is synced, within a second by itself, or with [`Options::close_sync`] at once. The
    /// first error of what was written and nobody was told of is answered; it is closed all the
    /// same.
    ///
    /// [`Options::close_sync`]: crate::Options::close_sync
    pub async fn close(self) -> Result<()> {
        self.finish().await
    }

    /// [`Self::close`], of a file that others may have, too: their calls fail from now on. A second
    /// time nothing happens.
    pub async fn finish(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let (fs, handle) = (self.fs.clone(), self.handle);
        to_the_end(async move {
            let told = fs.close(handle, handle.0).await;
            let released = fs.release(handle).await;
            told.and(released)
        })
        .await
    }

    async fn set(&self, change: SetAttr) -> Result<Attr> {
        self.fs.set_attr(self.ino, Some(self.handle), change).await
    }

    fn opened_to(&self, allowed: bool, what: &str) -> Result<()> {
        match allowed {
            true => Ok(()),
            false => {
                let what = format!("the file was not opened to {what}");
                Err(Error::new(ErrorKind::NotPermitted, what))
            }
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if !*self.closed.get_mut() {
            let (fs, handle) = (self.fs.clone(), self.handle);
            self.runtime.spawn(async move {
                // Nobody is there to be told.
                let _ = fs.release(handle).await;
            });
        }
    }
}
