//! Gives freed space back to the drive, a little at a time, before it is used again.
//!
//! Invariants: space is discarded only while nobody owns it: it reaches the allocator after the
//! discard has ended; what waits here is handed over undiscarded when the allocator has run out.

use super::BLOCK;
use super::alloc::Allocator;
use super::device::Device;
use super::entry::Extent;
use super::worker::Worker;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Most blocks of one discard: 4 MiB, which is also all that can be out of reach of a put.
const PIECE: u32 = 1024;

/// Before the next discard after one that failed: a path that is lost may come back.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Queue {
    /// First block → blocks.
    waiting: BTreeMap<u64, u32>,
    /// Blocks of all that, and of what is being discarded.
    blocks: u64,
    /// Since when something is being discarded.
    since: Option<Instant>,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    allocator: Arc<Mutex<Allocator>>,
}

/// The way of freed space back to the allocator.
pub(super) struct Discard {
    shared: Arc<Shared>,
    /// None where the drive has no use for discards.
    thread: Option<Worker>,
}

impl Discard {
    /// Starts a thread if the drive wants discards. Errors: no thread.
    pub fn start(
        device: Arc<dyn Device>,
        allocator: Arc<Mutex<Allocator>>,
        path: &Path,
    ) -> io::Result<Self> {
        let shared =
            Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new(), allocator });
        let thread = match device.discard_rate() {
            0 => None,
            rate => {
                let name = path.display().to_string();
                let discarder = Discarder { device, rate, shared: shared.clone(), name };
                Some(Worker::start("discard", move || discarder.run())?)
            }
        };
        Ok(Self { shared, thread })
    }

    /// Takes space that nobody owns or reads any more.
    pub fn give(&self, extents: &[Extent]) {
        if self.thread.is_none() {
            return self.shared.allocator.lock().give(extents);
        }
        let mut queue = self.shared.queue.lock();
        queue.blocks += extents.iter().map(|e| u64::from(e.blocks)).sum::<u64>();
        queue.waiting.extend(extents.iter().map(|e| (e.block, e.blocks)));
        drop(queue);
        self.shared.changed.notify_one();
    }

    /// Hands all that waits to the allocator. Answers whether there was anything.
    pub fn hurry(&self) -> bool {
        let mut queue = self.shared.queue.lock();
        let waiting = std::mem::take(&mut queue.waiting);
        queue.blocks -= waiting.values().map(|&blocks| u64::from(blocks)).sum::<u64>();
        let mut allocator = self.shared.allocator.lock();
        waiting.iter().for_each(|(&block, &blocks)| allocator.give(&[Extent { block, blocks }]));
        !waiting.is_empty()
    }

    /// Blocks that chunks can take, and blocks that chunks took.
    pub fn space(&self) -> (u64, u64) {
        let queue = self.shared.queue.lock();
        let allocator = self.shared.allocator.lock();
        (allocator.capacity(), allocator.used() - queue.blocks)
    }
}

impl Drop for Discard {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.changed.notify_one();
        if let Some(thread) = &self.thread {
            let since = || self.shared.queue.lock().since;
            thread.wait(|| since().map_or(Duration::ZERO, |s| s.elapsed()));
        }
    }
}

struct Discarder {
    device: Arc<dyn Device>,
    /// Bytes a second.
    rate: u64,
    shared: Arc<Shared>,
    name: String,
}

impl Discarder {
    fn run(&self) {
        let (mut useful, mut resting) = (true, None);
        let mut queue = self.shared.queue.lock();
        while !queue.closed {
            let Some(piece) = next(&mut queue.waiting) else {
                self.shared.changed.wait(&mut queue);
                continue;
            };
            let begun = Instant::now();
            // What cannot be discarded for now is used as it is: nobody waits for it.
            let tries = useful && resting.is_none_or(|until| until <= begun);
            queue.since = Some(begun);
            let discard = || if tries { self.discard(piece) } else { Ok(()) };
            let result = MutexGuard::unlocked(&mut queue, discard);
            queue.since = None;
            queue.blocks -= u64::from(piece.blocks);
            self.shared.allocator.lock().give(&[piece]);
            if let Err(e) = &result {
                useful = !is_for_good(e);
                if resting.replace(begun + PAUSE).is_none() {
                    let then = if useful { "others are tried" } else { "no more of it" };
                    tracing::warn!("{}: discard of {piece:?}: {e}; {then}", self.name);
                }
                continue;
            }
            if !tries {
                continue;
            }
            resting = None;
            let bytes = u64::from(piece.blocks) * BLOCK;
            let until = begun + Duration::from_secs_f64(bytes as f64 / self.rate as f64);
            while !queue.closed
                && !self.shared.changed.wait_until(&mut queue, until.into_std()).timed_out()
            {
            }
        }
    }

    fn discard(&self, piece: Extent) -> io::Result<()> {
        self.device.discard(piece.block * BLOCK, u64::from(piece.blocks) * BLOCK)
    }
}

/// Whether the drive, or its filesystem, takes no discards at all.
fn is_for_good(e: &io::Error) -> bool {
    let errno = e.raw_os_error();
    matches!(errno, Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS | libc::EINVAL))
}

/// Takes the lowest run out, with what lies right behind it, up to [`PIECE`].
fn next(waiting: &mut BTreeMap<u64, u32>) -> Option<Extent> {
    let (block, blocks) = waiting.pop_first()?;
    let mut piece = Extent { block, blocks };
    while piece.blocks < PIECE
        && let Some(behind) = waiting.remove(&piece.end())
    {
        piece.blocks += behind;
    }
    if piece.blocks > PIECE {
        waiting.insert(piece.block + u64::from(PIECE), piece.blocks - PIECE);
        piece.blocks = PIECE;
    }
    Some(piece)
}

#[cfg(test)]
mod tests {
    use super::super::device::Done;
    use super::*;
    use bytes::Bytes;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use weft_net::AlignedBuf;

    /// A drive whose discards are answered by this.
    struct Fake<F>(F);

    impl<F: Fn(u64) -> io::Result<()> + Send + Sync + 'static> Device for Fake<F> {
        fn size(&self) -> u64 {
            u64::MAX / BLOCK * BLOCK
        }

        fn read(&self, _: u64, _: usize) -> Done<AlignedBuf> {
            Done::channel().1
        }

        fn write(&self, _: u64, _: Vec<Bytes>) -> Done<()> {
            Done::channel().1
        }

        fn commit(&self, _: u64, _: Bytes) -> Done<()> {
            Done::channel().1
        }

        fn flush(&self) -> Done<()> {
            Done::channel().1
        }

        fn discard_rate(&self) -> u64 {
            u64::MAX
        }

        fn discard(&self, off: u64, _: u64) -> io::Result<()> {
            (self.0)(off)
        }
    }

    /// Most of a large drive was deleted at once.
    #[test]
    fn more_may_wait_than_sixteen_tebibytes() {
        const RUN: u32 = u32::MAX / 2;
        let mut all = Allocator::new(0, 1 << 40);
        let runs: Vec<_> = (0..5)
            .map(|n| Extent { block: n * u64::from(RUN) * 2, blocks: RUN })
            .inspect(|&run| assert!(all.claim(run)))
            .collect();
        let capacity = all.capacity();
        let all = Arc::new(Mutex::new(all));
        let (go, may_go) = std::sync::mpsc::channel::<()>();
        let may_go = Mutex::new(may_go);
        let wait = move |_| {
            // Until the other end is gone.
            let _ = may_go.lock().recv();
            Ok(())
        };
        let discard =
            Discard::start(Arc::new(Fake(wait)), all.clone(), Path::new("drive")).unwrap();
        assert_eq!(discard.space(), (capacity, 5 * u64::from(RUN)));
        discard.give(&runs);
        assert_eq!(discard.space(), (capacity, 0), "what waits is not used");
        assert!(discard.hurry());
        assert_eq!(discard.space(), (capacity, 0));
        drop(go);
        drop(discard);
        assert_eq!(all.lock().used(), 0, "everything came back");
    }

    /// A path is lost for a moment, or a filesystem is full.
    #[test]
    fn discards_go_on_after_one_that_failed() {
        let run = Extent { block: 10, blocks: 5 };
        let all = Arc::new(Mutex::new(Allocator::new(0, 100)));
        let tries = Arc::new(AtomicUsize::new(0));
        let tried = tries.clone();
        let fail = move |_| match tried.fetch_add(1, Ordering::SeqCst) {
            0 => Err(io::Error::from_raw_os_error(libc::EIO)),
            _ => Ok(()),
        };
        let discard =
            Discard::start(Arc::new(Fake(fail)), all.clone(), Path::new("drive")).unwrap();
        // What is freed meanwhile comes back without.
        while tries.load(Ordering::SeqCst) < 2 {
            assert!(all.lock().claim(run));
            discard.give(&[run]);
            while all.lock().used() > 0 {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn some_drives_take_no_discards() {
        let for_good = |errno| is_for_good(&io::Error::from_raw_os_error(errno));
        assert!(
            [libc::EOPNOTSUPP, libc::ENOTTY, libc::ENOSYS, libc::EINVAL].map(for_good) == [true; 4]
        );
        assert!([libc::EIO, libc::ENOSPC, libc::ENOLINK].map(for_good) == [false; 3]);
    }
}
