//! Which parts of files are worth being written again, as whole segments in the order of the file:
//! those that lie in many small pieces, in segments much of which nothing shows any more, or in
//! segments that were written with fewer data shards than their layout asks for. Pure, of what is
//! committed.
//!
//! A commit puts a file on a list when it may have become such a one
//! ([`crate::tables::scattered`]); the leader looks at all of the file later ([`page`]) and has
//! storage daemons write what is worth it ([`crate::duties`], `compact_files`).
//!
//! Invariant: what was written again is not worth it once more, unless the file changed: a run of
//! bytes that lies in one segment without dead bytes, of the width that its group allows, is left.
//! Nothing is written with fewer shards than it will have when all targets are back.

use crate::schema::{self, Segment};
use crate::store::{Read, StoreError, StoreResult};
use crate::tables::content::{end, segment_of, walk};
use crate::tables::scattered::{LONG, is_narrow, is_sparse, width};
use std::collections::BTreeMap;
use v1::extent::Source;
use weft_proto::{InodeId, Layout, SegmentId, v1};

/// A break between two pieces costs as much as reading so many bytes.
const BREAK: u64 = 128 << 10;
/// Most pieces of one part: each is a move, and a change of a record.
const MAX_PIECES: usize = 2048;
/// Most extents that are looked at, and most parts that are answered, at a time.
const MAX_SEEN: usize = 32_768;
const MAX_PARTS: usize = 8;

/// A part of a file that is worth being written again.
pub(crate) struct Part {
    /// In the order of the file.
    pub extents: Vec<v1::Extent>,
    /// Those that the extents name.
    pub segments: Vec<v1::SegmentInfo>,
    pub bytes: u64,
    /// In how many places it lies.
    pub places: u64,
    /// That are too many; much of what its segments hold is shown by nobody. Neither: they are
    /// narrower than they need be.
    pub scattered: bool,
    pub frees: bool,
    /// The fewest shards of any of its segments.
    pub width: u8,
}

/// How many targets there are for one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seats {
    /// Those that take data now.
    pub now: usize,
    /// With all that are to come back.
    pub all: usize,
}

/// What a look at some of a file answers.
pub(crate) struct Page {
    /// Of the content that was looked at.
    pub data_version: u64,
    pub layout: Layout,
    pub parts: Vec<Part>,
    /// Where the next look begins; `None`: this one came to the end.
    pub next: Option<u64>,
    /// Some would be worth it if more targets took data.
    pub waits: bool,
}

/// Looks at a file from `from` on. `None` if it is no more.
pub(crate) fn page(
    state: &dyn Read,
    ino: InodeId,
    from: u64,
    seats: Seats,
) -> StoreResult<Option<Page>> {
    let Some(file) = state.inode(ino)? else { return Ok(None) };
    let Some(layout) = file.checked_layout()? else { return Ok(None) };
    let mut look = Look::new(layout, seats);
    let (mut seen, mut next) = (0, None);
    // What has lost its last name goes soon.
    let from = if file.attr.nlink == 0 { u64::MAX - 1 } else { from };
    walk(state, &file, from, false, |e| {
        seen += 1;
        if seen > MAX_SEEN || look.parts.len() >= MAX_PARTS {
            next = Some(e.file_off);
            return Ok(false);
        }
        look.take(state, e)?;
        Ok(true)
    })?;
    look.close()?;
    let (parts, waits) = (look.parts, look.waits);
    Ok(Some(Page { data_version: file.attr.data_version, layout, parts, next, waits }))
}

/// Pieces that may become one segment.
#[derive(Default)]
struct Open {
    extents: Vec<v1::Extent>,
    segments: BTreeMap<SegmentId, v1::SegmentInfo>,
    bytes: u64,
    /// Where neighbours in the file are none in a segment.
    breaks: u64,
    /// The run that lies in one place now, and the longest.
    run: u64,
    longest: u64,
    /// Dead bytes that would go with these pieces, if all others went as well.
    waste: u64,
    /// Bytes in segments that are narrower than they need be now.
    narrow: u64,
}

struct Look {
    layout: Layout,
    seats: Seats,
    known: BTreeMap<SegmentId, Segment>,
    open: Open,
    parts: Vec<Part>,
    waits: bool,
}

impl Look {
    fn new(layout: Layout, seats: Seats) -> Self {
        let (known, open) = (BTreeMap::new(), Open::default());
        Self { layout, seats, known, open, parts: Vec::new(), waits: false }
    }

    fn take(&mut self, state: &dyn Read, e: v1::Extent) -> StoreResult<()> {
        // What is inline stays.
        let Some(id) = segment_of(&e) else { return Ok(()) };
        let segment = match self.known.get(&id) {
            Some(known) => known,
            None => {
                let missing =
                    || StoreError::corrupt(format!("segment {id} of an extent is missing"));
                let segment = state.load(&schema::segment(id))?.ok_or_else(missing)?;
                self.known.entry(id).or_insert(segment)
            }
        };
        let info = &segment.info;
        let narrow = is_narrow(info, &self.layout, self.seats.all)?;
        // Of what several files show, each would have its own.
        let is_shared = segment.live_bytes > info.length;
        let is_long = e.len >= self.layout.segment_len / LONG;
        if is_shared || (is_long && !narrow && !is_sparse(segment)) {
            return self.close();
        }
        let dead = info.length.saturating_sub(segment.live_bytes);
        let waste = u128::from(e.len) * u128::from(dead) / u128::from(segment.live_bytes.max(1));
        let info = info.clone();
        if self.open.bytes + e.len > self.layout.segment_len
            || self.open.extents.len() >= MAX_PIECES
        {
            self.close()?;
        }
        let open = &mut self.open;
        let follows = open.extents.last().is_some_and(|left| follows(left, &e));
        open.breaks += u64::from(open.extents.last().is_some_and(|left| breaks(left, &e)));
        open.run = if follows { open.run + e.len } else { e.len };
        open.longest = open.longest.max(open.run);
        open.segments.entry(id).or_insert(info);
        open.bytes += e.len;
        open.waste = open.waste.saturating_add(waste as u64);
        open.narrow += if narrow { e.len } else { 0 };
        open.extents.push(e);
        Ok(())
    }

    /// Whether more dead bytes go with these pieces than come: what is taken of a whole segment, of
    /// which more is shown, is dead from then on. Else two segments take from each other for ever.
    fn gains(&self, extents: &[v1::Extent]) -> bool {
        let mut taken: BTreeMap<SegmentId, u64> = BTreeMap::new();
        for e in extents {
            *taken.entry(segment_of(e).unwrap_or_default()).or_default() += e.len;
        }
        let (mut go, mut come) = (0, 0);
        for (id, bytes) in taken {
            let Some(segment) = self.known.get(&id) else { continue };
            let dead = segment.info.length.saturating_sub(segment.live_bytes);
            match (bytes < segment.live_bytes, dead) {
                (true, 0) => come += bytes,
                // The rest of it is worth as much, or goes as well.
                (_, dead) => go += dead,
            }
        }
        go > come
    }

    /// What is open becomes a part, if it is worth it.
    fn close(&mut self) -> StoreResult<()> {
        let open = std::mem::take(&mut self.open);
        if open.bytes == 0 {
            return Ok(());
        }
        let places = open.breaks + open.segments.len() as u64;
        // A long run with little behind it waits for more: else each line that a log gets would
        // have all of it written again.
        let is_even = open.longest * 2 <= open.bytes;
        let scattered = places > 1 && is_even && places * BREAK >= open.bytes;
        let frees = open.waste >= open.bytes.div_ceil(4) && self.gains(&open.extents);
        if !(scattered || frees || open.narrow * 2 >= open.bytes) {
            return Ok(());
        }
        let fit = |seats| self.layout.profile.fit(open.bytes, self.layout.unit, seats);
        if fit(self.seats.now).is_none() || fit(self.seats.now) != fit(self.seats.all) {
            self.waits = true;
            return Ok(());
        }
        let segments: Vec<_> = open.segments.into_values().collect();
        let widths = segments.iter().map(width).collect::<StoreResult<Vec<_>>>()?;
        let width = widths.into_iter().min().unwrap_or(0);
        let (extents, bytes) = (open.extents, open.bytes);
        self.parts.push(Part { extents, segments, bytes, places, scattered, frees, width });
        Ok(())
    }
}

/// Whether these follow each other in a segment.
fn follows(left: &v1::Extent, right: &v1::Extent) -> bool {
    match (&left.source, &right.source) {
        (Some(Source::Segment(a)), Some(Source::Segment(b))) => {
            a.id == b.id && a.off.checked_add(left.len) == Some(b.off)
        }
        _ => false,
    }
}

/// Whether these follow each other in the file, and not in a segment.
fn breaks(left: &v1::Extent, right: &v1::Extent) -> bool {
    end(left) == right.file_off && !follows(left, right)
}

#[cfg(test)]
mod tests;
