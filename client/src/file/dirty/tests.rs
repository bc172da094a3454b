//! Dirty buffers against plain arrays, and what they count for.

use super::*;
use crate::file::piece::{Batch, Piece, PieceSource};
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::Semaphore;
use weft_proto::{Geometry, PgId, Profile, SegmentId, SessionId};

const SEGMENT: u64 = 1 << 20;
const SPAN: usize = 3 << 20;
const BUDGET: usize = 1 << 30;

#[derive(Clone, Debug)]
enum Op {
    Write(u64, usize),
    Cut(u64),
    Close(bool),
    Land,
    Relaunch,
    Commit,
    /// A commit is put together, which is answered by the next.
    Send,
    /// What is committed here is written once more.
    Spill(u64, usize),
    DropSpilled,
}

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![1usize..5000, 60_000usize..400_000];
    let off = prop_oneof![0..SPAN as u64, (0..48u64).prop_map(|n| n * 65_536)];
    prop_oneof![
        8 => (off.clone(), len).prop_map(|(off, len)| Op::Write(off, len)),
        2 => (off.clone(), 1usize..200_000).prop_map(|(off, len)| Op::Spill(off, len)),
        1 => Just(Op::DropSpilled),
        1 => off.prop_map(Op::Cut),
        2 => any::<bool>().prop_map(Op::Close),
        3 => Just(Op::Land),
        1 => Just(Op::Relaunch),
        2 => Just(Op::Commit),
        2 => Just(Op::Send),
    ]
}

fn segment(seq: u64, length: u64) -> Segment {
    let id = SegmentId { session: SessionId(1), seq };
    let geometry = Geometry { profile: Profile::replica(1).unwrap(), unit: 4096, length };
    Segment { id, geometry, pg: PgId(1), seats: vec![0] }
}

/// The dirty buffers over what is committed, as plain arrays.
struct World {
    dirty: Dirty,
    budget: Arc<Semaphore>,
    /// Flights, each with the bytes of its buffer, which may not be wanted any more.
    flying: Vec<(BufferNo, Option<(Bytes, Permits)>)>,
    stored: Vec<Bytes>,
    committed: Vec<u8>,
    model: Vec<u8>,
    /// A commit that is not answered yet.
    sent: Option<Batch>,
    /// Segments that were committed, or discarded.
    settled: HashSet<SegmentId>,
}

impl World {
    fn write(&mut self, off: u64, data: &[u8]) {
        let (mut off, mut rest) = (off, data);
        while !rest.is_empty() {
            let room = (SEGMENT - off % SEGMENT) as usize;
            let (head, tail) = rest.split_at(rest.len().min(room));
            let permit = self.budget.clone().try_acquire_many_owned(head.len() as u32).unwrap();
            let full = self.dirty.write(off, head, SEGMENT, permit);
            self.launch(full);
            off += head.len() as u64;
            rest = tail;
        }
    }

    fn spill(&mut self, off: u64, len: usize) {
        let mut parts = Vec::new();
        for gap in self.dirty.gaps(off..off + len as u64) {
            let bytes = &self.committed[gap.start as usize..gap.end as usize];
            parts.push((gap.start, Bytes::copy_from_slice(bytes)));
        }
        let len: usize = parts.iter().map(|(_, bytes)| bytes.len()).sum();
        if len > 0 {
            let permit = self.budget.clone().try_acquire_many_owned(len as u32).unwrap();
            self.dirty.spill(&parts, SEGMENT, permit);
            self.close_all(false);
        }
    }

    fn close_all(&mut self, inline: bool) {
        let closed = self.dirty.close_all(inline, SEGMENT);
        self.launch(closed);
    }

    fn launch(&mut self, buffers: Vec<BufferNo>) {
        self.flying.extend(buffers.into_iter().map(|no| (no, self.dirty.payload(no))));
    }

    fn land(&mut self) {
        for (no, payload) in std::mem::take(&mut self.flying) {
            let Some((payload, _permits)) = payload else { continue };
            // One, or several if there is no room for one.
            let most = if no % 2 == 0 { usize::MAX } else { 40_000 };
            let mut segments = Vec::new();
            for part in payload.chunks(most) {
                segments.push(segment(self.stored.len() as u64, part.len() as u64));
                self.stored.push(payload.slice_ref(part));
            }
            let unwanted = self.dirty.landed(no, segments);
            self.settle(&unwanted);
        }
    }

    fn settle(&mut self, segments: &[Segment]) {
        self.settled.extend(segments.iter().map(|segment| segment.id));
    }

    fn relaunch(&mut self, buffers: &[BufferNo]) {
        let (launched, dropped) = self.dirty.relaunch(buffers);
        self.settle(&dropped);
        self.launch(launched);
    }

    fn send(&mut self) {
        self.commit();
        let batch = self.dirty.batch(BufferNo::MAX, 64);
        self.settle(&batch.dead);
        self.sent = Some(batch);
    }

    fn commit(&mut self) {
        let sent = self.sent.take();
        let batch = sent.unwrap_or_else(|| self.dirty.batch(BufferNo::MAX, 64));
        self.settle(&batch.dead);
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
        self.settle(&batch.segments);
        let dropped = self.dirty.forget(&batch.buffers);
        self.settle(&dropped);
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
        self.check_memory();
    }

    /// Bytes that anybody has count against the budget.
    fn check_memory(&self) {
        let mut memory: usize = self.dirty.buffers.values().map(Buffer::len).sum();
        let mut seen = HashSet::new();
        for (no, payload) in &self.flying {
            if let Some((bytes, _)) = payload
                && !self.dirty.buffers.contains_key(no)
                && seen.insert(no)
            {
                memory += bytes.len();
            }
        }
        let counted = BUDGET - self.budget.available_permits();
        assert!(memory <= counted, "{memory} bytes, of which {counted} are counted");
    }
}

/// It was sent once more meanwhile, and what that stored may be in a commit.
#[test]
fn a_first_flight_that_fails_takes_nothing_from_the_second() {
    let budget = Arc::new(Semaphore::new(1 << 20));
    let permit = budget.clone().try_acquire_many_owned(1000).unwrap();
    let mut dirty = Dirty::default();
    dirty.write(0, &[1; 1000], SEGMENT, permit);
    assert_eq!(dirty.close_all(false, SEGMENT), [0]);
    // A commit that was put together before is put off.
    assert!(dirty.ground(&[0]).is_empty());
    assert_eq!(dirty.close_all(false, SEGMENT), [0]);
    assert!(dirty.landed(0, vec![segment(7, 1000)]).is_empty());
    assert!(!dirty.failed(0), "that of the first flight");
    assert_eq!(dirty.batch(BufferNo::MAX, 64).segments, [segment(7, 1000)]);
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
    assert_eq!(dirty.close_all(false, 16 << 20).len(), 1);
    let counted: usize = budgets.iter().map(|b| LIMIT - b.available_permits()).sum();
    assert!(counted >= 8 * 5000, "{counted}");
    dirty.cut(0..u64::MAX);
    assert!(budgets.iter().all(|budget| budget.available_permits() == LIMIT));
}

/// Whoever overwrites what is on its way waits for room as others do.
#[test]
fn what_flies_counts_though_nobody_wants_it() {
    const LIMIT: usize = 4 << 20;
    let budget = Arc::new(Semaphore::new(LIMIT));
    let mut dirty = Dirty::default();
    let permit = budget.clone().try_acquire_many_owned(SEGMENT as u32).unwrap();
    let full = dirty.write(0, &vec![1; SEGMENT as usize], SEGMENT, permit);
    let flight = dirty.payload(full[0]);
    dirty.cut(0..u64::MAX);
    assert!(dirty.is_empty() && !dirty.is_flying(BufferNo::MAX));
    assert_eq!(budget.available_permits(), LIMIT - SEGMENT as usize);
    drop(flight);
    assert_eq!(budget.available_permits(), LIMIT);
}

/// As long as they are to be committed, and once however often they are overwritten.
#[test]
fn bytes_of_a_quota_are_spent() {
    const CREDIT: usize = 1 << 20;
    let [budget, credit] = [(); 2].map(|()| Arc::new(Semaphore::new(CREDIT)));
    let take = |from: &Arc<Semaphore>, len| from.clone().try_acquire_many_owned(len).unwrap();
    let mut dirty = Dirty::default();
    let write = |dirty: &mut Dirty, off, len: u32| {
        dirty.write(off, &vec![1; len as usize], SEGMENT, take(&budget, len));
        dirty.spend(take(&credit, len));
        CREDIT - credit.available_permits()
    };
    assert_eq!(write(&mut dirty, 0, 1000), 1000);
    assert_eq!(write(&mut dirty, 1000, 500), 1500);
    assert_eq!(write(&mut dirty, 800, 1000), 1800);
    assert_eq!(write(&mut dirty, 800, 1000), 1800);
    dirty.cut(1000..u64::MAX);
    assert_eq!(CREDIT - credit.available_permits(), 1000);
    dirty.forget(&[0, 1]);
    assert_eq!(credit.available_permits(), CREDIT);
}

/// What was to be inline may be sent to storage while it is committed, and get there first.
#[test]
fn a_segment_that_nobody_was_told_of_is_answered() {
    type Drops = fn(&mut Dirty, &[BufferNo]) -> Vec<Segment>;
    let drops: [Drops; 3] = [Dirty::forget, Dirty::ground, |dirty, no| dirty.relaunch(no).1];
    for drop_all in drops {
        let budget = Arc::new(Semaphore::new(1 << 20));
        let permit = |len| budget.clone().try_acquire_many_owned(len).unwrap();
        let mut dirty = Dirty::default();
        dirty.write(0, &[1; 1000], SEGMENT, permit(1000));
        assert!(dirty.close_all(true, SEGMENT).is_empty());
        let sent = dirty.batch(BufferNo::MAX, 64);
        assert!(sent.segments.is_empty(), "all of it is inline");
        dirty.write(1000, &[2; 5000], SEGMENT, permit(5000));
        assert_eq!(dirty.close_all(false, SEGMENT), [0, 1]);
        let segment = segment(7, 1000);
        assert!(dirty.landed(0, vec![segment.clone()]).is_empty());
        assert_eq!(drop_all(&mut dirty, &sent.buffers), [segment]);
    }
}

/// What was committed before is where it was, whatever becomes of what is written once more.
#[test]
fn what_was_spilled_is_never_lost() {
    for crashes in [false, true] {
        let budget = Arc::new(Semaphore::new(1 << 30));
        let permit = |len| budget.clone().try_acquire_many_owned(len).unwrap();
        let mut dirty = Dirty { append: true, ..Dirty::default() };
        dirty.write(1000, &[1; 100], SEGMENT, permit(100));
        let spilled = dirty.spill(&[(0, vec![2; 1000].into())], SEGMENT, permit(1000));
        assert_eq!(dirty.close_but(spilled), [spilled]);
        let written = dirty.batch(BufferNo::MAX, 10).buffers;
        assert!(!written.contains(&spilled), "it flies");
        assert!(dirty.is_left(BufferNo::MAX) && !dirty.are_spilled(&written));
        dirty.forget(&written);
        assert!(!dirty.is_left(BufferNo::MAX) && dirty.is_flying(BufferNo::MAX));
        let is_lost = if crashes { dirty.crashed(spilled) } else { dirty.failed(spilled) };
        assert!(!is_lost && dirty.is_empty());
        assert_eq!(budget.available_permits(), 1 << 30);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn the_newest_write_wins_whatever_is_under_way(ops in prop::collection::vec(op(), 1..60)) {
        let budget = Arc::new(Semaphore::new(BUDGET));
        let mut world = World {
            dirty: Dirty::default(),
            budget: budget.clone(),
            flying: Vec::new(),
            stored: Vec::new(),
            committed: vec![0; SPAN + 400_000],
            model: vec![0; SPAN + 400_000],
            sent: None,
            settled: HashSet::new(),
        };
        for (i, op) in ops.into_iter().enumerate() {
            match op {
                Op::Write(off, len) => {
                    let data = vec![i as u8 + 1; len];
                    world.model[off as usize..off as usize + len].copy_from_slice(&data);
                    world.write(off, &data);
                }
                Op::Cut(size) => {
                    // Under the order of commits.
                    world.commit();
                    world.dirty.cut(size..u64::MAX);
                    world.model[size as usize..].fill(0);
                    world.committed[size as usize..].fill(0);
                }
                Op::Close(inline) => {
                    world.close_all(inline);
                }
                Op::Land => world.land(),
                Op::Relaunch => {
                    world.send();
                    let all = world.sent.take().unwrap_or_default().buffers;
                    world.relaunch(&all);
                }
                Op::Commit => world.commit(),
                Op::Send => world.send(),
                Op::Spill(off, len) => world.spill(off, len),
                Op::DropSpilled => {
                    world.commit();
                    let dropped = world.dirty.drop_spilled();
                    world.settle(&dropped);
                }
            }
            world.check();
        }
        world.close_all(false);
        world.land();
        while !world.dirty.is_empty() {
            world.commit();
            world.check();
        }
        prop_assert_eq!(budget.available_permits(), BUDGET, "all room is given back");
        prop_assert_eq!(world.settled.len(), world.stored.len(), "none is forgotten");
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
        let buffers = files.iter().flat_map(|file| file.buffers.values());
        let memory: usize = buffers.map(Buffer::capacity).sum();
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
                prop_assert_eq!(dirty.payload(no).unwrap().0.len() as u64, SEGMENT);
                full += 1;
            }
            off += len as u64;
        }
        prop_assert_eq!(full, 4 - start);
    }
}

/// Written again, the part that is there would be there twice.
#[test]
fn a_write_is_lost_only_as_a_whole() {
    let budget = Arc::new(Semaphore::new(1 << 20));
    for writes in [[1000, 1000], [2000, 0]] {
        let mut dirty = Dirty { append: true, ..Dirty::default() };
        let (mut at, mut buffers) = (0, Vec::new());
        for len in writes.into_iter().filter(|len| *len > 0) {
            let permit = budget.clone().try_acquire_many_owned(len).unwrap();
            dirty.write(at, &vec![1; len as usize], SEGMENT, permit);
            buffers.extend(dirty.close_all(false, SEGMENT));
            at += u64::from(len);
        }
        let fate = Fate::default();
        fate.take();
        dirty.follow(0..at, &fate);
        dirty.lose(&buffers[..1]);
        assert_eq!(fate.is_kept(), buffers.len() > 1, "{writes:?}");
    }
}
