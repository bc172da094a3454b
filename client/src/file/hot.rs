//! Content of segments: what the hot tier has comes from there, the rest from the targets, of which
//! the hot tier keeps what it thinks worth it.

use super::committed::TICKET_INTERVAL;
use super::context::Context;
use super::extents::Source;
use super::inode::File;
use crate::types::Warmed;
use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_hot::{Hot, Piece, pieces};
use weft_proto::{Error, ErrorKind, Result};
use weft_segments::{Segment, Segments};

/// Pieces that are fetched at a time to be kept.
const WARM_WIDTH: usize = 8;
/// Most bytes of a file that one call has kept.
const MAX_WARM: u64 = 256 << 20;
/// A piece of which parts are read is fetched as a whole in this time, or not.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a segment that come from one place.
enum Run {
    Near(Piece, Range<u64>),
    Away(Range<u64>),
}

impl Context {
    /// The bytes in `range` of a segment, in order. Errors as those of [`Segments::get`].
    pub(super) async fn content(
        &self,
        segment: &Segment,
        range: Range<u64>,
        is_there: bool,
        deadline: Instant,
    ) -> Result<Vec<Bytes>> {
        let away = |range: Range<u64>| async move {
            let (off, len) = (range.start, range.end - range.start);
            self.segments.get(segment, off, len, is_there, deadline).await
        };
        // What an extent says wrongly is an error there.
        let is_within = range.end <= segment.geometry.length;
        let Some(hot) = self.hot.get().filter(|hot| hot.is_open() && is_within) else {
            return Ok(vec![away(range).await?]);
        };
        let mut runs = Vec::new();
        for piece in pieces(segment.id, range.clone()) {
            let part = part_of(piece, segment, &range);
            match runs.last_mut() {
                _ if hot.has(&piece) => runs.push(Run::Near(piece, part)),
                Some(Run::Away(run)) => run.end = part.end,
                _ => runs.push(Run::Away(part)),
            }
        }
        let fetch = |run| async {
            let range = match run {
                Run::Near(piece, part) => {
                    let start = piece.range(segment.geometry.length).start;
                    let within = (part.start - start) as u32..(part.end - start) as u32;
                    if let Some(content) = hot.get(piece, within).await {
                        return Ok(content.into());
                    }
                    part
                }
                Run::Away(range) => range,
            };
            let content = away(range.clone()).await?;
            self.keep(hot, segment, range, &content);
            Ok(content)
        };
        try_join_all(runs.into_iter().map(fetch)).await
    }

    /// Offers what came from the targets: pieces that it has as a whole, and those of which enough
    /// was read by now.
    fn keep(&self, hot: &Arc<Hot>, segment: &Segment, range: Range<u64>, content: &Bytes) {
        for piece in pieces(segment.id, range.clone()) {
            let (whole, part) =
                (piece.range(segment.geometry.length), part_of(piece, segment, &range));
            let (len, from) = (part.end - part.start, (part.start - range.start) as usize);
            let is_worth_it = hot.miss(piece, len, whole.end - whole.start);
            if part == whole {
                hot.offer(piece, content.slice(from..from + len as usize));
            } else if is_worth_it && let Some(turn) = hot.try_fetch() {
                let (hot, segments, segment) =
                    (hot.clone(), self.segments.clone(), segment.clone());
                tokio::spawn(async move {
                    let deadline = Instant::now() + FETCH_TIMEOUT;
                    // Who reads it next asks the targets, too.
                    if let Ok(content) = fetch(&segments, &segment, piece, deadline).await {
                        hot.offer(piece, content);
                    }
                    drop(turn);
                });
            }
        }
    }
}

impl File {
    /// Has the hot tier keep what is committed in `range`. Errors: `NotSupported` without one,
    /// `Busy` while its drive cannot be used, or is left alone for a while, `OutOfRange` for more
    /// than [`MAX_WARM`].
    pub async fn warm(self: &Arc<Self>, range: Range<u64>) -> Result<Warmed> {
        let Some(hot) = self.context.hot.get() else {
            let what = "this mount has no hot tier: mount it with --hot";
            return Err(Error::new(ErrorKind::NotSupported, what));
        };
        if range.end.saturating_sub(range.start) > MAX_WARM {
            let what = format!("{MAX_WARM} bytes at a time can be kept");
            return Err(Error::new(ErrorKind::OutOfRange, what));
        }
        let busy = || {
            let what = "the drive of the hot tier cannot be used now: the mount's log says why";
            Error::new(ErrorKind::Busy, what)
        };
        if !hot.is_open() {
            return Err(busy());
        }
        self.refresh().await?;
        let range = range.start..range.end.min(self.committed_size()).max(range.start);
        if range.is_empty() {
            return Ok(Warmed { room: hot.room(), ..Warmed::default() });
        }
        let deadline = self.context.requests.deadline();
        // Segments that were not there, and have been asked for anew.
        let mut missing = HashSet::new();
        loop {
            let mut wanted = Vec::new();
            for (range, source) in self.plan(range.clone(), deadline).await? {
                let Some(Source::Segment { segment, off }) = source else { continue };
                let within = off..off.saturating_add(range.end - range.start);
                if within.end > segment.geometry.length {
                    let what = format!("inode {}: an extent passes its segment", self.ino);
                    return Err(Error::new(ErrorKind::Io, what));
                }
                let of = pieces(segment.id, within.clone()).collect::<Vec<_>>();
                wanted.extend(of.into_iter().map(|piece| {
                    let part = part_of(piece, &segment, &within);
                    (segment.clone(), piece, part.end - part.start)
                }));
            }
            let mut warmed = Warmed { room: hot.room(), ..Warmed::default() };
            let keep = |(segment, piece, bytes): (Arc<Segment>, Piece, u64)| async move {
                if hot.touch(&piece) {
                    return Ok((bytes, true));
                }
                if !hot.takes() {
                    // What is fetched would be so in vain.
                    return Err((segment.id, busy()));
                }
                let segments = &self.context.segments;
                let fetched = fetch(segments, &segment, piece, deadline).await;
                let content = fetched.map_err(|error| (segment.id, error))?;
                Ok((bytes, hot.put(piece, content).await))
            };
            let mut kept = stream::iter(wanted).map(keep).buffer_unordered(WARM_WIDTH);
            let failed = loop {
                match kept.next().await {
                    Some(Ok((bytes, is_kept))) => {
                        warmed.wanted += bytes;
                        warmed.kept += if is_kept { bytes } else { 0 };
                    }
                    Some(Err(failed)) => break failed,
                    // It failed with what was fetched just now.
                    None if warmed.kept < warmed.wanted && !hot.takes() => return Err(busy()),
                    None => return Ok(warmed),
                }
            };
            let (segment, error) = failed;
            let again = match error.kind {
                // The file was changed since, or was not.
                ErrorKind::NotFound => missing.insert(segment),
                ErrorKind::NoTicket => Instant::now() < deadline,
                ErrorKind::Busy if !hot.takes() => return Err(error),
                _ => false,
            };
            if !again {
                return Err(Error::new(ErrorKind::Io, format!("inode {}: {error}", self.ino)));
            }
            sleep(TICKET_INTERVAL).await;
            self.state.lock().extents.forget();
        }
    }
}

/// What of a piece is in `range` of its segment.
fn part_of(piece: Piece, segment: &Segment, range: &Range<u64>) -> Range<u64> {
    let whole = piece.range(segment.geometry.length);
    whole.start.max(range.start)..whole.end.min(range.end)
}

/// A whole piece, from the targets.
async fn fetch(
    segments: &Arc<Segments>,
    segment: &Segment,
    piece: Piece,
    deadline: Instant,
) -> Result<Bytes> {
    let whole = piece.range(segment.geometry.length);
    segments.get(segment, whole.start, whole.end - whole.start, false, deadline).await
}
