//! Makes a segment durable: cut, encode, send every shard at once, and somewhere else if one fails;
//! as shorter segments if nowhere is room for chunks so long.
//!
//! Invariants: a segment is answered only after every shard was acknowledged durable, m parity
//! shards always among them (I1); an attempt that failed leaves its id behind for ever. Every
//! refusal for want of room is remembered, and so many attempts as there are targets end those of
//! one length.

use crate::health::Use;
use crate::map::Target;
use crate::place::{NoPlace, Place, choose};
use crate::segment::Segment;
use crate::segments::Segments;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};
use weft_erasure::{checksum_blocks, encode_segment};
use weft_net::AlignedBuf;
use weft_net::trace::{Span, carried};
use weft_proto::layout::BLOCK;
use weft_proto::planted::{self, Bug};
use weft_proto::{ChunkId, Error, ErrorKind, Geometry, Layout, Result, TargetId};

/// How long to wait for the map to change before looking at the targets again.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Data is cut no shorter to find room, in bytes. A target that has as much free at all has it for
/// a chunk of that length: it takes sixteen holes of a block each.
const SHORTEST: usize = 32 << 10;
static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// The chunks of a segment: payload in slices of the segment's own buffer, and checksums.
struct Encoded {
    geometry: Geometry,
    chunks: Vec<Chunk>,
}

#[derive(Clone, Default)]
struct Chunk {
    slices: Vec<Bytes>,
    checksums: Vec<u32>,
}

impl Segments {
    /// Writes `data` as new segments of the current session, which follow each other: one, or, if
    /// no targets have room for its chunks, shorter ones. Errors: `NoSpace`; `Io` when at the
    /// deadline too few targets live or answer.
    pub async fn put(
        self: &Arc<Self>,
        layout: &Layout,
        data: &Bytes,
        deadline: Instant,
    ) -> Result<Vec<Segment>> {
        let (mut segments, mut at, mut longest) = (Vec::new(), 0, data.len());
        while at < data.len() {
            let part = data.slice(at..data.len().min(at + longest));
            let mut span = Span::part("put segment");
            span.note("weft.bytes", part.len() as u64);
            match span.around(self.put_one(layout, &part, deadline)).await {
                Ok(segment) => {
                    at += part.len();
                    segments.push(segment);
                }
                Err(e) if e.kind == ErrorKind::NoSpace && part.len() > SHORTEST => {
                    longest = shorter(layout, part.len());
                    debug!(bytes = part.len(), longest, "no room; trying shorter segments");
                }
                Err(error) => {
                    segments.into_iter().for_each(|segment| self.discard(segment));
                    return Err(error);
                }
            }
        }
        Ok(segments)
    }

    /// Writes `data` as one new segment.
    async fn put_one(
        self: &Arc<Self>,
        layout: &Layout,
        data: &Bytes,
        deadline: Instant,
    ) -> Result<Segment> {
        let begun = Instant::now();
        let mut encoded: Option<Encoded> = None;
        let mut last = None;
        let mut refusals = 0;
        for turn in 0.. {
            let map = self.map.current();
            let wait = match choose(&map, &self.health, layout, data.len() as u64, &self.rng) {
                Ok(place) => {
                    if encoded.as_ref().is_none_or(|e| e.geometry != place.geometry) {
                        encoded = Some(encode(place.geometry, data)?);
                    }
                    let chunks = encoded.as_ref().map(|e| e.chunks.clone()).unwrap_or_default();
                    match self.send(place, chunks, deadline).await {
                        Ok(segment) => {
                            self.outage.over("data is taken again");
                            return Ok(segment);
                        }
                        Err(error) => {
                            self.counters().rewritten.fetch_add(1, Ordering::Relaxed);
                            info!(%error, bytes = data.len(), "segment goes to other targets");
                            let is_full = error.kind == ErrorKind::NoSpace;
                            last = Some(error);
                            if !is_full {
                                self.rng.backoff(turn)
                            } else if refusals < map.targets().count() {
                                refusals += 1;
                                Duration::ZERO
                            } else {
                                return Err(full(last));
                            }
                        }
                    }
                }
                Err(NoPlace::Full) => return Err(full(last)),
                Err(NoPlace::TooFew) => {
                    last.get_or_insert_with(|| too_few(layout));
                    self.map.newer(map.epoch, deadline.min(Instant::now() + RETRY_INTERVAL)).await;
                    Duration::ZERO
                }
            };
            if Instant::now() + wait >= deadline || self.writer.has_ended() {
                break;
            }
            self.outage.waits(begun, || {
                let why = last.as_ref().map(Error::to_string).unwrap_or_default();
                format!("{} bytes cannot be made durable on any targets: {why}", data.len())
            });
            sleep(wait).await;
        }
        let why = last.map_or_else(String::new, |e| format!(": {e}"));
        Err(Error::new(
            ErrorKind::Io,
            format!("{} bytes could not be made durable on any targets in time{why}", data.len()),
        ))
    }

    /// One attempt. What was stored of one that failed is deleted behind the caller's back.
    async fn send(
        self: &Arc<Self>,
        place: Place,
        chunks: Vec<Chunk>,
        deadline: Instant,
    ) -> Result<Segment> {
        let id = self.writer.next_segment();
        let segment =
            Segment { id, geometry: place.geometry, pg: place.pg, seats: place.seats.clone() };
        let (mut shards, k) = (JoinSet::new(), segment.geometry.profile.k());
        let at = |(shard, target): (u8, &Target)| (target.id, segment.chunk(shard));
        let mut written: Vec<_> = (0..).zip(&place.targets).map(at).collect();
        for ((shard, chunk), target) in (0u8..).zip(chunks).zip(place.targets) {
            if chunk.checksums.is_empty() {
                continue;
            }
            let store = self.clone();
            let id = segment.chunk(shard);
            let length: u64 = chunk.slices.iter().map(|slice| slice.len() as u64).sum();
            shards.spawn(carried(async move {
                let until = store.request_deadline(deadline);
                let client = store.target(&target);
                let sent = client.put(id, chunk.checksums, chunk.slices, until).await;
                store.note(target.id, Use::Put, &sent);
                if let Err(refusal) = &sent
                    && refusal.kind == ErrorKind::NoSpace
                {
                    store.health.filled(target.id, room(refusal, length));
                }
                let sent = sent.map_err(|e| Error { message: format!("put on {e}"), ..e });
                ((target.id, id), sent)
            }));
        }
        while let Some(shard) = shards.join_next().await {
            let failed = match shard {
                Ok((_, Ok(()))) => continue,
                Ok(((_, chunk), Err(_))) if planted::is(Bug::ParitySkipped) && chunk.shard >= k => {
                    continue;
                }
                Ok((at, Err(error))) => {
                    keep_what_exists(&mut written, at, &error);
                    error
                }
                Err(panic) => Error::new(ErrorKind::Internal, format!("put: {panic}")),
            };
            let store = self.clone();
            tokio::spawn(async move {
                while let Some(shard) = shards.join_next().await {
                    if let Ok((at, Err(error))) = shard {
                        keep_what_exists(&mut written, at, &error);
                    }
                }
                store.leftovers.discard_doubtful(written);
            });
            return Err(failed);
        }
        debug!(segment = %id, bytes = place.geometry.length, profile =
            %place.geometry.profile, "durable");
        Ok(segment)
    }
}

/// A chunk that is there with other content is not of this attempt, and must not be deleted with
/// it.
fn keep_what_exists(
    written: &mut Vec<(TargetId, ChunkId)>,
    at: (TargetId, ChunkId),
    refusal: &Error,
) {
    if refusal.kind == ErrorKind::Exists {
        warn!(target = %at.0, chunk = %at.1, "{refusal}; is this the cluster that was mounted?");
        written.retain(|chunk| *chunk != at);
    }
}

/// The longest chunk that a target has room for which refused one of `length` bytes.
fn room(refusal: &Error, length: u64) -> u64 {
    let shorter = length.saturating_sub(BLOCK.into());
    refusal.hint.parse().map_or(shorter, |told: u64| told.min(shorter))
}

/// How long a segment to try when there is no room for one of `len` bytes: half as long, in whole
/// stripes if there are more than one.
fn shorter(layout: &Layout, len: usize) -> usize {
    let stripe = usize::from(layout.profile.k()) * layout.unit as usize;
    let step = if len > stripe { stripe } else { BLOCK as usize };
    (len / 2).next_multiple_of(step).max(SHORTEST)
}

fn full(last: Option<Error>) -> Error {
    let why = last.map_or_else(String::new, |e| format!(": {e}"));
    let what = format!("no placement group has enough targets with room{why}");
    Error::new(ErrorKind::NoSpace, what)
}

fn too_few(layout: &Layout) -> Error {
    let need = layout.profile.m() + 1;
    Error::new(
        ErrorKind::Io,
        format!(
            "fewer than {need} targets of any placement group live; {} needs them",
            layout.profile
        ),
    )
}

/// Cuts and encodes. Data shards are slices of `data`; parity is made here.
fn encode(geometry: Geometry, data: &Bytes) -> Result<Encoded> {
    let (k, m) = (geometry.profile.k(), geometry.profile.m());
    let mut slices: Vec<Vec<Bytes>> = vec![Vec::new(); usize::from(geometry.profile.width())];
    if k == 1 {
        // Copies: no parity to compute.
        for copy in &mut slices {
            copy.push(data.clone());
        }
    } else {
        for run in geometry.locate(0, geometry.length) {
            let from = run.segment_off as usize;
            slices[usize::from(run.shard)].push(data.slice(from..from + run.len as usize));
        }
        for (to, parity) in slices[usize::from(k)..].iter_mut().zip(parity(&geometry, m, data)?) {
            to.push(parity);
        }
    }
    let mut chunks: Vec<Chunk> = Vec::with_capacity(slices.len());
    for (shard, mut slices) in (0u8..).zip(slices) {
        let checksums = if k == 1 && shard > 0 {
            chunks[0].checksums.clone()
        } else {
            checksum_blocks(slices.iter().map(Bytes::as_ref))
        };
        let have: usize = slices.iter().map(Bytes::len).sum();
        let pad = geometry.shard_len(shard) as usize - have;
        if pad > 0 {
            slices.push(Bytes::from_static(&ZEROS[..pad]));
        }
        chunks.push(Chunk { slices, checksums });
    }
    Ok(Encoded { geometry, chunks })
}

fn parity(geometry: &Geometry, m: u8, data: &[u8]) -> Result<Vec<Bytes>> {
    let len = geometry.shard_len(geometry.profile.k()) as usize;
    let mut parity: Vec<AlignedBuf> = (0..m).map(|_| AlignedBuf::take(len)).collect();
    let mut slices: Vec<&mut [u8]> = parity.iter_mut().map(AlignedBuf::as_mut_slice).collect();
    encode_segment(geometry, data, &mut slices)?;
    Ok(parity.into_iter().map(Bytes::from).collect())
}

#[cfg(test)]
mod tests;
