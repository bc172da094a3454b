//! Whether a drive is still there, and how to let go of one that is not.

use super::{Engine, Superblock, superblock, worker};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use weft_proto::{Error, ErrorKind, Result};

/// Between two looks whether the last request has ended.
const LOOK: Duration = Duration::from_millis(20);

impl Engine {
    /// Whether both are of one opening of a target.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }

    /// Reads the superblock from the drive. Errors: `Io` when it cannot be read, or is not that of
    /// this target any more. Takes as long as the drive does.
    pub async fn probe(&self) -> Result<()> {
        let fail = |what: String| {
            Error::new(ErrorKind::Io, format!("superblock of {}: {what}", self.path().display()))
        };
        let size = self.core.superblock.read().size;
        let read = superblock::read_any(&*self.core.device, size).await;
        let block = read.map_err(|e| fail(e.to_string()))?;
        let found = Superblock::decode(block.as_ref()).map_err(fail)?;
        match found.uuid == self.uuid() {
            true => Ok(()),
            false => Err(fail(format!("it is target {} now", found.uuid))),
        }
    }

    /// Has the drive make durable what it holds. Errors: `Io`. Takes as long as the drive does.
    pub async fn flush(&self) -> Result<()> {
        self.core.device.flush().wait().await.map_err(|e| {
            Error::new(ErrorKind::Io, format!("flush of {}: {e}", self.path().display()))
        })
    }

    /// Closes the target and waits for the end of all requests to it, so that it may be opened
    /// again. Errors are those of [`Engine::close`].
    pub async fn retire(self) -> Result<()> {
        let closed = self.close().await;
        // Every clone of the engine holds the committer.
        while Arc::strong_count(&self.committer) > 1 {
            sleep(LOOK).await;
        }
        let failed = |what: String| Error::new(ErrorKind::Internal, what);
        // The drive's thread is waited for, which blocks.
        let dropped = worker::aside("retire", move || drop(self));
        let dropped = dropped.map_err(|e| failed(format!("starting a thread: {e}")))?.await;
        closed.and(dropped.map_err(|e| failed(e.to_string())))
    }
}
