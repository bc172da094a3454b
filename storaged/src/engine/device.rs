//! The seam to the drive. The real one is [`super::uring`]; tests cut power behind it.

use bytes::Bytes;
use std::io;
use std::time::Duration;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::task::spawn_blocking;
use weft_net::AlignedBuf;
use weft_proto::layout;

/// Unit of allocation, of checksums and of I/O, in bytes.
pub const BLOCK: u64 = layout::BLOCK as u64;

/// The outcome of a request to a drive, from async code ([`Done::wait`]) or a plain thread.
pub struct Done<T> {
    result: oneshot::Receiver<io::Result<T>>,
    then: Option<Then<T>>,
}

/// What who waits for an outcome does with it first.
struct Then<T> {
    work: Box<dyn FnOnce(T) -> T + Send>,
    /// Longer than others may wait for the thread of an async runtime.
    long: bool,
}

/// A drive. Requests are queued in the call and complete in any order. Offsets and lengths are
/// multiples of 4096 bytes and lie in the drive, memory is 4096-aligned.
pub trait Device: Send + Sync + 'static {
    /// Bytes, a multiple of 4096.
    fn size(&self) -> u64;
    fn read(&self, off: u64, len: usize) -> Done<AlignedBuf>;
    /// As [`Self::read`], of many places.
    fn read_many(&self, places: &[(u64, usize)]) -> Vec<Done<AlignedBuf>> {
        places.iter().map(|&(off, len)| self.read(off, len)).collect()
    }
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
    /// Whether the call of a write of so many bytes takes long itself: it should not be made on a
    /// thread that others wait for.
    fn takes_long(&self, _len: usize) -> bool {
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
        (sender, Self { result: receiver, then: None })
    }
}

impl<T: Send + 'static> Done<T> {
    /// The outcome, after this work. One piece of work at most.
    pub(super) fn then(self, work: impl FnOnce(T) -> T + Send + 'static, long: bool) -> Self {
        debug_assert!(self.then.is_none());
        Self { then: Some(Then { work: Box::new(work), long }), ..self }
    }

    pub async fn wait(self) -> io::Result<T> {
        let result = self.result.await.unwrap_or_else(|_| Err(gone()))?;
        match self.then {
            None => Ok(result),
            Some(Then { work, long: false }) => Ok(work(result)),
            Some(Then { work, long: true }) => {
                spawn_blocking(move || work(result)).await.map_err(io::Error::other)
            }
        }
    }

    /// For plain threads; must not be called in async code, unless the drive is simulated.
    pub fn block(mut self) -> io::Result<T> {
        let result = match self.result.try_recv() {
            Ok(done) => done,
            Err(TryRecvError::Empty) => self.result.blocking_recv().unwrap_or_else(|_| Err(gone())),
            Err(TryRecvError::Closed) => Err(gone()),
        }?;
        Ok(match self.then {
            None => result,
            Some(Then { work, .. }) => work(result),
        })
    }
}

fn gone() -> io::Error {
    io::Error::other("the drive was closed")
}
