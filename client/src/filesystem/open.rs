//! Opens and closes.

use super::facade::Filesystem;
use crate::file::{Entered, Files};
use crate::to_the_end::{handing_over, to_the_end};
use crate::types::{Creator, HandleId, OpenFlags, Opened};
use bytes::Bytes;
use std::sync::Arc;
use weft_proto::mode::SET_IDS;
use weft_proto::v1::meta_request::Op;
use weft_proto::{InodeId, Result, v1};

impl Filesystem {
    /// What was opened, unless the caller is gone by then.
    async fn opened(
        &self,
        flags: OpenFlags,
        open: impl Future<Output = Result<Entered>> + Send + 'static,
    ) -> Result<Opened> {
        let (files, unwanting) = (self.inner.files.clone(), self.inner.files.clone());
        let open = async move {
            let (handle, attr, keep_cache) = open.await?;
            let entitled = !flags.both || files.map(handle).await;
            let cached = entitled && !flags.append;
            Ok(Opened { handle, attr, keep_cache, cached })
        };
        let unwanted = move |opened: Result<Opened>| async move {
            if let Ok(opened) = opened {
                // Nothing was written by it.
                let _ = unwanting.release(opened.handle).await;
            }
        };
        handing_over(open, unwanted).await
    }

    /// Opens a file. Errors: `NotFound`, `ReadOnly`.
    pub async fn open(&self, ino: InodeId, flags: OpenFlags) -> Result<Opened> {
        if flags.write || flags.truncate {
            self.may_change()?;
        }
        let files = self.inner.files.clone();
        self.opened(flags, async move { files.open(ino, flags).await }).await
    }

    /// Makes a regular file and opens it; opens what is there unless `flags.exclusive`.
    pub async fn create(
        &self,
        parent: InodeId,
        name: &[u8],
        mode: u32,
        by: Creator,
        flags: OpenFlags,
    ) -> Result<Opened> {
        self.may_plant(mode & SET_IDS != 0)?;
        let Creator { uid, gid, umask } = self.may_make(by)?;
        let name = Bytes::copy_from_slice(name);
        let (parent, exclusive) = (parent.0, flags.exclusive);
        let (of, kind) = (name.clone(), v1::FileKind::Regular.into());
        let file =
            v1::MakeOp { parent, name: of, kind, mode, uid, gid, umask, ..Default::default() };
        let alone = (!self.inner.options.dir_sync).then(|| self.inner.files.make(file, flags));
        if let Some(made) = alone.flatten() {
            return self.opened(flags, std::future::ready(made)).await;
        }
        let op = move |open_seq| {
            let op = v1::CreateOp { parent, name, mode, uid, gid, exclusive, open_seq, umask };
            Op::Create(op)
        };
        self.make(op, flags).await
    }

    /// Makes a regular file without a name and opens it. It inherits from `parent`, which
    /// [`Self::link`] may name it in; without a name it goes with its last handle.
    pub async fn tmp_file(
        &self,
        parent: InodeId,
        mode: u32,
        by: Creator,
        flags: OpenFlags,
    ) -> Result<Opened> {
        self.may_plant(mode & SET_IDS != 0)?;
        let Creator { uid, gid, umask } = self.may_make(by)?;
        let parent = parent.0;
        let op =
            move |open_seq| Op::TmpFile(v1::TmpFileOp { parent, mode, uid, gid, open_seq, umask });
        self.make(op, flags).await
    }

    /// Makes a file by the operation that `op` gives for the number of its open, and opens it.
    async fn make(
        &self,
        op: impl FnOnce(u64) -> Op + Send + 'static,
        flags: OpenFlags,
    ) -> Result<Opened> {
        let files = self.inner.files.clone();
        self.opened(flags, async move { files.create(op, flags).await }).await
    }

    /// Opens a directory: until [`Self::release`] it outlives its removal, after which it has no
    /// names and takes none (`NotFound`). To list it, it need not be open. Errors: `Stale` if it is
    /// gone.
    pub async fn open_dir(&self, ino: InodeId) -> Result<HandleId> {
        let files = self.inner.files.clone();
        let open = async move { (files.open_dir(ino).await, files) };
        let unwanted = |(opened, files): (Result<HandleId>, Arc<Files>)| async move {
            if let Ok(handle) = opened {
                let _ = files.release_dir(handle);
            }
        };
        handing_over(open, unwanted).await.0
    }

    /// [`Self::close`] if there is nothing to do.
    pub fn close_now(&self, handle: HandleId, owner: u64) -> Option<Result<()>> {
        let handle = self.inner.files.handle(handle).ok()?;
        handle.close();
        let idle = !self.inner.locks.has_any(handle.file.ino, owner) && handle.is_closed();
        idle.then(|| handle.failure_at_close())
    }

    /// What `close(2)` does, each time that a process closes the file: everything written to it is
    /// in the log of this mount, or durable with
    /// [`Options::close_sync`](crate::Options::close_sync), and the owner of locks of fcntl(2) has
    /// none any more.
    pub async fn close(&self, handle: HandleId, owner: u64) -> Result<()> {
        let (locks, handle) = (self.inner.locks.clone(), self.inner.files.handle(handle)?);
        handle.close();
        to_the_end(async move {
            let flushed = match handle.is_closed() {
                true => handle.failure_at_close(),
                false => handle.flush_at_close().await,
            };
            locks.unlock_owner(handle.file.ino, owner).await;
            flushed
        })
        .await
    }

    /// The handle of a file or directory is gone, and locks that were taken through it alone.
    /// Errors of data that was still buffered are answered here last.
    pub async fn release(&self, handle: HandleId) -> Result<()> {
        let ino = match self.inner.files.handle(handle) {
            Ok(open) => open.file.ino,
            Err(_) => return self.inner.files.release_dir(handle),
        };
        let (locks, files) = (self.inner.locks.clone(), self.inner.files.clone());
        to_the_end(async move {
            let released = files.release(handle).await;
            locks.unlock_handle(ino, handle).await;
            released
        })
        .await
    }
}
