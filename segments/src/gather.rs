//! One attempt to read a range of a segment: the data shards that hold it, and, for any of them
//! that errs, mismatches, is down or is slow, reconstruction from others. Failure handling and tail
//! latency are the same code.
//!
//! Invariants: a byte is answered only from blocks that matched their checksums, or decoded from
//! such blocks; a shard's answer lands at its final place in the one result buffer, so that nothing
//! is copied unless shards were rebuilt.

use crate::coalesce;
use crate::map::Map;
use crate::segment::Segment;
use crate::segments::Segments;
use crate::target::passes_with_time;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use tokio::time::{Instant, sleep};
use weft_erasure::Codec;
use weft_net::Buffer;
use weft_net::trace::Failure;
use weft_proto::layout::BLOCK;
use weft_proto::planted::{self, Bug};
use weft_proto::{Error, ErrorKind, Result};

/// Why the range could not be had.
pub(super) struct Lost {
    pub why: String,
    /// Shards that are merely away could make it good.
    pub may_come_back: bool,
    /// A target answered that it has no such chunk.
    pub any_missing: bool,
    /// A target wants to be shown a ticket that is not at hand.
    pub wants_ticket: bool,
}

impl Failure for Lost {
    fn name(&self) -> Option<String> {
        // Where the segment is by now, or that it was deleted, is found out then.
        let goes_on = self.wants_ticket || self.any_missing;
        (!goes_on).then(|| "too few shards".into())
    }
}

/// Bytes of one chunk from `off` on, in pieces of which none crosses a stripe unit.
struct Span {
    off: u64,
    pieces: Vec<Buffer>,
}

impl Span {
    fn len(&self) -> u64 {
        self.pieces.iter().map(|p| p.len() as u64).sum()
    }

    /// The part of `range` that the span has, if it lies in one piece; empty past the end.
    fn slice(&self, range: Range<u64>) -> &[u8] {
        let mut at = self.off;
        for piece in &self.pieces {
            let end = at + piece.len() as u64;
            if (at..end).contains(&range.start) {
                let from = (range.start - at) as usize;
                return &piece[from..(range.end.min(end) - at) as usize];
            }
            at = end;
        }
        &[]
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Not asked; its target is not to be trusted.
    Idle,
    Asked,
    /// Asked, and slow.
    Late,
    Good,
    Failed,
}

/// A run of one chunk that is asked for: wanted by the caller, or (an extra) to rebuild others.
struct Part {
    shard: u8,
    range: Range<u64>,
    state: State,
    span: Span,
    /// Lengths of the pieces, and for wanted runs their positions in the result.
    pieces: Vec<(usize, usize)>,
}

impl Part {
    fn is_pending(&self) -> bool {
        self.state == State::Asked
    }
}

/// Requests under way. They are few, and so all of them are looked at when one may have ended: a
/// `FuturesUnordered` has its task look twice, and much is read by one task ([`crate::coalesce`]).
struct InFlight<F>(Vec<Pin<Box<F>>>);

impl<F: Future> InFlight<F> {
    fn push(&mut self, request: F) {
        self.0.push(Box::pin(request));
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The outcome of the next that ends; `None` if there is none.
    async fn next(&mut self) -> Option<F::Output> {
        poll_fn(|cx| {
            for at in 0..self.0.len() {
                if let Poll::Ready(outcome) = self.0[at].as_mut().poll(cx) {
                    drop(self.0.swap_remove(at));
                    return Poll::Ready(Some(outcome));
                }
            }
            if self.0.is_empty() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}

pub(super) struct Gather<'a> {
    store: &'a Arc<Segments>,
    map: &'a Map,
    segment: &'a Segment,
    wanted: Vec<Part>,
    extra: Vec<Part>,
    /// What must be had of k shards to rebuild what is missing; fixed when rebuilding begins.
    hull: Option<Range<u64>>,
    errors: Vec<(u8, Error)>,
}

impl<'a> Gather<'a> {
    /// `start` and `end` are multiples of a block and touch the segment, and the buffer is as long.
    pub fn new(
        store: &'a Arc<Segments>,
        map: &'a Map,
        segment: &'a Segment,
        (start, end): (u64, u64),
        mut buffer: Buffer,
    ) -> Self {
        let geometry = &segment.geometry;
        let copies = geometry.profile.k() == 1;
        let mut gather = Self {
            store,
            map,
            segment,
            wanted: Vec::new(),
            extra: Vec::new(),
            hull: None,
            errors: Vec::new(),
        };
        let copy = if copies { gather.pick_copy() } else { 0 };
        for (position, run) in geometry.locate(start, end - start).enumerate() {
            let shard = if copies { copy } else { run.shard };
            let len = run.len.next_multiple_of(u64::from(BLOCK));
            let piece = buffer.split_to(len as usize);
            match gather.wanted.iter_mut().find(|p| p.shard == shard) {
                Some(part) => {
                    part.range.end += len;
                    part.pieces.push((position, piece.len()));
                    part.span.pieces.push(piece);
                }
                None => gather.wanted.push(Part {
                    shard,
                    range: run.chunk_off..run.chunk_off + len,
                    state: State::Idle,
                    pieces: vec![(position, piece.len())],
                    span: Span { off: run.chunk_off, pieces: vec![piece] },
                }),
            }
        }
        gather
    }

    /// A whole chunk of the segment, parity too; of the others alone, if what is under its own name
    /// is something else.
    pub fn of_shard(
        store: &'a Arc<Segments>,
        map: &'a Map,
        segment: &'a Segment,
        shard: u8,
        of_others: bool,
    ) -> Self {
        let len = segment.geometry.shard_len(shard);
        let piece = Buffer::take(len as usize);
        let wanted = Part {
            shard,
            range: 0..len,
            state: if of_others { State::Failed } else { State::Idle },
            pieces: vec![(0, len as usize)],
            span: Span { off: 0, pieces: vec![piece] },
        };
        let (extra, hull, errors) = (Vec::new(), None, Vec::new());
        Self { store, map, segment, wanted: vec![wanted], extra, hull, errors }
    }

    /// Any copy serves: one on a target that is trusted, else any.
    fn pick_copy(&self) -> u8 {
        let width = self.segment.geometry.profile.width();
        let good: Vec<u8> = (0..width).filter(|&s| self.is_trusted(s)).collect();
        let n = if good.is_empty() { usize::from(width) } else { good.len() };
        let pick = self.store.rng.below(n);
        good.get(pick).copied().unwrap_or(pick as u8)
    }

    fn is_trusted(&self, shard: u8) -> bool {
        let seat = self.segment.seats.get(usize::from(shard));
        seat.and_then(|&seat| self.map.seat(self.segment.pg, seat))
            .is_some_and(|t| t.up && self.store.health.is_prompt(t.id))
    }

    /// The whole range, in one buffer.
    pub async fn run(mut self, deadline: Instant) -> Result<Buffer, Lost> {
        let (store, segment) = (self.store, self.segment);
        let ask = |shard: u8, off: u64, into: Vec<Buffer>, extra: bool| async move {
            (shard, extra, store.fetch(segment, shard, off, into, deadline).await)
        };
        let mut asked = InFlight(Vec::new());
        let mut most = 0;
        for i in 0..self.wanted.len() {
            let is_idle = self.wanted[i].state == State::Idle;
            if is_idle && self.is_trusted(self.wanted[i].shard) {
                let part = &mut self.wanted[i];
                part.state = State::Asked;
                most = most.max(part.range.end - part.range.start);
                asked.push(ask(
                    part.shard,
                    part.range.start,
                    std::mem::take(&mut part.span.pieces),
                    false,
                ));
            }
        }
        let mut rebuilds = self.wanted.iter().any(|p| p.state != State::Asked);
        let most = coalesce::request_len(most);
        let slow_after = store.health.slow_after(most, store.timeouts.hedge_floor);
        let mut slow = std::pin::pin!(sleep(slow_after));
        loop {
            if self.wanted.iter().all(|p| p.state == State::Good) {
                break;
            }
            if rebuilds {
                for (shard, range) in self.recruit() {
                    let into = vec![Buffer::take((range.end - range.start) as usize)];
                    asked.push(ask(shard, range.start, into, true));
                }
                if self.rebuild().map_err(|e| self.lost(Some(e)))? {
                    break;
                }
            }
            if asked.is_empty() {
                return Err(self.lost(None));
            }
            tokio::select! {
                biased;
                Some((shard, extra, answer)) = asked.next() => {
                    rebuilds |= answer.is_err();
                    self.settle(shard, extra, answer);
                }
                () = &mut slow => {
                    rebuilds = true;
                    self.mark_late();
                    slow.as_mut().reset(Instant::now() + slow_after);
                }
            }
        }
        self.report_missing();
        Ok(self.assemble())
    }

    /// The segment is there, so its chunks should be.
    fn report_missing(&self) {
        for (shard, _) in self.errors.iter().filter(|(_, e)| e.kind == ErrorKind::NotFound) {
            let seat = self.segment.seats[usize::from(*shard)];
            if let Some(target) = self.map.seat(self.segment.pg, seat) {
                self.store.report_missing(target, self.segment.chunk(*shard));
            }
        }
    }

    fn settle(&mut self, shard: u8, extra: bool, answer: Result<Vec<Buffer>>) {
        let parts = if extra { &mut self.extra } else { &mut self.wanted };
        let Some(part) = parts.iter_mut().find(|p| p.shard == shard) else { return };
        match answer {
            Ok(pieces) => {
                part.state = State::Good;
                part.span.pieces = pieces;
            }
            Err(error) => {
                part.state = State::Failed;
                self.errors.push((shard, error));
            }
        }
    }

    /// What has not answered by now is slow. Others need not find that out again: no read waits for
    /// those targets until a probe of each has come back.
    fn mark_late(&mut self) {
        for part in self.wanted.iter_mut().chain(&mut self.extra).filter(|p| p.is_pending()) {
            part.state = State::Late;
            self.store.probe(self.segment, part.shard, part.range.start);
        }
    }

    /// What shard `shard` holds of the hull.
    fn share(&self, shard: u8, hull: &Range<u64>) -> Range<u64> {
        let end = hull.end.min(self.segment.geometry.shard_len(shard));
        hull.start.min(end)..end
    }

    /// Whether shard `shard` is, or may soon be, good for its share of the hull.
    fn serves(&self, shard: u8, hull: &Range<u64>, good_only: bool) -> bool {
        let share = self.share(shard, hull);
        share.is_empty()
            || self.wanted.iter().chain(&self.extra).any(|p| {
                p.shard == shard
                    && p.range.start <= share.start
                    && share.end <= p.range.end
                    && (p.state == State::Good
                        || ((!good_only || planted::is(Bug::PendingShardDecoded))
                            && p.is_pending()))
            })
    }

    /// Shards to ask besides, so that k may serve; trusted ones first.
    fn recruit(&mut self) -> Vec<(u8, Range<u64>)> {
        let missing = self.wanted.iter().filter(|p| p.state != State::Good);
        let range =
            missing.map(|p| p.range.clone()).reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        let Some(hull) = self.hull.clone().or(range) else { return Vec::new() };
        self.hull = Some(hull.clone());
        let profile = self.segment.geometry.profile;
        let (k, width) = (usize::from(profile.k()), profile.width());
        let serving = (0..width).filter(|&s| self.serves(s, &hull, false)).count();
        let mut free: Vec<u8> = (0..width).filter(|&s| self.is_free(s, &hull)).collect();
        free.sort_by_key(|&s| !self.is_trusted(s));
        let mut recruits = Vec::new();
        for shard in free.into_iter().take(k.saturating_sub(serving)) {
            let range = self.share(shard, &hull);
            recruits.push((shard, range.clone()));
            let pieces = vec![(0, (range.end - range.start) as usize)];
            let span = Span { off: range.start, pieces: Vec::new() };
            self.extra.push(Part { shard, range, state: State::Asked, span, pieces });
        }
        recruits
    }

    /// Whether the shard could be asked for its share: it does not serve, and neither failed nor is
    /// slow. It may be asked for something else.
    fn is_free(&self, shard: u8, hull: &Range<u64>) -> bool {
        let bad = |p: &Part| p.shard == shard && matches!(p.state, State::Late | State::Failed);
        !self.serves(shard, hull, false) && !self.wanted.iter().chain(&self.extra).any(bad)
    }

    /// Rebuilds what is missing if k shards are good. Answers whether it did.
    fn rebuild(&mut self) -> Result<bool> {
        let Some(hull) = self.hull.clone() else { return Ok(false) };
        let profile = self.segment.geometry.profile;
        let good: Vec<u8> = (0..profile.width()).filter(|&s| self.serves(s, &hull, true)).collect();
        if good.len() < usize::from(profile.k()) {
            return Ok(false);
        }
        for i in 0..self.wanted.len() {
            if self.wanted[i].state == State::Good {
                continue;
            }
            let mut span =
                std::mem::replace(&mut self.wanted[i].span, Span { off: 0, pieces: Vec::new() });
            if span.pieces.is_empty() {
                span.pieces =
                    self.wanted[i].pieces.iter().map(|&(_, len)| Buffer::take(len)).collect();
            }
            let mut at = span.off;
            for piece in &mut span.pieces {
                let range = at..at + piece.len() as u64;
                at = range.end;
                self.rebuild_piece(self.wanted[i].shard, &good, range, piece)?;
            }
            debug_assert_eq!(span.len(), self.wanted[i].range.end - self.wanted[i].range.start);
            self.wanted[i].span = span;
            self.wanted[i].state = State::Good;
        }
        self.store.counters().rebuilt.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    fn rebuild_piece(
        &self,
        shard: u8,
        good: &[u8],
        range: Range<u64>,
        into: &mut [u8],
    ) -> Result<()> {
        if good.contains(&shard) {
            // Its own target came to be asked after all.
            into.copy_from_slice(self.bytes(shard, range));
            return Ok(());
        }
        let present: Vec<(u8, &[u8])> =
            good.iter().map(|&s| (s, self.bytes(s, range.clone()))).collect();
        Codec::get(self.segment.geometry.profile).reconstruct(&present, &mut [(shard, into)])
    }

    /// What is good of `range` of a chunk; shorter where the chunk is.
    fn bytes(&self, shard: u8, range: Range<u64>) -> &[u8] {
        let parts = self.wanted.iter().chain(&self.extra);
        let share = self.share(shard, &range);
        parts
            .filter(|p| p.shard == shard && p.state == State::Good)
            .map(|p| p.span.slice(share.clone()))
            .max_by_key(|bytes| bytes.len())
            .unwrap_or_default()
    }

    fn assemble(self) -> Buffer {
        let mut pieces: Vec<(usize, Buffer)> = Vec::new();
        for part in self.wanted {
            pieces.extend(
                part.pieces.into_iter().map(|(position, _)| position).zip(part.span.pieces),
            );
        }
        pieces.sort_unstable_by_key(|(position, _)| *position);
        // Without a copy, unless some were rebuilt.
        Buffer::join(pieces.into_iter().map(|(_, piece)| piece))
    }

    fn has(&self, kind: ErrorKind) -> bool {
        self.errors.iter().any(|(_, error)| error.kind == kind)
    }

    fn lost(&self, defect: Option<Error>) -> Lost {
        let profile = self.segment.geometry.profile;
        let mut gone: Vec<u8> =
            self.errors.iter().filter(|(_, e)| !passes_with_time(e)).map(|(s, _)| *s).collect();
        gone.sort_unstable();
        gone.dedup();
        let mut why: Vec<String> = self.errors.iter().map(|(_, e)| e.to_string()).collect();
        why.extend(defect.as_ref().map(Error::to_string));
        Lost {
            why: why.join("; "),
            may_come_back: defect.is_none() && gone.len() <= usize::from(profile.m()),
            any_missing: self.has(ErrorKind::NotFound),
            wants_ticket: self.has(ErrorKind::NoTicket),
        }
    }
}
