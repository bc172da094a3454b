//! The seam to the drive. The real one is [`super::uring`]; tests cut power behind it.

use bytes::Bytes;
use std::io;
use std::time::Duration;
use tokio::sync::oneshot::{self, error::TryRecvError};
use weft_net::AlignedBuf;
use weft_proto::layout;

/// Unit of allocation, of checksums and of I/O, in bytes.
pub const BLOCK: u64 = layout::BLOCK as u64;

/// The outcome of a request to a drive, from async code ([`Done::wait`]) or a plain thread.
pub struct Done<T>(oneshot::Receiver<io::Result<T>>);

/// A drive. Requests are queued in the call and complete in any order. Offsets and lengths are
/// multiples of 4096 bytes and lie in the drive, memory is 4096-aligned.
pub trait Device: Send + Sync + 'static {
    /// Bytes, a multiple of 4096.
    fn size(&self) -> u64;
    fn read(&self, off: u64, len: usize) -> Done<AlignedBuf>;
    /// Writes the pieces one after the other; not yet durable when done.
    fn write(&self, off: u64, pieces: Vec<Bytes>) -> Done<()>;
    /// Writes `piece`, then makes it and every write that had completed before this call durable.
    fn commit(&self, off: u64, piece: Bytes) -> Done<()>;
    /// Makes every write that had completed before this call durable.
    fn flush(&self) -> Done<()>;
    /// How many bytes a second may be discarded; 0: the drive has no use for it.
    fn discard_rate(&self) -> u64 {
        0
    }
    /// Tells the drive that these bytes are not needed any more; what a read finds there then is
    /// undefined. Blocks.
    fn discard(&self, _off: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    /// It is simulated: every request is done when its call returns, and time stands still while a
    /// thread of the engine works. Who waits for one blocks its own, so that whatever an operation
    /// does happens at one moment.
    fn is_simulated(&self) -> bool {
        false
    }
    /// How long the oldest unanswered request has waited.
    fn stalled(&self) -> Duration {
        Duration::ZERO
    }
}

impl<T> Done<T> {
    /// The two ends of one outcome.
    pub fn channel() -> (oneshot::Sender<io::Result<T>>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self(receiver))
    }

    pub async fn wait(self) -> io::Result<T> {
        self.0.await.unwrap_or_else(|_| Err(gone()))
    }

    /// For plain threads; must not be called in async code, unless the drive is simulated.
    pub fn block(mut self) -> io::Result<T> {
        match self.0.try_recv() {
            Ok(done) => done,
            Err(TryRecvError::Empty) => self.0.blocking_recv().unwrap_or_else(|_| Err(gone())),
            Err(TryRecvError::Closed) => Err(gone()),
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the drive was closed")
}
