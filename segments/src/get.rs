//! Reads verified bytes of a segment (I3), waiting for targets to come back while it can help.

use crate::coalesce;
use crate::gather::{Gather, Lost};
use crate::health::Use;
use crate::map::Target;
use crate::segment::Segment;
use crate::segments::Segments;
use crate::target::{Part, passes_with_time};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tracing::debug;
use weft_net::trace::Span;
use weft_net::{Buffer, DeviceMemory};
use weft_proto::layout::BLOCK;
use weft_proto::{ChunkId, Error, ErrorKind, Result};

const RETRY_INTERVAL: Duration = Duration::from_millis(500);

impl Segments {
    /// Bytes `[off, off+len)` of a segment, every one checked. `len` must lie in the segment.
    /// Errors: `NotFound` if chunks are gone, so that the segment was probably deleted; `NoTicket`
    /// if the metadata group is to be asked anew where the segment is; else `Io`.
    /// Targets that are away are waited for, but not where others have lost their chunks already,
    /// unless it `is_there`: the caller has looked, and it was not deleted.
    pub async fn get(
        self: &Arc<Self>,
        segment: &Segment,
        off: u64,
        len: u64,
        is_there: bool,
        deadline: Instant,
    ) -> Result<Bytes> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        if off.checked_add(len).is_none_or(|end| end > segment.geometry.length) {
            return Err(Error::new(
                ErrorKind::Io,
                format!(
                    "an extent names bytes {off}+{len} of segment {} which has {}; run fsck",
                    segment.id, segment.geometry.length
                ),
            ));
        }
        let start = off - off % u64::from(BLOCK);
        let end = (off + len).next_multiple_of(u64::from(BLOCK));
        let begun = Instant::now();
        loop {
            let map = self.map.current();
            let mut span = Span::part("get segment");
            span.note("weft.bytes", len);
            let buffer = Buffer::take((end - start) as usize);
            let gather = Gather::new(self, &map, segment, (start, end), buffer);
            let lost = match span.around(gather.run(deadline)).await {
                Ok(mut whole) => {
                    self.missing.over("enough shards answer again");
                    let within = (off - start) as usize;
                    whole.split_to(within);
                    return Ok(whole.split_to(len as usize).into());
                }
                Err(lost) => lost,
            };
            let next = Instant::now() + RETRY_INTERVAL;
            let is_deleted = lost.any_missing && !is_there;
            if is_deleted
                || lost.wants_ticket
                || !lost.may_come_back
                || next >= deadline
                || self.writer.has_ended()
            {
                return Err(self.give_up(segment, lost));
            }
            debug!(segment = %segment.id, why = lost.why, "too few shards answer; trying on");
            let what = || format!("too few shards of segment {} answer: {}", segment.id, lost.why);
            self.missing.waits(begun, what);
            if !self.map.newer(map.epoch, next).await {
                sleep(Duration::from_millis(self.rng.below(100) as u64)).await;
            }
        }
    }

    /// As [`Self::get`], of whole blocks, into the memory of a device from `at` on, by one attempt.
    /// Answers the bytes, too, and whether they are there: if not, any part of the memory may have
    /// been written. When this has returned, nobody writes to it any more.
    pub async fn get_into(
        self: &Arc<Self>,
        segment: &Segment,
        (off, len): (u64, u64),
        (memory, at): (&Arc<DeviceMemory>, usize),
        deadline: Instant,
    ) -> Result<(Bytes, bool)> {
        debug_assert!(off.is_multiple_of(BLOCK.into()) && len.is_multiple_of(BLOCK.into()));
        if off.checked_add(len).is_none_or(|end| end > segment.geometry.length) {
            let what = format!("bytes {off}+{len} of segment {}, which is shorter", segment.id);
            return Err(Error::new(ErrorKind::Io, what));
        }
        let map = self.map.current();
        let mut span = Span::part("get segment");
        span.note("weft.bytes", len);
        let place = memory.place(at, len as usize).await;
        let gather = Gather::new(self, &map, segment, (off, off + len), place.buffer());
        let read = span.around(gather.run(deadline)).await;
        place.settled().await;
        let whole = read.map_err(|lost| self.give_up(segment, lost))?;
        let is_there = whole.is_in_place();
        Ok((whole.into(), is_there))
    }

    fn give_up(&self, segment: &Segment, lost: Lost) -> Error {
        let kind = match lost {
            Lost { any_missing: true, .. } => ErrorKind::NotFound,
            Lost { wants_ticket: true, .. } => ErrorKind::NoTicket,
            _ => ErrorKind::Io,
        };
        let profile = segment.geometry.profile;
        let message = format!(
            "segment {} ({profile}) cannot be read: fewer than {} shards are good: {}",
            segment.id,
            profile.k(),
            lost.why
        );
        Error::new(kind, message)
    }

    /// Part of one chunk from its target into `into`, every block checked. `off` and the lengths
    /// are multiples of a block.
    pub(crate) async fn fetch(
        self: &Arc<Self>,
        segment: &Segment,
        shard: u8,
        off: u64,
        into: Vec<Buffer>,
        deadline: Instant,
    ) -> Result<Vec<Buffer>> {
        let map = self.map.current();
        let Some(target) = map.seat(segment.pg, segment.seats[usize::from(shard)]) else {
            // It may come with the next map, or have gone with the segment.
            let kind = match map.has_dropped(segment.pg) {
                true => ErrorKind::NotFound,
                false => ErrorKind::Unavailable,
            };
            return Err(Error::new(
                kind,
                format!(
                    "placement group {} of shard {shard} is not in the cluster map",
                    segment.pg
                ),
            ));
        };
        let chunk = segment.chunk(shard);
        // What has been made where the seat goes to counts already, when it is needed.
        let heir = map.heir(segment.pg, segment.seats[usize::from(shard)]).filter(|heir| heir.up);
        let lens = heir.map(|_| into.iter().map(|piece| piece.len()).collect::<Vec<_>>());
        let (first, second) = match heir {
            Some(heir) if !target.up => (heir, Some(target)),
            heir => (target, heir),
        };
        let mut answer = self.ask(first, chunk, off, into, deadline).await;
        if let (Err(error), Some(second), Some(lens)) = (&answer, second, lens)
            && (!target.up || !passes_with_time(error))
        {
            let into = lens.into_iter().map(Buffer::take).collect();
            let other = Box::pin(self.ask(second, chunk, off, into, deadline)).await;
            // That it is not where it goes to yet says nothing of the segment.
            if other.is_ok() || !target.up {
                answer = other;
            }
        }
        answer.map_err(|e| Error { message: format!("shard {shard} on {e}"), ..e })
    }

    /// As [`Self::fetch`], of this target.
    async fn ask(
        self: &Arc<Self>,
        target: &Target,
        chunk: ChunkId,
        off: u64,
        into: Vec<Buffer>,
        deadline: Instant,
    ) -> Result<Vec<Buffer>> {
        let len = into.iter().map(|p| p.len() as u64).sum();
        let begun = Instant::now();
        let until = self.request_deadline(deadline);
        let part = Part { chunk, off, into };
        let coalesce::Answer { read: answer, request_len } =
            coalesce::get(self.target(target), part, until).await;
        if answer.as_ref().is_err_and(|e| e.kind == ErrorKind::Corrupt) {
            self.report_corrupt(target, chunk, off, len);
            self.health.succeeded(target.id, Use::Read);
        } else {
            self.note(target.id, Use::Read, &answer);
        }
        let pieces = answer?;
        self.counters().fetched_bytes.fetch_add(len, Ordering::Relaxed);
        if let Some(len) = request_len {
            self.health.took(len, begun.elapsed());
        }
        Ok(pieces)
    }

    /// Asks a target that let a read wait for one block of what it was asked for, unless that is
    /// under way: until it has answered or failed, no read waits for it.
    pub(crate) fn probe(self: &Arc<Self>, segment: &Segment, shard: u8, off: u64) {
        let map = self.map.current();
        let seat = segment.seats.get(usize::from(shard));
        let Some(target) = seat.and_then(|&seat| map.seat(segment.pg, seat)) else { return };
        if !self.health.lags(target.id) {
            return;
        }
        let (store, segment, target) = (self.clone(), segment.clone(), target.id);
        debug!(%target, "lets a read wait; no other does before it has answered again");
        tokio::spawn(async move {
            let deadline = Instant::now() + store.timeouts.target;
            let into = vec![Buffer::take(BLOCK as usize)];
            let probe = store.fetch(&segment, shard, off, into, deadline).await;
            let error = probe.err().map(tracing::field::display);
            debug!(%target, error, "a slow target has answered");
            store.health.probed(target);
        });
    }
}
