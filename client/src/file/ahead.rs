//! Read-ahead of one handle: when reads follow each other, what comes next is fetched before it is
//! asked for, in pieces that end at stripe and segment boundaries.
//!
//! Invariants: a piece is served only while the content has the version that it was read at; all
//! read-ahead of the mount together stays within `cache_bytes`; what was read, or is not read on,
//! is not kept.

use super::inode::File;
use crate::types::ReadData;
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::AbortHandle;
use weft_net::sync::Mutex;
use weft_net::trace::carried;
use weft_proto::Result;

/// First and longest piece; boundaries are multiples of the longest.
const MIN_PIECE: u64 = 512 << 10;
const MAX_PIECE: u64 = 4 << 20;
/// Reads of one stream arrive this much out of order, and by half of its window: the kernel sends
/// its own read-ahead from several threads at once.
const MIN_SLACK: u64 = 1 << 20;

type Outcome = Option<Result<Vec<Bytes>>>;

struct Piece {
    range: Range<u64>,
    version: u64,
    /// Bytes that were asked for; usually once.
    served: AtomicU64,
    outcome: watch::Receiver<Outcome>,
    task: AbortHandle,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Default)]
struct Stream {
    /// Where the next read begins if it follows.
    next: u64,
    /// How far ahead to be; 0 while reads do not follow each other.
    window: u64,
    pieces: VecDeque<Arc<Piece>>,
    /// It was read from since somebody looked.
    used: bool,
}

#[derive(Default)]
pub(crate) struct ReadAhead {
    stream: Mutex<Stream>,
}

/// A part of a read: from a piece, or on its own.
enum Step {
    Ahead(Range<u64>, Arc<Piece>),
    Now(Range<u64>),
}

impl ReadAhead {
    /// Committed bytes of `range` into `data`.
    pub async fn read(
        &self,
        file: &Arc<File>,
        range: Range<u64>,
        data: &mut ReadData,
    ) -> Result<()> {
        for step in self.steps(file, range) {
            match step {
                Step::Now(range) => push(data, file.read_committed(range).await?),
                Step::Ahead(range, piece) => {
                    let mut outcome = piece.outcome.clone();
                    let bytes = match outcome.wait_for(Option::is_some).await.as_deref() {
                        Ok(Some(Ok(parts))) => Some(cut(parts, piece.range.start, &range)),
                        // It failed or was dropped: the read has a try of its own.
                        _ => None,
                    };
                    match bytes {
                        Some(parts) => push(data, parts),
                        None => push(data, file.read_committed(range).await?),
                    }
                }
            }
        }
        Ok(())
    }

    /// Nobody reads on for now, unless somebody has since the last call: what is ahead is not kept.
    pub fn rest(&self) {
        let mut stream = self.stream.lock();
        if !std::mem::take(&mut stream.used) {
            stream.window = 0;
            stream.pieces.clear();
        }
    }

    /// Cuts a read in steps and sees to what is fetched ahead.
    fn steps(&self, file: &Arc<File>, range: Range<u64>) -> Vec<Step> {
        let (version, size) = (file.version(), file.committed_size());
        let mut stream = self.stream.lock();
        stream.used = true;
        let slack = MIN_SLACK.max(stream.window / 2);
        let near = stream.next.saturating_sub(slack)..=stream.next.saturating_add(slack);
        let follows = near.contains(&range.start);
        if !follows {
            stream.window = 0;
            stream.pieces.clear();
        } else if stream.next > 0 || range.start == 0 {
            let most = file.context.read_ahead_bytes;
            stream.window = (stream.window * 2).clamp(MIN_PIECE.min(most), most);
        }
        stream.next = if follows { stream.next.max(range.end) } else { range.end };
        let behind = range.start.saturating_sub(slack);
        stream.pieces.retain(|p| p.version == version && p.range.end > behind);
        // What is read to its end in one go has nothing ahead, as most small files.
        let whole = range.end >= size && stream.pieces.is_empty();
        if stream.window > 0 && !whole {
            stream.extend(file, &range, size, version);
        }
        let steps = stream.cover(range);
        // Whoever waits for one keeps it.
        stream.pieces.retain(|piece| !piece.is_served());
        steps
    }
}

impl Stream {
    /// Begins to fetch up to `window` beyond `range`.
    fn extend(&mut self, file: &Arc<File>, range: &Range<u64>, size: u64, version: u64) {
        let until = range.end.saturating_add(self.window).min(size);
        loop {
            let last = self.pieces.back().map(|p| p.range.clone());
            let start = last.as_ref().map_or(range.start, |p| p.end.max(range.start));
            if start >= until {
                return;
            }
            let longer =
                last.map_or(MIN_PIECE, |p| (p.end - p.start) * 2).clamp(MIN_PIECE, MAX_PIECE);
            // What is left after this one should be worth a request, or the end of the file.
            let boundary = (start + 1).next_multiple_of(MAX_PIECE);
            let end = (start + longer).next_multiple_of(MIN_PIECE).min(boundary).min(size);
            if end > until && end < size && !self.pieces.is_empty() {
                return;
            }
            let Some(piece) = Piece::begin(file, start..end, version) else { return };
            self.pieces.push_back(Arc::new(piece));
        }
    }

    fn cover(&self, range: Range<u64>) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut at = range.start;
        for piece in &self.pieces {
            let part = piece.range.start.max(at)..piece.range.end.min(range.end);
            if part.is_empty() {
                continue;
            }
            if at < part.start {
                steps.push(Step::Now(at..part.start));
            }
            at = part.end;
            piece.served.fetch_add(part.end - part.start, Ordering::Relaxed);
            steps.push(Step::Ahead(part, piece.clone()));
        }
        if at < range.end {
            steps.push(Step::Now(at..range.end));
        }
        steps
    }
}

impl Piece {
    /// Begins to fetch `range`, if the mount's cache has room for it.
    fn begin(file: &Arc<File>, range: Range<u64>, version: u64) -> Option<Self> {
        let len = u32::try_from(range.end - range.start).ok()?;
        let permit = file.context.ahead.clone().try_acquire_many_owned(len).ok()?;
        let (done, outcome) = watch::channel(None);
        let task = tokio::spawn(carried({
            let (file, range) = (file.clone(), range.clone());
            async move {
                let bytes = file.read_committed(range).await;
                // Bytes of a newer version would pass for those of this one.
                if file.version() == version {
                    done.send_replace(Some(bytes));
                }
            }
        }));
        let (served, task) = (AtomicU64::new(0), task.abort_handle());
        Some(Self { range, version, served, outcome, task, _permit: permit })
    }

    fn is_served(&self) -> bool {
        self.served.load(Ordering::Relaxed) >= self.range.end - self.range.start
    }
}

fn push(data: &mut ReadData, parts: Vec<Bytes>) {
    parts.into_iter().for_each(|part| data.push(part));
}

/// The part `range` of `parts`, which begin at `start`.
fn cut(parts: &[Bytes], start: u64, range: &Range<u64>) -> Vec<Bytes> {
    let mut at = start;
    let mut out = Vec::new();
    for part in parts {
        let end = at + part.len() as u64;
        let (from, to) = (range.start.max(at), range.end.min(end));
        if from < to {
            out.push(part.slice((from - at) as usize..(to - at) as usize));
        }
        at = end;
    }
    out
}
