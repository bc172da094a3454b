//! Locks of open files.

use super::facade::Filesystem;
use crate::types::{HandleId, Lock};
use weft_proto::Result;

impl Filesystem {
    /// Locks, or unlocks, without waiting. Errors: `WouldBlock` if another holds what stands
    /// against it; `Io` if locks of this owner were lost.
    pub async fn set_lock(&self, handle: HandleId, lock: Lock) -> Result<()> {
        let ino = self.inner.files.handle(handle)?.file.ino;
        self.inner.locks.set(ino, handle, lock).await
    }

    /// Locks as soon as that can be. Errors: as [`Self::set_lock`]; `Interrupted` if `interrupted`
    /// ends first; `Deadlock`.
    pub async fn wait_lock(
        &self,
        handle: HandleId,
        lock: Lock,
        interrupted: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let ino = self.inner.files.handle(handle)?.file.ino;
        self.inner.locks.wait(ino, handle, lock, interrupted).await
    }

    /// What stands against a lock.
    pub async fn get_lock(&self, handle: HandleId, lock: Lock) -> Result<Option<Lock>> {
        let ino = self.inner.files.handle(handle)?.file.ino;
        self.inner.locks.get(ino, lock).await
    }
}
