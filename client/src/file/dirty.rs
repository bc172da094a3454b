//! What was written to a file and is not committed yet.
//!
//! Writes are copied once, into the buffer that becomes a segment: a stream's own, which follows
//! the file to the next segment boundary, or one that small scattered writes share. A map says which
//! file range lies where in which buffer; the newest write wins.
//!
//! Invariants: a buffer changes only while it is open, and is committed or dropped as a whole; a
//! buffer that no range refers to is gone; buffers are numbered in the order of their first write;
//! whenever a buffer flies no more, who waits for that is told, by whatever it was that ended it.

use crate::ranges::{Part, RangeMap};
use bytes::Bytes;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;
use weft_net::AlignedBuf;
use weft_proto::SegmentId;
use weft_segments::Segment;

/// A write this long gets a buffer of its own wherever it begins.
const STREAM: usize = 256 << 10;
/// Buffers shorter than this are put together before they are sent.
const SMALL: usize = 256 << 10;
/// Ranges in one shared buffer: each becomes an extent.
const MOST_PARTS: usize = 4096;
/// Streams of one file that are open at a time.
const MAX_STREAMS: usize = 16;
/// A buffer begins no larger than its first write needs, then grows in these steps.
const GROW: [usize; 2] = [64 << 10, 1 << 20];

/// Number of a buffer within its file.
pub(crate) type BufferNo = u64;

/// Where a range of the file lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    buffer: BufferNo,
    at: u64,
}

impl Part for Place {
    fn advanced(&self, by: u64) -> Self {
        Self { at: self.at + by, ..*self }
    }
}

/// How far a buffer has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Takes more writes.
    Open,
    /// Complete, waits to be sent.
    Closed,
    /// Complete, and to be committed as inline data.
    Inline,
    /// On its way to storage.
    Flying,
    /// Durable, not yet visible: in segments that follow each other.
    Durable(Vec<Segment>),
}

/// Recycled memory: touching fresh pages costs more than copying into them.
enum Body {
    Open(AlignedBuf),
    Closed(Bytes),
}

struct Buffer {
    body: Body,
    stage: Stage,
    /// Bytes that ranges refer to.
    live: u64,
    born: Instant,
    /// Shared by scattered writes.
    shared: bool,
    /// Ranges that were put in.
    parts: usize,
    /// One for each part of the budget that it takes up.
    permits: Vec<OwnedSemaphorePermit>,
}

impl Buffer {
    fn len(&self) -> usize {
        match &self.body {
            Body::Open(bytes) => bytes.as_ref().len(),
            Body::Closed(bytes) => bytes.len(),
        }
    }

    /// Bytes of memory, as long as it is open.
    fn capacity(&self) -> usize {
        match &self.body {
            Body::Open(bytes) => bytes.capacity(),
            Body::Closed(bytes) => bytes.len(),
        }
    }

    /// Makes room for `len` more bytes, counted by `permit`: at once for all that may come, if the budget has
    /// room for that memory, else for little more than these.
    fn grow(&mut self, len: usize, permit: &OwnedSemaphorePermit, segment_len: usize) {
        let held = self.held();
        let free = permit.semaphore().available_permits() + held + permit.num_permits();
        let need = self.len() + len;
        let Body::Open(bytes) = &mut self.body else { return };
        if need > bytes.capacity() {
            let ample = GROW.into_iter().find(|&step| need <= step);
            let ample = ample.unwrap_or(segment_len.max(need));
            enlarge(bytes, if ample <= free { ample } else { need });
        }
    }

    /// Counts the memory of the buffer: `permit` is for bytes that were added.
    fn count(&mut self, mut permit: OwnedSemaphorePermit) {
        let held = self.held();
        let (held, capacity) = (held + permit.num_permits(), self.capacity());
        if let Some(surplus) = held.checked_sub(capacity) {
            // There was room for them.
            drop(permit.split(surplus.min(permit.num_permits())));
        } else if let Ok(more) = u32::try_from(capacity - held)
            && let Ok(more) = permit.semaphore().clone().try_acquire_many_owned(more)
        {
            permit.merge(more);
        }
        self.hold(permit);
    }

    fn bytes(&self, at: u64, len: u64) -> Bytes {
        let range = at as usize..(at + len) as usize;
        match &self.body {
            Body::Open(bytes) => Bytes::copy_from_slice(&bytes.as_ref()[range]),
            Body::Closed(bytes) => bytes.slice(range),
        }
    }

    /// Bytes that it counts for.
    fn held(&self) -> usize {
        self.permits.iter().map(OwnedSemaphorePermit::num_permits).sum()
    }

    /// Counts `permit` against the budget for as long as the buffer lives.
    fn hold(&mut self, permit: OwnedSemaphorePermit) {
        let alike =
            |held: &&mut OwnedSemaphorePermit| Arc::ptr_eq(held.semaphore(), permit.semaphore());
        match self.permits.iter_mut().find(alike) {
            Some(held) => held.merge(permit),
            None => self.permits.push(permit),
        }
    }

    fn close(&mut self, stage: Stage) {
        let body = std::mem::replace(&mut self.body, Body::Closed(Bytes::new()));
        self.body = match body {
            Body::Open(bytes) => Body::Closed(bytes.into()),
            closed => closed,
        };
        self.stage = stage;
    }
}

/// A part of the file that a commit makes visible.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub range: Range<u64>,
    pub source: PieceSource,
}

impl Piece {
    fn segment(&self) -> Option<SegmentId> {
        match &self.source {
            PieceSource::Segment { segment, .. } => Some(segment.id),
            PieceSource::Inline(_) => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum PieceSource {
    Segment { segment: Segment, at: u64 },
    Inline(Bytes),
}

/// What one commit takes.
#[derive(Default, Debug)]
pub(crate) struct Batch {
    pub buffers: Vec<BufferNo>,
    pub segments: Vec<Segment>,
    pub pieces: Vec<Piece>,
    /// Segments that nothing refers to any more.
    pub dead: Vec<Segment>,
}

#[derive(Default)]
pub(crate) struct Dirty {
    places: RangeMap<Place>,
    buffers: BTreeMap<BufferNo, Buffer>,
    next: BufferNo,
    /// Writes go to the end of file, and so do commits.
    pub append: bool,
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
        self.places.len() > 2 * MOST_PARTS
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

    /// Whether something of buffers with lower numbers is not committed.
    pub fn is_left(&self, below: BufferNo) -> bool {
        self.buffers.range(..below).any(|(_, b)| b.live > 0)
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
        if len >= segment_len || parts >= MOST_PARTS || (at_boundary && len >= STREAM as u64) {
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
            let scattered = !self.append && len < STREAM && !off.is_multiple_of(segment_len);
            let shared =
                self.buffers.iter().rev().find(|(_, b)| b.shared && b.stage == Stage::Open);
            shared.map(|(no, _)| *no).filter(|no| scattered && has_room(no))
        })
    }

    fn begin(&mut self, off: u64, len: usize, segment_len: u64) -> BufferNo {
        let no = self.next;
        self.next += 1;
        let shared = !self.append && len < STREAM && !off.is_multiple_of(segment_len);
        let buffer = Buffer {
            body: Body::Open(empty(len)),
            stage: Stage::Open,
            live: 0,
            born: Instant::now(),
            shared,
            parts: 0,
            permits: Vec::new(),
        };
        self.buffers.insert(no, buffer);
        no
    }

    /// Open buffers that should go before another is begun: what was appended, the shared one that
    /// is as good as full, the oldest of too many streams.
    fn surplus(&self) -> Vec<BufferNo> {
        let open = || self.buffers.iter().filter(|(_, b)| b.stage == Stage::Open);
        let streams = open().filter(|(_, b)| !b.shared).count();
        let oldest = open().find(|(_, b)| !b.shared).filter(|_| streams >= MAX_STREAMS);
        let gone = open().filter(|(_, b)| self.append || (b.shared && b.len() >= STREAM));
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

    /// The bytes of a buffer that flies.
    pub fn payload(&self, no: BufferNo) -> Option<Bytes> {
        match &self.buffers.get(&no)?.body {
            Body::Closed(bytes) => Some(bytes.clone()),
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

    /// A flight is over. Answers whether it was that of a buffer which is neither durable nor dropped: it
    /// must be sent again, by whoever flushes next.
    pub fn crashed(&mut self, no: BufferNo) -> bool {
        let flies = self.buffers.get(&no).is_some_and(|b| b.stage == Stage::Flying);
        if flies {
            self.ground(&[no]);
        }
        flies
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
        if flew {
            self.count_landing();
        }
    }

    /// Closes all that is open, to be committed: as inline data if it may be and `inline_fits` of
    /// the number of bytes, and whether they are all of `[0, size)`; else in segments, small buffers
    /// put together. Answers what is to be launched.
    pub fn close_all(
        &mut self,
        inline_fits: impl Fn(u64) -> bool,
        segment_len: u64,
    ) -> Vec<BufferNo> {
        let pending = |b: &Buffer| matches!(b.stage, Stage::Open | Stage::Inline | Stage::Closed);
        if self.buffers.values().all(pending) && inline_fits(self.live()) {
            self.buffers.values_mut().for_each(|b| b.close(Stage::Inline));
            return Vec::new();
        }
        self.compact(segment_len);
        let waiting: Vec<BufferNo> =
            self.buffers.iter().filter(|(_, b)| pending(b)).map(|(no, _)| *no).collect();
        waiting.into_iter().filter(|no| self.start(*no)).collect()
    }

    /// Puts small open buffers together, in the order of the file.
    fn compact(&mut self, segment_len: u64) {
        let is_small = |b: &&Buffer| b.stage == Stage::Open && b.len() < SMALL;
        if self.append || self.buffers.values().filter(is_small).count() < 2 {
            return;
        }
        let small: Vec<BufferNo> =
            self.buffers.iter().filter(|(_, b)| is_small(b)).map(|(no, _)| *no).collect();
        let parts: Vec<(Range<u64>, Place)> = self
            .places
            .iter()
            .filter(|(_, place)| small.contains(&place.buffer))
            .map(|(range, place)| (range, *place))
            .collect();
        let mut left: u64 = parts.iter().map(|(range, _)| range.end - range.start).sum();
        let mut to: Option<BufferNo> = None;
        for (range, place) in parts {
            let len = range.end - range.start;
            let bytes = self.buffers[&place.buffer].bytes(place.at, len);
            let room = |no: &BufferNo| self.buffers[no].len() as u64 + len <= segment_len;
            let no = to.filter(room).unwrap_or_else(|| {
                let most = left.min(segment_len).max(len) as usize;
                self.begin(range.start, most, segment_len)
            });
            (to, left) = (Some(no), left - len);
            if let Some(Buffer { body: Body::Open(into), live, .. }) = self.buffers.get_mut(&no) {
                let at = append(into, &bytes);
                *live += len;
                self.places.insert(range, Place { buffer: no, at });
            }
        }
        for no in small {
            let Some(old) = self.buffers.remove(&no) else { continue };
            if let Some(new) = to.and_then(|to| self.buffers.get_mut(&to)) {
                old.permits.into_iter().for_each(|permit| new.hold(permit));
                new.born = new.born.min(old.born);
            }
        }
    }

    /// The next commit of buffers with numbers below `below`, at most about `most` pieces: what is
    /// durable or inline, up to the first that is still on its way.
    pub fn batch(&mut self, below: BufferNo, most: usize) -> Batch {
        let mut batch = Batch::default();
        let mut ready = BTreeMap::new();
        let mut dead = Vec::new();
        for (no, buffer) in self.buffers.range(..below) {
            match &buffer.stage {
                Stage::Durable(segments) if buffer.live == 0 => {
                    dead.push(*no);
                    batch.dead.extend_from_slice(segments);
                }
                Stage::Durable(segments) => {
                    // Where two meet, a range may become two pieces.
                    ready.insert(*no, segments.len().saturating_sub(1));
                }
                Stage::Inline => {
                    ready.insert(*no, 0usize);
                }
                Stage::Open if !self.append => {}
                _ => break,
            }
        }
        dead.iter().for_each(|no| drop(self.buffers.remove(no)));
        for (_, place) in self.places.iter() {
            if let Some(count) = ready.get_mut(&place.buffer) {
                *count += 1;
            }
        }
        let mut pieces = 0;
        for (no, count) in ready {
            if pieces > 0 && pieces + count > most {
                break;
            }
            pieces += count;
            batch.buffers.push(no);
        }
        batch.pieces = self.pieces(&batch.buffers);
        let used: HashSet<SegmentId> = batch.pieces.iter().filter_map(Piece::segment).collect();
        for no in &batch.buffers {
            let Stage::Durable(segments) = &self.buffers[no].stage else { continue };
            for segment in segments {
                let to =
                    if used.contains(&segment.id) { &mut batch.segments } else { &mut batch.dead };
                to.push(segment.clone());
            }
        }
        batch
    }

    fn pieces(&self, buffers: &[BufferNo]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (range, place) in self.places.iter() {
            if buffers.binary_search(&place.buffer).is_err() {
                continue;
            }
            let buffer = &self.buffers[&place.buffer];
            let Stage::Durable(segments) = &buffer.stage else {
                let source = PieceSource::Inline(buffer.bytes(place.at, range.end - range.start));
                pieces.push(Piece { range, source });
                continue;
            };
            let mut from = 0;
            for segment in segments {
                let within = from..from + segment.geometry.length;
                let place_end = place.at + (range.end - range.start);
                let part = place.at.max(within.start)..place_end.min(within.end);
                if !part.is_empty() {
                    let start = range.start + (part.start - place.at);
                    let range = start..start + (part.end - part.start);
                    let at = part.start - within.start;
                    let source = PieceSource::Segment { segment: segment.clone(), at };
                    pieces.push(Piece { range, source });
                }
                from = within.end;
            }
        }
        pieces
    }

    /// The buffers are committed, or given up: forgets them.
    pub fn forget(&mut self, buffers: &[BufferNo]) {
        self.places.retain(|place| !buffers.contains(&place.buffer));
        for no in buffers {
            self.buffers.remove(no);
        }
        self.count_landing();
    }

    /// The buffers must be written again. Answers those that are still wanted; they fly now.
    pub fn relaunch(&mut self, buffers: &[BufferNo]) -> Vec<BufferNo> {
        buffers.iter().copied().filter(|no| self.start(*no)).collect()
    }

    /// The buffers must be written again, by whoever flushes next.
    pub fn ground(&mut self, buffers: &[BufferNo]) {
        for no in buffers {
            if let Some(buffer) = self.buffers.get_mut(no) {
                buffer.close(Stage::Closed);
            }
        }
        self.count_landing();
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

    /// Whether `[0, size)` is all here.
    pub fn covers(&self, size: u64) -> bool {
        self.places.cover(0..size).iter().all(|(_, place)| place.is_some())
    }
}

/// A buffer that `len` bytes fit in.
fn empty(len: usize) -> AlignedBuf {
    let mut buffer = AlignedBuf::take(len);
    buffer.set_len(0);
    buffer
}

/// Moves to a buffer that `size` bytes fit in; a long stream does so at most twice, if there is memory.
fn enlarge(buffer: &mut AlignedBuf, size: usize) {
    let len = buffer.as_ref().len();
    let mut larger = AlignedBuf::take(size);
    larger.as_mut_slice()[..len].copy_from_slice(buffer.as_ref());
    larger.set_len(len);
    *buffer = larger;
}

/// Adds `data` at the end. Answers where it went.
fn append(buffer: &mut AlignedBuf, data: &[u8]) -> u64 {
    let at = buffer.as_ref().len();
    let need = at + data.len();
    if need > buffer.capacity() {
        enlarge(buffer, need);
    }
    buffer.set_len(need);
    buffer.as_mut_slice()[at..].copy_from_slice(data);
    at as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use tokio::sync::Semaphore;
    use weft_proto::{Geometry, PgId, Profile, SessionId};

    const SEGMENT: u64 = 1 << 20;
    const SPAN: usize = 3 << 20;

    #[derive(Clone, Debug)]
    enum Op {
        Write(u64, usize),
        Cut(u64),
        Close(bool),
        Land,
        Relaunch,
        Commit,
    }

    fn op() -> impl Strategy<Value = Op> {
        let off = prop_oneof![0..SPAN as u64, (0..48u64).prop_map(|n| n * 65_536)];
        prop_oneof![
            8 => (off.clone(), prop_oneof![1usize..5000, 60_000usize..400_000]).prop_map(|(o, l)| Op::Write(o, l)),
            1 => off.prop_map(Op::Cut),
            2 => any::<bool>().prop_map(Op::Close),
            3 => Just(Op::Land),
            1 => Just(Op::Relaunch),
            2 => Just(Op::Commit),
        ]
    }

    /// The dirty buffers over what is committed, as plain arrays.
    struct World {
        dirty: Dirty,
        budget: Arc<Semaphore>,
        flying: Vec<BufferNo>,
        stored: Vec<Bytes>,
        committed: Vec<u8>,
        model: Vec<u8>,
    }

    impl World {
        fn write(&mut self, off: u64, data: &[u8]) {
            let (mut off, mut rest) = (off, data);
            while !rest.is_empty() {
                let room = (SEGMENT - off % SEGMENT) as usize;
                let (head, tail) = rest.split_at(rest.len().min(room));
                let permit = self.budget.clone().try_acquire_many_owned(head.len() as u32).unwrap();
                self.flying.extend(self.dirty.write(off, head, SEGMENT, permit));
                off += head.len() as u64;
                rest = tail;
            }
        }

        fn land(&mut self) {
            for no in self.flying.drain(..) {
                let Some(payload) = self.dirty.payload(no) else { continue };
                // One, or several if there is no room for one.
                let most = if no % 2 == 0 { usize::MAX } else { 40_000 };
                let mut segments = Vec::new();
                for part in payload.chunks(most) {
                    let id = SegmentId { session: SessionId(1), seq: self.stored.len() as u64 };
                    let profile = Profile::replica(1).unwrap();
                    let geometry = Geometry { profile, unit: 4096, length: part.len() as u64 };
                    self.stored.push(payload.slice_ref(part));
                    segments.push(Segment { id, geometry, pg: PgId(1), seats: vec![0] });
                }
                self.dirty.landed(no, segments);
            }
        }

        fn commit(&mut self) {
            let batch = self.dirty.batch(BufferNo::MAX, 64);
            let used: HashSet<_> = batch.pieces.iter().filter_map(Piece::segment).collect();
            let named: HashSet<_> = batch.segments.iter().map(|s| s.id).collect();
            assert_eq!(used, named);
            assert!(batch.dead.iter().all(|s| !used.contains(&s.id)));
            let mut at = 0;
            for Piece { range, source } in &batch.pieces {
                assert!(range.start >= at && !range.is_empty());
                at = range.end;
                let len = (range.end - range.start) as usize;
                let bytes = match source {
                    PieceSource::Segment { segment, at } => {
                        self.stored[segment.id.seq as usize].slice(*at as usize..*at as usize + len)
                    }
                    PieceSource::Inline(bytes) => bytes.clone(),
                };
                self.committed[range.start as usize..range.end as usize].copy_from_slice(&bytes);
            }
            self.dirty.forget(&batch.buffers);
        }

        fn check(&self) {
            let mut seen = self.committed.clone();
            for (range, bytes) in self.dirty.read(0..seen.len() as u64) {
                if let Some(bytes) = bytes {
                    seen[range.start as usize..range.end as usize].copy_from_slice(&bytes);
                }
            }
            assert!(seen == self.model);
            let live: u64 = self.dirty.places.iter().map(|(r, _)| r.end - r.start).sum();
            assert_eq!(self.dirty.live(), live);
        }
    }

    /// As bytes that are written back while the leases are over may be.
    #[test]
    fn a_buffer_counts_for_two_parts_of_the_budget() {
        const LIMIT: usize = 1 << 20;
        let budgets = [(); 2].map(|()| Arc::new(Semaphore::new(LIMIT)));
        let mut dirty = Dirty::default();
        for (n, budget) in (0u64..).zip(budgets.iter().cycle().take(8)) {
            let permit = budget.clone().try_acquire_many_owned(5000).unwrap();
            // Every other pair lies apart, to be put together.
            let off = n * 5000 + n / 2 * 100_000;
            assert!(dirty.write(off, &[1; 5000], 16 << 20, permit).is_empty());
        }
        assert_eq!(dirty.close_all(|_| false, 16 << 20).len(), 1);
        let counted: usize = budgets.iter().map(|b| LIMIT - b.available_permits()).sum();
        assert!(counted >= 8 * 5000, "{counted}");
        dirty.cut(0..u64::MAX);
        assert!(budgets.iter().all(|budget| budget.available_permits() == LIMIT));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn the_newest_write_wins_whatever_is_under_way(ops in prop::collection::vec(op(), 1..60)) {
            let budget = Arc::new(Semaphore::new(1 << 30));
            let mut world = World {
                dirty: Dirty::default(),
                budget: budget.clone(),
                flying: Vec::new(),
                stored: Vec::new(),
                committed: vec![0; SPAN + 400_000],
                model: vec![0; SPAN + 400_000],
            };
            for (i, op) in ops.into_iter().enumerate() {
                match op {
                    Op::Write(off, len) => {
                        let data = vec![i as u8 + 1; len];
                        world.model[off as usize..off as usize + len].copy_from_slice(&data);
                        world.write(off, &data);
                    }
                    Op::Cut(size) => {
                        world.dirty.cut(size..u64::MAX);
                        world.model[size as usize..].fill(0);
                        world.committed[size as usize..].fill(0);
                    }
                    Op::Close(inline) => world.flying.extend(world.dirty.close_all(|_| inline, SEGMENT)),
                    Op::Land => world.land(),
                    Op::Relaunch => {
                        let all: Vec<BufferNo> = world.dirty.batch(BufferNo::MAX, 64).buffers;
                        world.flying.extend(world.dirty.relaunch(&all));
                    }
                    Op::Commit => world.commit(),
                }
                world.check();
            }
            world.flying.extend(world.dirty.close_all(|_| false, SEGMENT));
            world.land();
            while !world.dirty.is_empty() {
                world.commit();
                world.check();
            }
            prop_assert_eq!(budget.available_permits(), 1 << 30, "all room is given back");
        }

        /// Streams that stop anywhere, of many files.
        #[test]
        fn memory_is_counted(lens in prop::collection::vec(1usize..3 << 20, 1..60)) {
            const SEGMENT: u64 = 16 << 20;
            const LIMIT: usize = 64 << 20;
            let budget = Arc::new(Semaphore::new(LIMIT));
            let mut files = Vec::new();
            for len in lens {
                let mut dirty = Dirty::default();
                for off in (0..len).step_by(200_000) {
                    let part = 200_000.min(len - off);
                    let Ok(permit) = budget.clone().try_acquire_many_owned(part as u32) else { break };
                    let full = dirty.write(off as u64, &vec![1; part], SEGMENT, permit);
                    prop_assert!(full.is_empty());
                }
                files.push(dirty);
            }
            let memory: usize = files.iter().flat_map(|f| f.buffers.values()).map(Buffer::capacity).sum();
            let counted = LIMIT - budget.available_permits();
            // A buffer has a power of two of bytes.
            prop_assert!(memory <= 2 * counted + 4096 * files.len(), "{memory} of {counted}");
            drop(files);
            prop_assert_eq!(budget.available_permits(), LIMIT);
        }

        #[test]
        fn a_stream_makes_whole_aligned_segments(step in 1usize..300_000, start in 0u64..2) {
            let budget = Arc::new(Semaphore::new(1 << 30));
            let mut dirty = Dirty::default();
            let (mut off, mut full) = (start * SEGMENT, 0);
            while off < 4 * SEGMENT {
                let len = step.min((SEGMENT - off % SEGMENT) as usize);
                let permit = budget.clone().try_acquire_many_owned(len as u32).unwrap();
                for no in dirty.write(off, &vec![1; len], SEGMENT, permit) {
                    prop_assert_eq!(dirty.payload(no).unwrap().len() as u64, SEGMENT);
                    full += 1;
                }
                off += len as u64;
            }
            prop_assert_eq!(full, 4 - start);
        }
    }
}
