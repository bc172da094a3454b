//! Locks of open files.

use super::facade::Filesystem;
use crate::locks::StillAsked;
use crate::types::{HandleId, Lock};
use std::sync::Arc;
use weft_proto::{Error, ErrorKind, InodeId, Result};

impl Filesystem {
    /// Locks, or unlocks, without waiting. Errors: `WouldBlock` if another holds what stands
    /// against it; `Io` if locks of this owner were lost.
    pub async fn set_lock(&self, handle: HandleId, lock: Lock) -> Result<()> {
        self.set_lock_while(handle, lock, || true).await
    }

    /// [`Self::set_lock`] for a caller that may be answered without it, as one that is killed.
    /// `waits` says whether it still waits: no more from before the file may be closed for it,
    /// which releases what was locked by then. Nothing is locked after that (`Interrupted`).
    pub async fn set_lock_while(
        &self,
        handle: HandleId,
        lock: Lock,
        waits: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<()> {
        let (ino, asked) = self.asked(handle, waits)?;
        self.inner.locks.set(ino, handle, lock, &asked).await
    }

    /// Locks as soon as that can be. Errors: as [`Self::set_lock`]; `Interrupted` if `interrupted`
    /// ends first; `Deadlock`.
    pub async fn wait_lock(
        &self,
        handle: HandleId,
        lock: Lock,
        interrupted: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        self.wait_lock_while(handle, lock, interrupted, || true).await
    }

    /// [`Self::wait_lock`] as [`Self::set_lock_while`].
    pub async fn wait_lock_while(
        &self,
        handle: HandleId,
        lock: Lock,
        interrupted: impl Future<Output = ()> + Send,
        waits: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<()> {
        let (ino, asked) = self.asked(handle, waits)?;
        self.inner.locks.wait(ino, handle, lock, interrupted, &asked).await
    }

    /// What stands against a lock.
    pub async fn get_lock(&self, handle: HandleId, lock: Lock) -> Result<Option<Lock>> {
        let ino = self.inner.files.handle(handle)?.file.ino;
        self.inner.locks.get(ino, lock).await
    }

    /// The inode behind a handle, and whether a lock is still asked for through that.
    fn asked(
        &self,
        handle: HandleId,
        waits: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<(InodeId, StillAsked)> {
        let files = self.inner.files.clone();
        let ino = files.handle(handle)?.file.ino;
        let asked = move || {
            // Closed by whoever has it, too: what was locked through it was released then.
            files.handle(handle)?;
            match waits() {
                true => Ok(()),
                false => Err(Error::new(ErrorKind::Interrupted, "nobody waits for the lock")),
            }
        };
        Ok((ino, Arc::new(asked)))
    }
}
