//! Which parts of files are worth being written again, as whole segments in the order of the file:
//! those that lie in many small pieces, in segments much of which nothing shows any more, or in
//! segments that were written with fewer data shards than their layout asks for. Pure, of what is
//! committed.
//!
//! A commit puts a file on a list when it may have become such a one ([`suspects`]); the leader
//! looks at all of the file later ([`page`]) and has storage daemons write what is worth it
//! ([`crate::duties`], `compact_files`).
//!
//! Invariant: what was written again is not worth it once more, unless the file changed: a run of
//! bytes that lies in one segment without dead bytes, of the width that its group allows, is left.
//! Nothing is written with fewer shards than it will have when all targets are back.

use crate::schema::{self, Group, Inode, Segment};
use crate::store::{Read, StoreError, StoreResult};
use crate::tables::content::{end, segment_of, walk};
use std::collections::BTreeMap;
use v1::extent::Source;
use weft_proto::{InodeId, Layout, Profile, SegmentId, v1};

/// A break between two pieces costs as much as reading so many bytes.
const BREAK: u64 = 128 << 10;
/// A piece as long as this part of a segment is good, if its segment is.
const LONG: u64 = 4;
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

/// A fifth of the segment or more is not shown by any file.
fn is_sparse(segment: &Segment) -> bool {
    segment.live_bytes.saturating_mul(5) <= segment.info.length.saturating_mul(4)
}

fn width(info: &v1::SegmentInfo) -> StoreResult<u8> {
    let profile = info.profile.map(Profile::try_from).transpose();
    let bad = |e| StoreError::corrupt(format!("profile of segment {:?}: {e}", info.id));
    Ok(profile.map_err(bad)?.map_or(0, Profile::width))
}

/// The segment has fewer shards than one of its length is to have on so many targets.
fn is_narrow(info: &v1::SegmentInfo, layout: &Layout, seats: usize) -> StoreResult<bool> {
    let fit = layout.profile.fit(info.length, layout.unit, seats);
    let width = width(info)?;
    Ok(fit.is_some_and(|fit| width < fit.width()))
}

/// Targets of the placement group that a segment names, those that are away among them.
fn group_seats(state: &dyn Read, pg: u32) -> StoreResult<usize> {
    let group: Option<Group> = state.load(&schema::group(pg))?;
    Ok(group.map_or(0, |group| group.info.targets.len()))
}

/// Whether a commit that made this of a segment gives cause to look at the file.
pub(crate) fn suspects(
    state: &dyn Read,
    file: &Inode,
    segment: &Segment,
    is_new: bool,
) -> StoreResult<bool> {
    if file.attr.nlink == 0 {
        return Ok(false);
    }
    if !is_new {
        return Ok(is_sparse(segment));
    }
    let Some(layout) = file.checked_layout()? else { return Ok(false) };
    let length = segment.info.length;
    let is_piece = length < layout.segment_len / LONG && length < file.allocated;
    let seats = group_seats(state, segment.info.pg)?;
    Ok(is_piece || is_narrow(&segment.info, &layout, seats)?)
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
        let frees = open.waste >= open.bytes.div_ceil(4);
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
mod tests {
    use super::*;
    use crate::store::{Memory, Txn};
    use crate::tables::content::Edit;
    use proptest::prelude::*;
    use weft_proto::SessionId;

    const INO: InodeId = InodeId(9);
    const BLOCK: u64 = 4096;

    fn layout() -> Layout {
        let layout = Layout::for_profile(Profile::ec(4, 2).unwrap());
        Layout { segment_len: 1 << 20, ..layout }
    }

    fn info(seq: u64, length: u64, seats: usize) -> v1::SegmentInfo {
        let layout = layout();
        let profile = layout.profile.fit(length, layout.unit, seats).unwrap();
        let id = Some(SegmentId { session: SessionId(1), seq }.into());
        let unit = layout.unit;
        let profile = Some(profile.into());
        v1::SegmentInfo { id, profile, unit, length, pg: 1, ..Default::default() }
    }

    fn piece(info: &v1::SegmentInfo, file_off: u64, off: u64, len: u64) -> v1::Extent {
        let source = Some(Source::Segment(v1::SegmentPart { id: info.id, off }));
        v1::Extent { file_off, len, source }
    }

    /// Commits these pieces.
    fn commit(memory: &Memory, pieces: Vec<v1::Extent>, new: &[v1::SegmentInfo]) {
        let base = memory.snapshot();
        let mut tx = Txn::new(&*base);
        let state: &dyn Read = &*base;
        let pg = v1::PgInfo { id: 1, targets: (1..=6).collect(), ..Default::default() };
        tx.put(schema::group(1), &Group { info: pg, ..Default::default() });
        let attr = v1::Attr { ino: INO.0, nlink: 1, ..Default::default() };
        let made = Inode { attr, layout: Some(layout().into()), ..Default::default() };
        let mut edit = Edit::new(state.inode(INO).unwrap().unwrap_or(made));
        for piece in pieces {
            edit.insert(&mut tx, piece).unwrap();
        }
        edit.finish(&mut tx, new).unwrap();
        memory.write(tx.into_changes());
    }

    fn look(memory: &Memory, now: usize) -> Page {
        page(&*memory.snapshot(), INO, 0, Seats { now, all: 6 }).unwrap().unwrap()
    }

    fn is_listed(memory: &Memory) -> bool {
        Read::get(&*memory.snapshot(), &schema::scattered(INO)).unwrap().is_some()
    }

    /// Writes every part again, as a storage daemon does; answers how many bytes.
    fn write_again(memory: &Memory, page: Page, seq: &mut u64, seats: usize) -> u64 {
        let mut bytes = 0;
        for part in page.parts {
            *seq += 1;
            let new = info(*seq, part.bytes, seats);
            let mut at = 0;
            let pieces = part.extents.iter().map(|e| {
                at += e.len;
                piece(&new, e.file_off, at - e.len, e.len)
            });
            commit(memory, pieces.collect(), std::slice::from_ref(&new));
            bytes += part.bytes;
        }
        bytes
    }

    #[test]
    fn a_file_that_was_written_in_one_go_is_left_alone() {
        let memory = Memory::default();
        for at in 0..4 {
            let info = info(at + 1, 1 << 20, 6);
            commit(&memory, vec![piece(&info, at << 20, 0, 1 << 20)], &[info]);
        }
        assert!(!is_listed(&memory));
        let tail = info(9, 5000, 6);
        commit(&memory, vec![piece(&tail, 4 << 20, 0, 5000)], &[tail]);
        assert!(look(&memory, 6).parts.is_empty(), "a short end alone is nothing");
    }

    #[test]
    fn small_appends_become_one_and_dead_bytes_go() {
        let memory = Memory::default();
        for at in 0..50 {
            let info = info(at + 1, BLOCK, 6);
            commit(&memory, vec![piece(&info, at * BLOCK, 0, BLOCK)], &[info]);
        }
        assert!(is_listed(&memory));
        let found = look(&memory, 6);
        assert_eq!((found.parts.len(), found.parts[0].extents.len()), (1, 50));
        // Half of a long segment is overwritten by another.
        let (one, other) = (info(100, 1 << 20, 6), info(101, 1 << 19, 6));
        let memory = Memory::default();
        commit(&memory, vec![piece(&one, 0, 0, 1 << 20)], &[one.clone()]);
        commit(&memory, vec![piece(&other, 0, 0, 1 << 19)], &[other]);
        assert!(is_listed(&memory));
        let found = look(&memory, 6);
        assert_eq!(found.parts.len(), 1);
        assert_eq!(found.parts[0].extents[0].file_off, 1 << 19);
    }

    #[test]
    fn what_was_written_with_few_targets_waits_for_more() {
        let memory = Memory::default();
        let narrow = info(1, 1 << 20, 4);
        commit(&memory, vec![piece(&narrow, 0, 0, 1 << 20)], &[narrow]);
        assert!(is_listed(&memory));
        let found = look(&memory, 4);
        assert!(found.parts.is_empty() && found.waits);
        let found = look(&memory, 6);
        assert!(found.parts.len() == 1 && !found.waits);
    }

    #[test]
    fn what_several_files_show_is_shared_still() {
        let memory = Memory::default();
        let info = info(1, 1 << 20, 6);
        let twice = [0, 1 << 20].map(|at| piece(&info, at, 0, 1 << 20)).to_vec();
        commit(&memory, twice, std::slice::from_ref(&info));
        let tails = [(2 << 20), (3 << 20)].map(|at| piece(&info, at, 100, BLOCK)).to_vec();
        commit(&memory, tails, &[]);
        assert!(look(&memory, 6).parts.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        /// Whatever a file is made of, after some looks nothing is worth it any more, and little
        /// room is taken by what nobody shows.
        #[test]
        fn it_comes_to_an_end(
            writes in prop::collection::vec((0u64..600, 1u64..260, 1usize..4, 4usize..7), 1..60),
        ) {
            let memory = Memory::default();
            let mut seq = 0;
            for (at, blocks, pieces, seats) in writes {
                seq += 1;
                // Pieces that lie apart share a segment.
                let (len, pieces) = (blocks * BLOCK, pieces as u64);
                let info = info(seq, len * pieces, seats);
                let at = |i: u64| (at + i * (blocks + 7)) * BLOCK;
                let all = (0..pieces).map(|i| piece(&info, at(i), i * len, len)).collect();
                commit(&memory, all, std::slice::from_ref(&info));
            }
            let mut turns = 0;
            loop {
                let found = look(&memory, 6);
                let full = found.next.is_none();
                let bytes = write_again(&memory, found, &mut seq, 6);
                if bytes == 0 && full {
                    break;
                }
                turns += 1;
                prop_assert!(turns < 40, "it goes on and on");
            }
            let (mut live, mut held) = (0, 0);
            let state = memory.snapshot();
            let state: &dyn Read = &*state;
            state.records(schema::all(schema::Tag::Segment), |_, s: Segment| {
                (live, held) = (live + s.live_bytes, held + s.info.length);
                Ok(true)
            }).unwrap();
            prop_assert!(held * 10 <= live * 13, "{held} bytes are held for {live}");
        }
    }
}
