//! Checked conversions between wire messages and the types the code uses.

use crate::{
    ChunkId, Error, ErrorKind, Geometry, Layout, Profile, Result, SegmentId, SessionId, layout, v1,
};

fn bad(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, what)
}

impl From<Error> for v1::ErrorHead {
    fn from(error: Error) -> Self {
        Self { code: error.kind.code(), message: error.message, hint: error.hint }
    }
}

impl From<v1::ErrorHead> for Error {
    fn from(head: v1::ErrorHead) -> Self {
        Self { kind: ErrorKind::from_code(head.code), message: head.message, hint: head.hint }
    }
}

impl From<SegmentId> for v1::SegmentKey {
    fn from(id: SegmentId) -> Self {
        Self { session: id.session.0, seq: id.seq }
    }
}

impl From<v1::SegmentKey> for SegmentId {
    fn from(k: v1::SegmentKey) -> Self {
        Self { session: SessionId(k.session), seq: k.seq }
    }
}

impl From<ChunkId> for v1::ChunkKey {
    fn from(id: ChunkId) -> Self {
        Self { segment: Some(id.segment.into()), shard: u32::from(id.shard) }
    }
}

impl TryFrom<v1::ChunkKey> for ChunkId {
    type Error = Error;
    fn try_from(k: v1::ChunkKey) -> Result<Self> {
        let segment = k.segment.ok_or_else(|| bad("chunk key without a segment"))?.into();
        let shard = u8::try_from(k.shard)
            .ok()
            .filter(|&s| s < layout::MAX_K + layout::MAX_M)
            .ok_or_else(|| bad(format!("shard number {} is out of range", k.shard)))?;
        Ok(Self { segment, shard })
    }
}

impl From<Profile> for v1::ProfileInfo {
    fn from(p: Profile) -> Self {
        Self { k: u32::from(p.k()), m: u32::from(p.m()) }
    }
}

impl TryFrom<v1::ProfileInfo> for Profile {
    type Error = Error;
    fn try_from(p: v1::ProfileInfo) -> Result<Self> {
        match (u8::try_from(p.k), u8::try_from(p.m)) {
            (Ok(k), Ok(m)) => Self::ec(k, m),
            _ => Err(bad(format!("profile {}+{} is out of range", p.k, p.m))),
        }
    }
}

impl From<Layout> for v1::LayoutInfo {
    fn from(l: Layout) -> Self {
        Self {
            profile: Some(l.profile.into()),
            unit: l.unit,
            segment_len: l.segment_len,
            inline_limit: l.inline_limit,
        }
    }
}

impl TryFrom<v1::LayoutInfo> for Layout {
    type Error = Error;
    fn try_from(l: v1::LayoutInfo) -> Result<Self> {
        let layout = Self {
            profile: l.profile.ok_or_else(|| bad("layout without a profile"))?.try_into()?,
            unit: l.unit,
            segment_len: l.segment_len,
            inline_limit: l.inline_limit,
        };
        layout.validate()?;
        Ok(layout)
    }
}

impl v1::SegmentInfo {
    /// The checked geometry of this segment.
    pub fn geometry(&self) -> Result<Geometry> {
        let profile: Profile =
            self.profile.ok_or_else(|| bad("segment without a profile"))?.try_into()?;
        if self.unit == 0 || !self.unit.is_multiple_of(layout::BLOCK) {
            return Err(bad(format!("segment with stripe unit {}", self.unit)));
        }
        if self.length == 0 || self.length > layout::MAX_SEGMENT {
            return Err(bad(format!("segment of {} bytes", self.length)));
        }
        if self.seats.len() != usize::from(profile.width()) {
            return Err(bad(format!("segment with {} seats for {profile}", self.seats.len())));
        }
        let mut seen = [false; 256];
        for &seat in &self.seats {
            if std::mem::replace(&mut seen[usize::from(seat)], true) {
                return Err(bad(format!("two shards of a segment in seat {seat}")));
            }
        }
        Ok(Geometry { profile, unit: self.unit, length: self.length })
    }

    /// The checked id of this segment.
    pub fn segment_id(&self) -> Result<SegmentId> {
        self.id.map(Into::into).ok_or_else(|| bad("segment without an id"))
    }
}
