//! What reads ask, and put.

use crate::metrics::METRICS;
use crate::piece::Piece;
use crate::shared::{HotOptions, Job, Shared, Use};
use crate::store::REGION;
use crate::writer::Writer;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use weft_net::Buffer;
use weft_proto::{Error, ErrorKind, Uuid};

/// A read of the drive that takes longer is left to the targets.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// Reads of the drive at a time: so many threads stand still with it.
const READS: usize = 64;
/// Pieces that are fetched at a time because parts of them are read.
const FETCHES: usize = 4;
/// Bytes that wait to be written.
const QUEUE: usize = 64 << 20;
/// Who wants a piece to be kept waits so long for the drive.
const PUT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the end of a mount waits for what is being written.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The hot tier of a mount.
pub struct Hot {
    shared: Arc<Shared>,
    jobs: mpsc::UnboundedSender<Job>,
    reads: Arc<Semaphore>,
    /// Reads of the drive that have ended.
    read: Arc<AtomicU64>,
    fetches: Arc<Semaphore>,
    queue: Arc<Semaphore>,
}

impl Hot {
    /// Opens it for a cluster, in the background: until it is open, and while its drive cannot be
    /// used, nothing is found and nothing kept.
    pub fn start(options: HotOptions, cluster: Uuid) -> Arc<Self> {
        let shared = Arc::new(Shared::new(options, cluster));
        let (jobs, queued) = mpsc::unbounded_channel();
        tokio::spawn(Writer::new(shared.clone()).run(queued));
        let places = |count| Arc::new(Semaphore::new(count));
        let (reads, fetches, queue) = (places(READS), places(FETCHES), places(QUEUE));
        let read = Arc::default();
        Arc::new(Self { shared, jobs, reads, read, fetches, queue })
    }

    /// Whether it can be used now.
    pub fn is_open(&self) -> bool {
        self.shared.open.lock().is_some()
    }

    /// Whether what is put now may be kept: it is open, and its drive is written to.
    pub fn takes(&self) -> bool {
        self.is_open() && !self.shared.rests(Use::Write)
    }

    /// Bytes that there is room for; none while it cannot be used.
    pub fn room(&self) -> u64 {
        let open = self.shared.open.lock();
        open.as_ref().map_or(0, |open| u64::from(open.store.regions) * REGION)
    }

    /// Whether a piece is kept, and the drive can be asked for it.
    pub fn has(&self, piece: &Piece) -> bool {
        let open = self.shared.open.lock();
        open.as_ref().is_some_and(|open| open.index.has(piece)) && !self.shared.rests(Use::Read)
    }

    /// Whether a piece is kept; it is not given up before others.
    pub fn touch(&self, piece: &Piece) -> bool {
        let mut open = self.shared.open.lock();
        open.as_mut().is_some_and(|open| open.index.find(piece, 0).is_some())
    }

    /// The bytes `within` a piece; `None`: ask the targets.
    pub async fn get(&self, piece: Piece, within: Range<u32>) -> Option<Buffer> {
        if self.shared.rests(Use::Read) {
            return None;
        }
        let bytes = u64::from(within.end - within.start);
        let (store, place) = {
            let mut open = self.shared.open.lock();
            let open = open.as_mut()?;
            let place = open.index.find(&piece, bytes)?;
            (open.store.clone(), place)
        };
        if within.end > place.len || within.is_empty() {
            return None;
        }
        // Where many wait for a drive that is slow, the targets are asked, too. Reads that hang
        // keep their places: nobody else would say then that it is to be left alone.
        let before = self.read.load(Ordering::Relaxed);
        let Ok(turn) = timeout(READ_TIMEOUT, self.reads.clone().acquire_owned()).await else {
            if self.read.load(Ordering::Relaxed) != before {
                return None;
            }
            let dir = self.shared.options.dir.display();
            let what = format!("{dir}: {READS} reads stand before this one for {READ_TIMEOUT:?}");
            self.shared.rest(Use::Read, &Error::new(ErrorKind::TimedOut, what));
            return None;
        };
        let turn = turn.ok()?;
        let read = self.read.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let content = store.read(piece, place, within);
            read.fetch_add(1, Ordering::Relaxed);
            content
        });
        match timeout(READ_TIMEOUT, reading).await {
            Ok(Ok(Ok(content))) => {
                METRICS.hits.inc_by(bytes);
                Some(content)
            }
            Ok(Ok(Err(error))) => {
                self.shared.is_no_good(&piece, place, &error);
                None
            }
            // The runtime ends.
            Ok(Err(_)) => None,
            Err(_) => {
                let what = format!("{} does not answer", self.shared.options.dir.display());
                self.shared.is_no_good(&piece, place, &Error::new(ErrorKind::TimedOut, what));
                None
            }
        }
    }

    /// So many bytes of a piece came from the targets, which has `len`. Answers whether it is worth
    /// being fetched and put here as a whole: by chance, and on average once when half of it was
    /// read.
    pub fn miss(&self, piece: Piece, bytes: u64, len: u64) -> bool {
        METRICS.misses.inc_by(bytes);
        let mut open = self.shared.open.lock();
        let Some(open) = open.as_mut() else { return false };
        open.index.miss(bytes);
        if bytes == len || rand::random_range(0..len.max(1)) >= bytes * 2 {
            return false;
        }
        let known = open.index.has(&piece) || open.pending.contains(&piece);
        !known && !self.shared.rests(Use::Write) && open.index.admits(len)
    }

    /// The right to fetch a piece of which parts are read, unless many are being fetched.
    pub fn try_fetch(&self) -> Option<OwnedSemaphorePermit> {
        self.fetches.clone().try_acquire_owned().ok()
    }

    /// Keeps a piece that was read and verified, if it is worth it and the drive keeps up. Does not
    /// wait.
    pub fn offer(&self, piece: Piece, content: Bytes) {
        let Ok(len) = u32::try_from(content.len()) else { return };
        if self.shared.rests(Use::Write) {
            return;
        }
        let queued = {
            let mut open = self.shared.open.lock();
            let Some(open) = open.as_mut() else { return };
            let known = open.index.has(&piece) || open.pending.contains(&piece);
            if known || len == 0 || !open.index.admits(len.into()) {
                return;
            }
            let Ok(queued) = self.queue.clone().try_acquire_many_owned(len) else {
                return METRICS.dropped.inc_by(len.into());
            };
            open.pending.insert(piece);
            queued
        };
        let (content, (done, _)) = (own(content), oneshot::channel());
        // Without a writer nothing is open either, nor pending.
        let _ = self.jobs.send(Job::Put { piece, content, forced: false, queued, done });
    }

    /// Keeps a piece, whatever has to go for it. Answers whether it is kept, within
    /// [`PUT_TIMEOUT`], and at once when the drive is to be left alone.
    pub async fn put(&self, piece: Piece, content: Bytes) -> bool {
        tokio::select! {
            biased;
            kept = timeout(PUT_TIMEOUT, self.put_in_turn(piece, content)) => kept.unwrap_or(false),
            () = self.shared.writes_rest() => false,
        }
    }

    async fn put_in_turn(&self, piece: Piece, content: Bytes) -> bool {
        let Ok(len) = u32::try_from(content.len()) else { return false };
        let queued = self.queue.clone().acquire_many_owned(len).await;
        let Ok(queued) = queued else { return false };
        if self.shared.rests(Use::Write) {
            return false;
        }
        let (content, (done, is_done)) = (own(content), oneshot::channel());
        {
            let mut open = self.shared.open.lock();
            let Some(open) = open.as_mut() else { return false };
            if open.index.has(&piece) {
                return true;
            }
            let put = Job::Put { piece, content, forced: true, queued, done };
            if self.jobs.send(put).is_err() {
                return false;
            }
            open.pending.insert(piece);
        }
        is_done.await.unwrap_or(false)
    }

    /// Writes what is to be written, says what is there, and lets go of the drive.
    pub async fn close(&self) {
        let (done, is_done) = oneshot::channel();
        if self.jobs.send(Job::Close(done)).is_ok() {
            let _ = timeout(CLOSE_TIMEOUT, is_done).await;
        }
        // If the writer hangs, it has the drive open still.
        self.shared.open.lock().take();
        METRICS.size.set(0);
        METRICS.kept.set(0);
    }
}

/// Content as it waits to be written. What was read may be a part of a buffer many times as large,
/// all of which it would keep, while the queue counts the part; and buffers lie in the memory that
/// the network needs. That part is let go of here.
fn own(content: Bytes) -> Bytes {
    Bytes::copy_from_slice(&content)
}

#[cfg(test)]
mod tests;
