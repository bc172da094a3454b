//! Writes to the end of a file, of which none is made twice.
//!
//! A call that fails, or that nobody waits for any more, may have been taken in all the same, and
//! who buffers offers all of it once more when he flushes again, or closes (Python's
//! `io.BufferedWriter`). Elsewhere in a file that does no harm; at its end the bytes would be there
//! twice. So of a call that did not end well it is kept what became of each piece, by its place in
//! memory and a digest. A call that begins with the same is that one again: what was not taken in,
//! or is lost since, is offered, and nothing else. Another call of the same thread, or with that
//! memory, says that it does not come again.
//!
//! Invariants: a piece is offered again if it is certainly not there, and only then; it goes behind
//! none that comes after it. What is lost was told before that, to who offers it or another of its
//! file ([`OpenFile::write`]).

use super::open_file::OpenFile;
use crate::file::Fate;
use crate::filesystem::Filesystem;
use crate::types::Via;
use bytes::Bytes;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{ThreadId, current};
use tokio::sync::OwnedRwLockReadGuard;
use tokio::task::JoinHandle;
use weft_net::sync::Mutex;
use weft_proto::{Error, ErrorKind, Result};

/// Bytes that are offered at a time, at the most: so many land in one piece, or not at all, if a
/// segment holds them.
const PIECE: usize = 1 << 20;

/// Calls that may come again, of one file.
const MAX_UNSURE: usize = 64;

/// Where appends go.
pub struct AppendTo<'a> {
    /// That of the file.
    pub fs: &'a Filesystem,
    /// It was opened to append.
    pub file: Arc<OpenFile>,
    /// Held by what goes on although nobody waits: closing the file waits for that.
    pub begun: Option<Arc<OwnedRwLockReadGuard<()>>>,
}

/// Appends through one open file.
#[derive(Default)]
pub struct Appends {
    /// Of each thread the last call, if it did not end well, and something of it was taken in, or
    /// may be: the newest last.
    unsure: Mutex<Vec<Unsure>>,
    /// Calls so far that move the position of who makes them.
    calls: AtomicU64,
}

struct Unsure {
    /// Who called.
    by: ThreadId,
    /// Its memory, which says that it is the same, and is not read by this.
    at: usize,
    /// So many bytes were offered, and have this digest.
    len: usize,
    digest: u64,
    pieces: Vec<Piece>,
    flying: Option<Flying>,
}

impl Unsure {
    /// Whether a call with this is that one again.
    fn is(&self, data: &[u8]) -> bool {
        let before = data.get(..self.len).filter(|_| self.at == data.as_ptr().addr());
        before.is_some_and(|before| digest(before) == self.digest)
    }

    /// Whether a call with this says that it does not come again: who made it does something else,
    /// or its memory is another's.
    fn is_over(&self, data: &[u8]) -> bool {
        let (from, to) = (data.as_ptr().addr(), data.as_ptr_range().end.addr());
        self.by == current().id() || (from < self.at + self.len && self.at < to)
    }
}

/// What was offered together.
struct Piece {
    range: Range<usize>,
    fate: Fate,
}

impl Piece {
    fn is_kept(&self) -> bool {
        self.fate.is_kept()
    }
}

/// A piece that goes on to its end, whoever waits for it.
type Flying = JoinHandle<Result<usize>>;

/// One call.
pub struct Append<'a> {
    appends: &'a Appends,
    data: &'a [u8],
    /// Those that were offered, one behind the other.
    pieces: Vec<Piece>,
    flying: Option<Flying>,
}

fn digest(data: &[u8]) -> u64 {
    let mut digest = DefaultHasher::new();
    digest.write(data);
    digest.finish()
}

impl Appends {
    /// Begins a call, or goes on with one that did not end well, if this is that again. `moves`: it
    /// is counted.
    pub fn begin<'a>(&'a self, data: &'a [u8], moves: bool) -> Append<'a> {
        self.calls.fetch_add(moves.into(), Ordering::Relaxed);
        let mut unsure = self.unsure.lock();
        // Whoever closes a file flushes it, and need not be the thread that wrote.
        let again = unsure.iter().position(|last| last.is(data));
        let again = again.map(|at| unsure.remove(at));
        unsure.retain(|last| !last.is_over(data));
        drop(unsure);
        let (pieces, flying) = again.map(|last| (last.pieces, last.flying)).unwrap_or_default();
        Append { appends: self, data, pieces, flying }
    }

    /// Counts calls.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

impl Append<'_> {
    /// Writes what is left of it.
    pub async fn run(&mut self, to: AppendTo<'_>) -> Result<()> {
        if !self.pieces.is_empty() {
            self.land().await?;
            // What was taken before is committed by now, or lost, which is told.
            to.file.sync().await?;
        }
        let piece = to.fs.segment_len(to.file.handle())?.min(PIECE as u64) as usize;
        while let Some((range, fate)) = self.next(piece) {
            self.offer(range, fate, &to).await?;
        }
        Ok(())
    }

    /// It is answered: who offers the same from now on means it once more.
    pub fn end(mut self) -> usize {
        (self.pieces, self.flying) = Default::default();
        self.data.len()
    }

    /// The next piece to be offered: the first that is not there.
    fn next(&mut self, len: usize) -> Option<(Range<usize>, Fate)> {
        if self.pieces.iter().all(Piece::is_kept) {
            let begin = self.offered();
            let range = begin..self.data.len().min(begin + len);
            if range.is_empty() {
                return None;
            }
            self.pieces.push(Piece { range, fate: Fate::default() });
        }
        let next = self.pieces.iter_mut().find(|piece| !piece.is_kept())?;
        // What becomes of it this time.
        next.fate = Fate::default();
        Some((next.range.clone(), next.fate.clone()))
    }

    /// So many bytes are in pieces.
    fn offered(&self) -> usize {
        self.pieces.last().map_or(0, |piece| piece.range.end)
    }

    /// Errors: `Io`, each time, if what comes after this is there.
    fn check_order(&self, range: &Range<usize>) -> Result<()> {
        if !self.pieces.iter().any(|piece| piece.range.start > range.start && piece.is_kept()) {
            return Ok(());
        }
        let Range { start, end } = range;
        let what = format!(
            "bytes {start} to {end} of what was appended at once are lost, and what comes after \
             them is there: they are not appended behind that"
        );
        Err(Error::new(ErrorKind::Io, what))
    }

    async fn offer(&mut self, range: Range<usize>, fate: Fate, to: &AppendTo<'_>) -> Result<()> {
        // Tells of what failed before, drops set-id bits, and asks for a lease: nothing of this
        // piece is taken yet.
        to.file.write(0, &[]).await?;
        self.check_order(&range)?;
        let piece = &self.data[range];
        let (fs, handle, how) = (to.fs, to.file.handle(), Via::Direct.into());
        if let Some(written) = fs.write_known_now(handle, 0, piece, how, Some(&fate)) {
            return written.map(drop);
        }
        if fs.size_alone(handle).is_none() {
            // Each is committed by itself. If one before it stays, that is not this one's failure.
            to.file.sync().await?;
        }
        let (fs, to, piece) =
            (fs.clone(), (to.file.clone(), to.begun.clone()), Bytes::copy_from_slice(piece));
        self.flying = Some(tokio::spawn(async move {
            let _closes_later = to;
            fs.write_known(handle, 0, &piece, how, Some(&fate), || true).await
        }));
        self.land().await
    }

    /// Waits for the piece that is under way.
    async fn land(&mut self) -> Result<()> {
        let Some(flying) = &mut self.flying else { return Ok(()) };
        let landed = flying.await.unwrap_or_else(|_| {
            let what = "it was disconnected before the write was done";
            Err(Error::new(ErrorKind::Disconnected, what))
        });
        self.flying = None;
        match landed? {
            0 => Err(Error::new(ErrorKind::Io, "no more was written, and no error told")),
            _ => Ok(()),
        }
    }
}

impl Drop for Append<'_> {
    fn drop(&mut self) {
        let flying = self.flying.take();
        if flying.is_none() {
            // What is behind the last that may be there may be another by then.
            let behind = self.pieces.iter().rposition(Piece::is_kept).map_or(0, |last| last + 1);
            self.pieces.truncate(behind);
        }
        let (len, pieces) = (self.offered(), std::mem::take(&mut self.pieces));
        if len > 0 {
            let (at, digest) = (self.data.as_ptr().addr(), digest(&self.data[..len]));
            let by = current().id();
            let mut unsure = self.appends.unsure.lock();
            if unsure.len() == MAX_UNSURE {
                unsure.remove(0);
            }
            unsure.push(Unsure { by, at, len, digest, pieces, flying });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_goes_behind_nothing_that_comes_after_it() {
        let (appends, data) = (Appends::default(), [7; 12]);
        let again = |kept: [bool; 3]| {
            let mut call = appends.begin(&data, false);
            call.pieces = kept.into_iter().zip([0..4, 4..8, 8..12]).map(piece).collect();
            let (lost, _) = call.next(4).expect("one is lost");
            let checked = call.check_order(&lost).map_err(|error| error.kind);
            call.end();
            (lost, checked)
        };
        assert_eq!(again([false, false, false]), (0..4, Ok(())));
        assert_eq!(again([true, false, false]), (4..8, Ok(())));
        assert_eq!(again([true, true, false]), (8..12, Ok(())));
        assert_eq!(again([false, true, false]), (0..4, Err(ErrorKind::Io)));
        assert_eq!(again([true, false, true]), (4..8, Err(ErrorKind::Io)));
    }

    fn piece((kept, range): (bool, Range<usize>)) -> Piece {
        let fate = Fate::default();
        if kept {
            fate.take();
        }
        Piece { range, fate }
    }
}
