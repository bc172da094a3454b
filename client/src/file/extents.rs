//! The committed content of a file as far as this client knows it.
//!
//! Invariant: everything here is of one `data_version`; what would mix versions is thrown away and
//! asked for again.

use super::piece::{Piece, PieceSource};
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
        self.known.clear();
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
                self.map.insert(range, source);
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
                PieceSource::Inline(bytes) => Source::Inline(bytes.clone()),
            };
            self.map.insert(range.clone(), source);
            self.known.insert(range.clone(), ());
        }
    }

    /// Takes over that this client cut or extended the file to `size`, which led to `version`.
    pub fn resize(&mut self, version: u64, size: u64) {
        if !self.follows(version) {
            return;
        }
        self.map.remove(size..u64::MAX);
        self.known.insert(size..u64::MAX, ());
    }

    /// Takes over that this client made a hole of `range`, which led to `version`.
    pub fn punch(&mut self, version: u64, range: Range<u64>) {
        if !self.follows(version) {
            return;
        }
        self.map.remove(range.clone());
        self.known.insert(range, ());
    }

    /// Takes over that this client made the leader change what is in `range`, which led to
    /// `version`.
    pub fn lose(&mut self, version: u64, range: Range<u64>) {
        if !self.follows(version) {
            return;
        }
        self.map.remove(range.clone());
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
mod tests {
    use super::*;

    fn inline(off: u64, text: &'static str) -> v1::Extent {
        let source = Some(v1::extent::Source::Inline(Bytes::from_static(text.as_bytes())));
        v1::Extent { file_off: off, len: text.len() as u64, source }
    }

    fn reply(version: u64, extents: Vec<v1::Extent>, truncated: bool) -> v1::ExtentsReply {
        let attr = Some(v1::Attr { data_version: version, ..Default::default() });
        v1::ExtentsReply { extents, segments: Vec::new(), truncated, attr }
    }

    #[test]
    fn versions_do_not_mix() {
        let mut extents = Extents::default();
        assert_eq!(extents.learn(0, 100, reply(3, vec![inline(2, "ab")], true)), Ok(4));
        assert_eq!(extents.look(0..10).unwrap_err(), 4..10);
        assert_eq!(extents.learn(4, 96, reply(3, vec![inline(6, "c")], false)), Ok(100));
        assert_eq!(extents.look(0..10).unwrap().len(), 5);
        // An older answer changes nothing; a newer one replaces all.
        assert_eq!(extents.learn(0, 100, reply(2, Vec::new(), false)), Ok(100));
        assert_eq!(extents.look(0..10).unwrap().len(), 5);
        assert_eq!(extents.learn(50, 50, reply(4, Vec::new(), false)), Ok(100));
        assert_eq!(extents.look(0..60).unwrap_err(), 0..50);
    }

    #[test]
    fn own_commits_keep_the_rest_and_foreign_ones_do_not() {
        let piece =
            |range, text: &'static str| Piece { range, source: PieceSource::Inline(text.into()) };
        let mut extents = Extents::default();
        extents.learn(0, u64::MAX, reply(3, vec![inline(0, "abcdef")], false)).unwrap();
        extents.commit(4, &[piece(1..3, "XY")]);
        assert_eq!(extents.look(0..6).unwrap().len(), 3);
        extents.resize(5, 2);
        assert_eq!(extents.look(0..6).unwrap().len(), 3);
        extents.commit(7, &[piece(1..3, "XY")]);
        assert_eq!(extents.look(0..6).unwrap_err(), 0..1);
        assert!(extents.look(1..3).is_ok());
    }

    /// Answers overtake each other: another may have changed the file since, and that be known.
    #[test]
    fn own_changes_that_were_overtaken_change_nothing() {
        let source = PieceSource::Inline("ab".into());
        let piece = [Piece { range: 0..2, source }];
        let changes: [&dyn Fn(&mut Extents); 4] = [
            &|extents| extents.commit(6, &piece),
            &|extents| extents.resize(6, 1),
            &|extents| extents.punch(6, 0..2),
            &|extents| extents.lose(6, 0..2),
        ];
        for change in changes {
            let mut extents = Extents::default();
            extents.learn(0, u64::MAX, reply(7, vec![inline(0, "xyz")], false)).unwrap();
            change(&mut extents);
            let known = extents.look(0..3).unwrap();
            assert!(matches!(&known[..], [(_, Some(Source::Inline(bytes)))] if bytes == "xyz"));
            assert_eq!(extents.version(), 7);
        }
    }

    #[test]
    fn runs_of_data_and_holes_are_told_apart() {
        let mut extents = Extents::default();
        assert_eq!(extents.run(0..9), Err(0..9));
        extents.learn(0, 20, reply(3, vec![inline(2, "ab"), inline(8, "c")], false)).unwrap();
        assert_eq!(extents.run(0..30), Ok((2, false)));
        assert_eq!(extents.run(2..30), Ok((4, true)));
        assert_eq!(extents.run(2..3), Ok((3, true)));
        assert_eq!(extents.run(9..30), Ok((20, false)));
        assert_eq!(extents.run(20..30), Err(20..30));
        extents.punch(4, 1..9);
        assert_eq!(extents.run(1..30), Ok((9, false)));
        extents.lose(5, 3..6);
        assert_eq!(extents.run(3..30), Err(3..6));
        assert_eq!(extents.run(6..30), Ok((9, false)));
        // Somebody else changed it too.
        extents.punch(7, 0..30);
        assert_eq!(extents.run(0..30), Err(0..30));
    }

    #[test]
    fn nonsense_is_refused() {
        let mut extents = Extents::default();
        let mut wrong = inline(0, "abc");
        wrong.len = 4;
        assert!(extents.learn(0, 9, reply(1, vec![wrong], false)).is_err());
        assert!(extents.learn(0, 9, reply(1, Vec::new(), true)).is_err());
        let part = v1::SegmentPart { id: None, off: 0 };
        let lost =
            v1::Extent { file_off: 0, len: 1, source: Some(v1::extent::Source::Segment(part)) };
        assert!(extents.learn(0, 9, reply(1, vec![lost], false)).is_err());
    }
}
