//! The committed content of a file as far as this client knows it.
//!
//! Invariant: everything here is of one `data_version`; what would mix versions is thrown away and
//! asked for again.

use super::piece::{Piece, PieceSource};
use crate::copies::note_copied;
use crate::ranges::{Part, RangeMap};
use bytes::Bytes;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use weft_proto::{Error, ErrorKind, Result, SegmentId, v1};
use weft_segments::Segment;

/// Where committed bytes are.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Segment {
        segment: Arc<Segment>,
        off: u64,
    },
    Inline(Bytes),
    /// They are lost: a check has found so.
    Lost,
}

impl Part for Source {
    fn advanced(&self, by: u64) -> Self {
        match self {
            Self::Segment { segment, off } => {
                Self::Segment { segment: segment.clone(), off: off + by }
            }
            Self::Inline(bytes) => Self::Inline(bytes.slice((by as usize).min(bytes.len())..)),
            Self::Lost => Self::Lost,
        }
    }
}

/// Where the bytes of a range are; `None` is a hole.
pub(crate) type Plan = Vec<(Range<u64>, Option<Source>)>;

#[derive(Default, Debug)]
pub(crate) struct Extents {
    version: u64,
    map: RangeMap<Source>,
    /// Where `map` has inline bytes.
    inline: RangeMap<()>,
    known: RangeMap<()>,
}

impl Extents {
    /// The version of the file that this is the content of.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Knows nothing any more.
    pub fn forget(&mut self) {
        self.map.clear();
        self.inline.clear();
        self.known.clear();
    }

    fn put(&mut self, range: Range<u64>, source: Source) {
        match source {
            Source::Inline(_) => self.inline.insert(range.clone(), ()),
            _ => self.inline.remove(range.clone()),
        };
        self.map.insert(range, source);
    }

    fn take_out(&mut self, range: Range<u64>) {
        self.map.remove(range.clone());
        self.inline.remove(range);
    }

    /// The inline bytes that are known, in order.
    pub fn inline(&self) -> impl Iterator<Item = (Range<u64>, Bytes)> + '_ {
        let parts = self.inline.iter().flat_map(|(range, ())| self.map.overlapping(range));
        parts.filter_map(|(range, source)| match source {
            Source::Inline(bytes) => {
                let len = (range.end - range.start) as usize;
                Some((range, bytes.slice(..len.min(bytes.len()))))
            }
            _ => None,
        })
    }

    /// How many bytes of `range` are known to be inline.
    pub fn inline_within(&self, range: Range<u64>) -> u64 {
        self.inline.overlapping(range).map(|(part, ())| part.end - part.start).sum()
    }

    /// The file has this version now: what is known of another is worth nothing.
    pub fn move_to(&mut self, version: u64) {
        if version != self.version {
            self.forget();
            self.version = version;
        }
    }

    /// A change of this client led to `version`. Answers whether what is known here is that of
    /// before, and has that version now; what others changed in between is not known.
    fn follows(&mut self, version: u64) -> bool {
        let alone = version == self.version + 1;
        if alone {
            self.version = version;
        } else if version > self.version {
            self.move_to(version);
        }
        alone
    }

    /// Takes what a server answered about `[off, off+len)`. An answer about an older version than
    /// the one that is known is ignored. Answers the end of what it told.
    pub fn learn(&mut self, off: u64, len: u64, reply: v1::ExtentsReply) -> Result<u64> {
        let bad = |what: String| Error::new(ErrorKind::Protocol, what);
        let version = reply.attr.as_ref().map_or(0, |a| a.data_version);
        let mut segments: HashMap<SegmentId, Arc<Segment>> = HashMap::new();
        for info in reply.segments {
            let segment = Segment::try_from(info)?;
            segments.insert(segment.id, Arc::new(segment));
        }
        let mut parts = Vec::with_capacity(reply.extents.len());
        for extent in reply.extents {
            let range = extent.file_off..extent.file_off.saturating_add(extent.len);
            let source = match extent.source {
                Some(v1::extent::Source::Inline(bytes)) if bytes.len() as u64 == extent.len => {
                    Source::Inline(bytes)
                }
                Some(v1::extent::Source::Segment(part)) => {
                    let id: SegmentId = part.id.map(Into::into).unwrap_or_default();
                    let segment = segments.get(&id).cloned().ok_or_else(|| {
                        bad(format!(
                            "extent at {} names segment {id}, which is not told",
                            extent.file_off
                        ))
                    })?;
                    Source::Segment { segment, off: part.off }
                }
                None => Source::Lost,
                Some(_) => {
                    return Err(bad(format!("extent at {} has no proper source", extent.file_off)));
                }
            };
            parts.push((range, source));
        }
        let last = parts.last().map_or(off, |(range, _)| range.end);
        let end = if reply.truncated { last } else { off.saturating_add(len) };
        if end <= off && len > 0 {
            return Err(bad(format!("extents from {off} on were asked for and none answered")));
        }
        if version >= self.version {
            self.move_to(version);
            for (range, source) in parts {
                self.put(range, source);
            }
            self.known.insert(off..end, ());
        }
        Ok(end)
    }

    /// Takes a commit of this client, which led to `version`, over. An answer that a newer one has
    /// overtaken teaches nothing.
    pub fn commit(&mut self, version: u64, pieces: &[Piece]) {
        if version <= self.version {
            return;
        }
        self.follows(version);
        for Piece { range, source } in pieces {
            let source = match source {
                PieceSource::Segment { segment, at } => {
                    Source::Segment { segment: Arc::new(segment.clone()), off: *at }
                }
                // The buffer that it lies in goes back to who lends such memory.
                PieceSource::Inline(bytes) => {
                    note_copied(bytes.len());
                    Source::Inline(Bytes::copy_from_slice(bytes))
                }
            };
            self.put(range.clone(), source);
            self.known.insert(range.clone(), ());
        }
    }

    /// Takes over that this client cut or extended the file to `size`, which led to `version`.
    pub fn resize(&mut self, version: u64, size: u64) {
        if !self.follows(version) {
            return;
        }
        self.take_out(size..u64::MAX);
        self.known.insert(size..u64::MAX, ());
    }

    /// Takes over that this client made a hole of `range`, which led to `version`.
    pub fn punch(&mut self, version: u64, range: Range<u64>) {
        if !self.follows(version) {
            return;
        }
        self.take_out(range.clone());
        self.known.insert(range, ());
    }

    /// Takes over that this client made the leader change what is in `range`, which led to
    /// `version`.
    pub fn lose(&mut self, version: u64, range: Range<u64>) {
        if !self.follows(version) {
            return;
        }
        self.take_out(range.clone());
        self.known.remove(range);
    }

    /// How far what is at the start of `range` goes on at least, and whether it is data; or the
    /// first part of `range` that is not known, if it begins there.
    pub fn run(&self, range: Range<u64>) -> Result<(u64, bool), Range<u64>> {
        let known = match self.known.overlapping(range.clone()).next() {
            Some((known, ())) if known.start == range.start => known,
            Some((known, ())) => return Err(range.start..known.start),
            None => return Err(range),
        };
        Ok(match self.map.overlapping(known.clone()).next() {
            Some((data, _)) if data.start == range.start => (data.end, true),
            Some((data, _)) => (data.start, false),
            None => (known.end, false),
        })
    }

    /// What is in `range`, `None` for holes; or the first part of it that is not known.
    pub fn look(&self, range: Range<u64>) -> Result<Plan, Range<u64>> {
        match self.known.cover(range.clone()).into_iter().find(|(_, known)| known.is_none()) {
            Some((gap, _)) => Err(gap),
            None => Ok(self.map.cover(range)),
        }
    }
}

#[cfg(test)]
mod tests;
