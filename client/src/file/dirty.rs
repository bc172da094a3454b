//! What was written to a file and is not committed yet.
//!
//! Writes are copied once, into the buffer that becomes a segment: a stream's own, which follows
//! the file to the next segment boundary, or one that small scattered writes share. A map says
//! which file range lies where in which buffer; the newest write wins.
//!
//! Invariants: a buffer changes only while it is open, and is committed or dropped as a whole; a
//! buffer that no range refers to is gone; buffers are numbered in the order of their first write;
//! whenever a buffer flies no more, who waits for that is told, by whatever it was that ended it;
//! a segment that a buffer has and loses is answered to whoever took it away; bytes count against
//! the budget while a flight has them, whether or not they are still wanted.

use super::buffer::{Body, Buffer, BufferNo, Permits, Stage, append, empty};
use super::fate::Fate;
use crate::ranges::{Part, RangeMap};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;
use weft_segments::Segment;

/// A write this long gets a buffer of its own wherever it begins.
const MIN_STREAM: usize = 256 << 10;
/// Ranges in one shared buffer: each becomes an extent.
const MAX_PARTS: usize = 4096;
/// So many are to be committed before more comes: however few buffers were cut into them, one
/// commit takes all that are left of one.
const MAX_PLACES: usize = 10_000;
/// Streams of one file that are open at a time.
const MAX_STREAMS: usize = 16;

/// Where a range of the file lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub buffer: BufferNo,
    pub at: u64,
}

impl Part for Place {
    fn advanced(&self, by: u64) -> Self {
        Self { at: self.at + by, ..*self }
    }
}

#[derive(Default)]
pub(crate) struct Dirty {
    pub(super) places: RangeMap<Place>,
    pub(super) buffers: BTreeMap<BufferNo, Buffer>,
    next: BufferNo,
    /// Writes go to the end of file, and so do commits.
    pub append: bool,
    /// For bytes that count for quotas: no more than there are.
    credit: Option<OwnedSemaphorePermit>,
    /// Counts flights that ended.
    landings: watch::Sender<u64>,
}

impl Dirty {
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// End of the last range; 0 if there is none.
    pub fn end(&self) -> u64 {
        self.places.end()
    }

    /// Bytes that are not committed yet.
    pub fn live(&self) -> u64 {
        self.buffers.values().map(|b| b.live).sum()
    }

    /// So scattered that it should be committed before more comes: a commit takes only so many
    /// extents.
    pub fn is_scattered(&self) -> bool {
        self.places.len() > 2 * MAX_PARTS
    }

    /// So scattered that it must be committed before more comes.
    pub fn is_in_pieces(&self) -> bool {
        self.places.len() > MAX_PLACES
    }

    /// When the oldest buffer was begun.
    pub fn oldest(&self) -> Option<Instant> {
        self.buffers.values().map(|b| b.born).min()
    }

    /// Bytes of buffers in a stage.
    pub fn amount(&self, stage: impl Fn(&Stage) -> bool) -> u64 {
        self.buffers.values().filter(|b| stage(&b.stage)).map(|b| b.len() as u64).sum()
    }

    pub fn durable(&self) -> u64 {
        self.amount(|s| matches!(s, Stage::Durable(_)))
    }

    pub fn is_flying(&self, below: BufferNo) -> bool {
        self.buffers.range(..below).any(|(_, b)| b.stage == Stage::Flying)
    }

    /// Whether nothing of it was sent yet.
    pub fn is_pending(&self) -> bool {
        self.buffers.values().all(Buffer::is_pending)
    }

    /// Whether something of buffers with lower numbers was never committed.
    pub fn is_left(&self, below: BufferNo) -> bool {
        self.buffers.range(..below).any(|(_, b)| b.live > 0 && !b.spilled)
    }

    /// Changes whenever a buffer flies no more.
    pub fn landings(&self) -> watch::Receiver<u64> {
        self.landings.subscribe()
    }

    fn count_landing(&self) {
        self.landings.send_modify(|n| *n += 1);
    }

    /// Buffers begun so far have lower numbers.
    pub fn next(&self) -> BufferNo {
        self.next
    }

    /// Takes `data` in at `off`; it must not cross a multiple of `segment_len`, unless appended.
    /// Answers the buffers that are complete now, to be launched.
    pub fn write(
        &mut self,
        off: u64,
        data: &[u8],
        segment_len: u64,
        permit: OwnedSemaphorePermit,
    ) -> Vec<BufferNo> {
        let range = off..off + data.len() as u64;
        if self.overwrite(&range, data) {
            return Vec::new();
        }
        self.cut(range.clone());
        let mut full = Vec::new();
        let no = match self.tail(off, data.len(), segment_len) {
            Some(no) => no,
            None => {
                full.extend(self.surplus());
                self.begin(off, data.len(), segment_len)
            }
        };
        let Some(buffer) = self.buffers.get_mut(&no) else { return full };
        buffer.grow(data.len(), &permit, segment_len as usize);
        let Body::Open(bytes) = &mut buffer.body else { return full };
        let at = append(bytes, data);
        buffer.live += data.len() as u64;
        buffer.count(permit);
        let follows = self.places.overlapping(off.saturating_sub(1)..off).next();
        let follows =
            follows.is_some_and(|(r, p)| p.buffer == no && p.at + (r.end - r.start) == at);
        if !(follows && self.places.extend(off, range.end)) {
            self.places.insert(range.clone(), Place { buffer: no, at });
            buffer.parts += 1;
        }
        let (len, parts) = (buffer.len() as u64, buffer.parts);
        let at_boundary = !self.append && range.end.is_multiple_of(segment_len) && !buffer.shared;
        if len >= segment_len || parts >= MAX_PARTS || (at_boundary && len >= MIN_STREAM as u64) {
            full.push(no);
        }
        full.retain(|no| self.start(*no));
        full
    }

    /// Overwrites in place what lies whole in one open buffer.
    fn overwrite(&mut self, range: &Range<u64>, data: &[u8]) -> bool {
        let Some((part, place)) = self.places.overlapping(range.clone()).next() else {
            return false;
        };
        match self.buffers.get_mut(&place.buffer).map(|b| &mut b.body) {
            Some(Body::Open(bytes)) if part == *range => {
                let at = place.at as usize;
                bytes.as_mut_slice()[at..at + data.len()].copy_from_slice(data);
                true
            }
            _ => false,
        }
    }

    /// An open buffer that `len` bytes at `off` may be added to: one whose last bytes come right
    /// before in the file, else the shared one if the write is small.
    fn tail(&self, off: u64, len: usize, segment_len: u64) -> Option<BufferNo> {
        let has_room = |no: &BufferNo| {
            self.buffers
                .get(no)
                .is_some_and(|b| b.stage == Stage::Open && (b.len() + len) as u64 <= segment_len)
        };
        let before = off.checked_sub(1).and_then(|b| self.places.overlapping(b..off).next());
        let follows = before.filter(|(_, place)| {
            let b = self.buffers.get(&place.buffer);
            let boundary = !self.append && off.is_multiple_of(segment_len);
            b.is_some_and(|b| place.at + 1 == b.len() as u64 && (!boundary || b.shared))
        });
        follows.map(|(_, place)| place.buffer).filter(has_room).or_else(|| {
            let scattered = !self.append && len < MIN_STREAM && !off.is_multiple_of(segment_len);
            let shared =
                self.buffers.iter().rev().find(|(_, b)| b.shared && b.stage == Stage::Open);
            shared.map(|(no, _)| *no).filter(|no| scattered && has_room(no))
        })
    }

    pub(super) fn begin(&mut self, off: u64, len: usize, segment_len: u64) -> BufferNo {
        let no = self.next;
        self.next += 1;
        let shared = !self.append && len < MIN_STREAM && !off.is_multiple_of(segment_len);
        let buffer = Buffer {
            body: Body::Open(empty(len)),
            stage: Stage::Open,
            live: 0,
            born: Instant::now(),
            shared,
            spilled: false,
            placed: false,
            parts: 0,
            fates: Vec::new(),
            permits: Permits::default(),
        };
        self.buffers.insert(no, buffer);
        no
    }

    /// Takes in what was committed before, of which nothing is here, in a buffer of its own, which
    /// is to be closed next.
    pub fn spill(
        &mut self,
        parts: &[(u64, Bytes)],
        segment_len: u64,
        permit: OwnedSemaphorePermit,
    ) -> BufferNo {
        let no = self.begin(0, permit.num_permits(), segment_len);
        let Some(buffer) = self.buffers.get_mut(&no) else { return no };
        (buffer.shared, buffer.spilled) = (!self.append, true);
        for (off, data) in parts {
            let Body::Open(bytes) = &mut buffer.body else { return no };
            let (mut at, end) = (append(bytes, data), off + data.len() as u64);
            let mut off = *off;
            while off < end {
                let len = (segment_len - off % segment_len).min(end - off);
                self.places.insert(off..off + len, Place { buffer: no, at });
                (off, at) = (off + len, at + len);
                buffer.parts += 1;
            }
            buffer.live += data.len() as u64;
        }
        buffer.count(permit);
        if self.append {
            // Nothing that is appended joins it.
            buffer.close(Stage::Closed);
        }
        no
    }

    /// What was spilled beside appended data is not written once more. Answers the segments that it
    /// had.
    pub fn drop_spilled(&mut self) -> Vec<Segment> {
        let spilled = self.buffers.iter().filter(|(_, b)| b.spilled).map(|(no, _)| *no);
        let spilled = Vec::from_iter(spilled);
        if spilled.is_empty() { Vec::new() } else { self.forget(&spilled) }
    }

    /// Whether there is a buffer that has only what was committed before.
    pub fn has_spilled(&self) -> bool {
        self.buffers.values().any(|b| b.spilled)
    }

    /// Whether a buffer has only what was committed before.
    fn is_spilled(&self, no: BufferNo) -> bool {
        self.buffers.get(&no).is_some_and(|b| b.spilled)
    }

    /// Whether there are buffers, and that is so of all of them.
    pub fn are_spilled(&self, buffers: &[BufferNo]) -> bool {
        !buffers.is_empty() && buffers.iter().all(|no| self.is_spilled(*no))
    }

    /// What was appended in these buffers may be where they say.
    pub fn place(&mut self, buffers: &[BufferNo]) {
        for no in buffers {
            if let Some(buffer) = self.buffers.get_mut(no) {
                buffer.placed = true;
            }
        }
    }

    /// All buffers for which that is so have lower numbers; `None` if it is for none.
    pub fn placed_below(&self) -> Option<BufferNo> {
        self.buffers.iter().rev().find(|(_, b)| b.placed).map(|(no, _)| no + 1)
    }

    /// What was appended, in order.
    fn appended(&self) -> impl Iterator<Item = (Range<u64>, BufferNo)> {
        let places = self.places.iter().map(|(range, place)| (range, place.buffer));
        places.filter(|(_, no)| !self.is_spilled(*no))
    }

    /// Where the last that was appended ends.
    pub fn appended_end(&self) -> Option<u64> {
        if !self.has_spilled() {
            return (self.places.len() > 0).then(|| self.end());
        }
        self.appended().last().map(|(range, _)| range.end)
    }

    /// Where the first begins that was appended in these buffers.
    pub fn appended_in(&self, buffers: &[BufferNo]) -> Option<u64> {
        self.appended().find(|(_, no)| buffers.contains(no)).map(|(range, _)| range.start)
    }

    /// The first buffer of appended data that does not follow the one before.
    pub fn first_gap(&self) -> Option<BufferNo> {
        if !self.append {
            return None;
        }
        let mut end = None;
        let gap = |(range, no): (Range<u64>, BufferNo)| {
            let follows = end.replace(range.end).is_none_or(|end| end == range.start);
            (!follows).then_some(no)
        };
        self.appended().find_map(gap)
    }

    /// Whether all that was appended is to be inline, behind what was spilled for it.
    pub fn is_split(&self) -> bool {
        let closed = |b: &Buffer| b.spilled || b.stage == Stage::Inline;
        self.append && self.has_spilled() && self.buffers.values().all(closed)
    }

    /// Bytes of one buffer that are not committed yet.
    pub fn live_of(&self, no: BufferNo) -> u64 {
        self.buffers.get(&no).map_or(0, |b| b.live)
    }

    /// Open buffers that should go before another is begun: what was appended, the shared one that
    /// is as good as full, the oldest of too many streams.
    fn surplus(&self) -> Vec<BufferNo> {
        let open = || self.buffers.iter().filter(|(_, b)| b.stage == Stage::Open);
        let streams = open().filter(|(_, b)| !b.shared).count();
        let oldest = open().find(|(_, b)| !b.shared).filter(|_| streams >= MAX_STREAMS);
        let gone = open().filter(|(_, b)| self.append || (b.shared && b.len() >= MIN_STREAM));
        oldest.into_iter().chain(gone).map(|(no, _)| *no).collect()
    }

    /// The buffer is on its way from now on. Answers false if it is not there to be sent.
    pub fn start(&mut self, no: BufferNo) -> bool {
        match self.buffers.get_mut(&no) {
            Some(b) if b.stage != Stage::Flying => {
                b.close(Stage::Flying);
                true
            }
            _ => false,
        }
    }

    /// The bytes of a buffer that flies, and what is to be kept as long as they are.
    pub fn payload(&self, no: BufferNo) -> Option<(Bytes, Permits)> {
        let buffer = self.buffers.get(&no)?;
        match &buffer.body {
            Body::Closed(bytes) => Some((bytes.clone(), buffer.permits.clone())),
            Body::Open(_) => None,
        }
    }

    /// A flight arrived. Answers the segments if nobody wants them any more.
    pub fn landed(&mut self, no: BufferNo, segments: Vec<Segment>) -> Vec<Segment> {
        match self.buffers.get_mut(&no) {
            Some(b) if b.stage == Stage::Flying => {
                b.stage = Stage::Durable(segments);
                self.count_landing();
                Vec::new()
            }
            _ => segments,
        }
    }

    /// A flight failed for good: what was on it is lost, unless it was sent again meanwhile and got
    /// there, or was committed, otherwise or before. Answers whether it is lost.
    pub fn failed(&mut self, no: BufferNo) -> bool {
        let Some(buffer) = self.buffers.get(&no).filter(|b| b.stage == Stage::Flying) else {
            return false;
        };
        let is_lost = !buffer.spilled;
        // It has no segments yet.
        drop(self.lose(&[no]));
        is_lost
    }

    /// A flight is over. Answers whether it was that of a buffer which is neither durable nor
    /// dropped: it must be sent again, by whoever flushes next.
    pub fn crashed(&mut self, no: BufferNo) -> bool {
        match self.buffers.get(&no) {
            Some(buffer) if buffer.spilled => self.failed(no),
            Some(buffer) if buffer.stage == Stage::Flying => {
                // It has no segments yet.
                drop(self.ground(&[no]));
                true
            }
            _ => false,
        }
    }

    /// Bytes that were put in just now are within the credit of a quota.
    pub fn spend(&mut self, credit: OwnedSemaphorePermit) {
        match &mut self.credit {
            Some(spent) => spent.merge(credit),
            None => self.credit = Some(credit),
        }
        // Some may be in the place of others.
        self.unspend();
    }

    /// There may be less now that counts.
    fn unspend(&mut self) {
        let Some(spent) = &mut self.credit else { return };
        let live = self.buffers.values().map(|b| b.live).sum::<u64>() as usize;
        match spent.num_permits().checked_sub(live) {
            Some(_) if live == 0 => self.credit = None,
            Some(over) => drop(spent.split(over)),
            None => {}
        }
    }

    /// What lies in `range` is not wanted any more.
    pub fn cut(&mut self, range: Range<u64>) {
        let gone = self.places.remove(range);
        for (range, place) in gone {
            if let Some(buffer) = self.buffers.get_mut(&place.buffer) {
                buffer.live -= range.end - range.start;
            }
        }
        // A durable buffer stays until the next batch, which says that its segment is dead.
        let stays = |b: &Buffer| b.live > 0 || matches!(b.stage, Stage::Durable(_));
        let flew = self.buffers.values().any(|b| b.stage == Stage::Flying && !stays(b));
        self.buffers.retain(|_, b| stays(b));
        self.unspend();
        if flew {
            self.count_landing();
        }
    }

    /// The buffers are committed, or given up: forgets them. Answers their segments, of which some
    /// may have come since the commit was put together: those nobody else knows.
    pub fn forget(&mut self, buffers: &[BufferNo]) -> Vec<Segment> {
        self.places.retain(|place| !buffers.contains(&place.buffer));
        let gone = buffers.iter().filter_map(|no| self.buffers.remove(no));
        let dropped = gone.flat_map(|mut buffer| buffer.take_segments()).collect();
        self.unspend();
        self.count_landing();
        dropped
    }

    /// [`Self::forget`] of what is not committed, nor was: who wants to know of what was written to
    /// these buffers can see it.
    pub fn lose(&mut self, buffers: &[BufferNo]) -> Vec<Segment> {
        let lost = buffers.iter().filter_map(|no| self.buffers.get(no)).filter(|b| !b.placed);
        lost.flat_map(|buffer| &buffer.fates).for_each(Fate::lose);
        self.forget(buffers)
    }

    /// What was written to `range` just now has this fate. Nobody can say that it is lost if it is
    /// in several buffers: one may be lost, and others not.
    pub fn follow(&mut self, range: Range<u64>, fate: &Fate) {
        let mut buffers = self.places.overlapping(range).map(|(_, place)| place.buffer);
        if let Some(no) = buffers.next()
            && buffers.all(|other| other == no)
            && let Some(buffer) = self.buffers.get_mut(&no)
        {
            if buffer.fates.len() == buffer.fates.capacity() {
                buffer.fates.retain(Fate::matters);
            }
            buffer.fates.push(fate.clone());
        }
    }

    /// The buffers must be written again. Answers those that are still wanted, which fly now, and
    /// the segments that they had.
    pub fn relaunch(&mut self, buffers: &[BufferNo]) -> (Vec<BufferNo>, Vec<Segment>) {
        let dropped = self.take_segments(buffers);
        (buffers.iter().copied().filter(|no| self.start(*no)).collect(), dropped)
    }

    /// The buffers must be written again, by whoever flushes next. Answers the segments that they
    /// had.
    pub fn ground(&mut self, buffers: &[BufferNo]) -> Vec<Segment> {
        let dropped = self.take_segments(buffers);
        for no in buffers {
            if let Some(buffer) = self.buffers.get_mut(no) {
                buffer.close(Stage::Closed);
            }
        }
        self.count_landing();
        dropped
    }

    fn take_segments(&mut self, buffers: &[BufferNo]) -> Vec<Segment> {
        let mut dropped = Vec::new();
        for no in buffers {
            dropped.extend(self.buffers.get_mut(no).into_iter().flat_map(Buffer::take_segments));
        }
        dropped
    }

    /// The end of file was elsewhere than appended data was thought to go.
    pub fn shift(&mut self, by: i64) {
        self.places.shift(by);
    }

    /// What of `range` is in buffers, and `None` for the rest.
    pub fn read(&self, range: Range<u64>) -> Vec<(Range<u64>, Option<Bytes>)> {
        let cover = self.places.cover(range).into_iter();
        cover
            .map(|(range, place)| {
                let bytes = place.and_then(|p| {
                    Some(self.buffers.get(&p.buffer)?.bytes(p.at, range.end - range.start))
                });
                (range, bytes)
            })
            .collect()
    }

    /// The first range at or behind `at`.
    pub fn next_range(&self, at: u64) -> Option<Range<u64>> {
        self.places.overlapping(at..u64::MAX).next().map(|(range, _)| range)
    }

    /// What was written, in order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.places.iter().map(|(range, _)| range)
    }

    /// What of `range` is not here.
    pub fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let cover = self.places.cover(range).into_iter();
        cover.filter(|(_, place)| place.is_none()).map(|(range, _)| range).collect()
    }

    /// Whether `[0, size)` is all here.
    pub fn covers(&self, size: u64) -> bool {
        self.places.cover(0..size).iter().all(|(_, place)| place.is_some())
    }
}

#[cfg(test)]
mod tests;
