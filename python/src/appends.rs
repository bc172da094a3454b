//! Writes to the end of a file, of which none is made twice.
//!
//! A call that fails, or that a signal handler ends, may have been taken in all the same, and who
//! buffers offers all of it once more when he flushes again, or closes (`io.BufferedWriter`).
//! Elsewhere in a file that does no harm; at its end the bytes would be there twice. So of the last
//! call that did not end well it is kept what was taken, by its place in memory and a digest. A
//! call that begins with the same is that one again: it goes on behind what was taken, when it is
//! known what became of that.
//!
//! Invariant: a piece is offered again only if it was not taken in, or was refused for lack of
//! room, which leaves nothing of it.

use bytes::Bytes;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::OwnedRwLockReadGuard;
use tokio::task::JoinHandle;
use weft_client::sync::Mutex;
use weft_client::{Filesystem, OpenFile, Via};
use weft_proto::{Error, ErrorKind, Result};

/// Bytes that are offered at a time: so many land in one piece, or not at all.
const PIECE: usize = 1 << 20;

/// Where appends go.
pub struct End<'a> {
    pub fs: &'a Filesystem,
    pub file: Arc<OpenFile>,
    /// Held by what goes on although nobody waits: closing the file waits for that.
    pub begun: Option<Arc<OwnedRwLockReadGuard<()>>>,
}

/// Appends through one open file.
#[derive(Default)]
pub struct Appends {
    /// Of the last call, if it did not end well, and something of it was taken, or may be.
    unsure: Mutex<Option<Unsure>>,
    /// Calls so far that move the position of who makes them.
    calls: AtomicU64,
}

struct Unsure {
    /// Its memory, which says that it is the same, and is not read by this.
    at: usize,
    /// So many bytes are taken, or under way, and have this digest.
    len: usize,
    digest: u64,
    taken: usize,
    flying: Option<Flying>,
}

/// A piece that goes on to its end, whoever waits for it.
struct Flying {
    len: usize,
    /// It was about to be taken in.
    offered: Arc<AtomicBool>,
    done: JoinHandle<Result<usize>>,
}

/// One call.
pub struct Call<'a> {
    appends: &'a Appends,
    data: &'a [u8],
    taken: usize,
    flying: Option<Flying>,
}

fn digest(data: &[u8]) -> u64 {
    let mut digest = DefaultHasher::new();
    digest.write(data);
    digest.finish()
}

impl Appends {
    /// Begins a call, or goes on with the last one, if this is that again.
    pub fn begin<'a>(&'a self, data: &'a [u8], moves: bool) -> Call<'a> {
        self.calls.fetch_add(moves.into(), Ordering::Relaxed);
        let is_same = |last: &Unsure| {
            let before = data.get(..last.len).filter(|_| last.at == data.as_ptr().addr());
            before.is_some_and(|before| digest(before) == last.digest)
        };
        let last = self.unsure.lock().take();
        let (taken, flying) = match last {
            Some(last) if is_same(&last) => (last.taken, last.flying),
            _ => (0, None),
        };
        Call { appends: self, data, taken, flying }
    }

    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

impl Call<'_> {
    /// Writes what is left of it.
    pub async fn run(&mut self, to: End<'_>) -> Result<()> {
        if self.taken > 0 || self.flying.is_some() {
            self.land().await?;
            // What was taken before is committed by now, or lost, which is told.
            to.file.sync().await?;
        }
        while self.taken < self.data.len() {
            self.offer(&to).await?;
        }
        Ok(())
    }

    /// It is answered: who offers the same from now on means it once more.
    pub fn end(mut self) -> usize {
        (self.taken, self.flying) = (0, None);
        self.data.len()
    }

    async fn offer(&mut self, to: &End<'_>) -> Result<()> {
        let rest = &self.data[self.taken..];
        let piece = &rest[..rest.len().min(PIECE)];
        // Tells of what failed before, drops set-id bits, and asks for a lease: nothing of this
        // piece is taken yet.
        to.file.write(0, &[]).await?;
        let (fs, handle) = (to.fs, to.file.handle());
        if let Some(written) = fs.write_now(handle, 0, piece, Via::Direct) {
            self.taken += written?;
            return Ok(());
        }
        if fs.size_alone(handle).is_none() {
            // Each is committed by itself. If one before it stays, that is not this one's failure.
            to.file.sync().await?;
        }
        let offered = Arc::new(AtomicBool::new(false));
        let (fs, to, asked) = (fs.clone(), (to.file.clone(), to.begun.clone()), offered.clone());
        let (len, piece) = (piece.len(), Bytes::copy_from_slice(piece));
        let done = tokio::spawn(async move {
            let _closes_later = to;
            let taken_in = || {
                asked.store(true, Ordering::Release);
                true
            };
            fs.write_while(handle, 0, &piece, Via::Direct, taken_in).await
        });
        self.flying = Some(Flying { len, offered, done });
        self.land().await
    }

    /// Waits for the piece that is under way.
    async fn land(&mut self) -> Result<()> {
        let Some(flying) = &mut self.flying else { return Ok(()) };
        let landed = (&mut flying.done).await.unwrap_or_else(|_| {
            let what = "it was disconnected before the write was done";
            Err(Error::new(ErrorKind::Disconnected, what))
        });
        let lacks_room = |e: &Error| matches!(e.kind, ErrorKind::NoSpace | ErrorKind::Quota);
        self.taken += match &landed {
            Ok(written) => *written,
            Err(e) if lacks_room(e) || !flying.offered.load(Ordering::Acquire) => 0,
            Err(_) => flying.len,
        };
        self.flying = None;
        match landed? {
            0 => Err(Error::new(ErrorKind::Io, "no more was written, and no error told")),
            _ => Ok(()),
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let flying = self.flying.take();
        let len = self.taken + flying.as_ref().map_or(0, |flying| flying.len);
        if len > 0 {
            let (at, digest) = (self.data.as_ptr().addr(), digest(&self.data[..len]));
            let unsure = Unsure { at, len, digest, taken: self.taken, flying };
            *self.appends.unsure.lock() = Some(unsure);
        }
    }
}
