//! Closes buffers, and puts commits together.

use super::buffer::{Body, Buffer, BufferNo, Stage, append};
use super::dirty::{Dirty, Place};
use super::piece::{Batch, Piece, PieceSource};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use weft_proto::SegmentId;

/// Buffers shorter than this are put together before they are sent.
const MAX_SMALL: usize = 256 << 10;

impl Dirty {
    /// Closes all that is open, to be committed: as inline data, if nothing is on its way, or in
    /// segments, small buffers put together. Answers what is to be launched.
    pub fn close_all(&mut self, inline: bool, segment_len: u64) -> Vec<BufferNo> {
        if inline && self.is_pending() {
            self.buffers.values_mut().for_each(|b| b.close(Stage::Inline));
            return Vec::new();
        }
        self.compact(segment_len);
        let waiting: Vec<BufferNo> =
            self.buffers.iter().filter(|(_, b)| b.is_pending()).map(|(no, _)| *no).collect();
        waiting.into_iter().filter(|no| self.start(*no)).collect()
    }

    /// [`Self::close_all`], inline but for one buffer, which is to be launched.
    pub fn close_but(&mut self, spilled: BufferNo) -> Vec<BufferNo> {
        for (no, buffer) in &mut self.buffers {
            if *no != spilled {
                buffer.close(Stage::Inline);
            }
        }
        Vec::from_iter(self.start(spilled).then_some(spilled))
    }

    /// What was spilled and is not on its way, to be launched.
    pub fn start_spilled(&mut self) -> Vec<BufferNo> {
        let waits = |(_, b): &(&BufferNo, &Buffer)| b.spilled && b.is_pending();
        let waiting = Vec::from_iter(self.buffers.iter().filter(waits).map(|(no, _)| *no));
        waiting.into_iter().filter(|no| self.start(*no)).collect()
    }

    /// Puts small open buffers together, in the order of the file.
    fn compact(&mut self, segment_len: u64) {
        let is_small = |b: &&Buffer| b.stage == Stage::Open && b.len() < MAX_SMALL;
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
                let permits = Arc::into_inner(old.permits);
                permits.into_iter().flatten().for_each(|permit| new.hold(permit));
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
}
