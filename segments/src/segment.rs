//! What is known of a segment: where its chunks lie, and how they are cut.

use weft_proto::{ChunkId, Error, Geometry, PgId, Result, SegmentId, SessionId, v1};

/// A segment as its record says: what a reader needs to find its chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Its id, never used twice.
    pub id: SegmentId,
    /// How it is cut and encoded.
    pub geometry: Geometry,
    /// The placement group that its chunks lie in.
    pub pg: PgId,
    /// Shard i lies on the target in seat `seats[i]`.
    pub seats: Vec<u8>,
}

impl Segment {
    /// The chunk of a shard.
    pub fn chunk(&self, shard: u8) -> ChunkId {
        ChunkId { segment: self.id, shard }
    }

    /// Its record.
    pub fn to_wire(&self) -> v1::SegmentInfo {
        v1::SegmentInfo {
            id: Some(self.id.into()),
            profile: Some(self.geometry.profile.into()),
            unit: self.geometry.unit,
            length: self.geometry.length,
            pg: self.pg.0,
            seats: self.seats.clone().into(),
        }
    }
}

impl TryFrom<v1::SegmentInfo> for Segment {
    type Error = Error;
    fn try_from(info: v1::SegmentInfo) -> Result<Self> {
        Ok(Self {
            id: info.segment_id()?,
            geometry: info.geometry()?,
            pg: PgId(info.pg),
            seats: info.seats.to_vec(),
        })
    }
}

/// Who writes segments, and gives each its id.
pub trait Writer: Send + Sync + 'static {
    /// An id that was never given to a segment.
    fn next_segment(&self) -> SegmentId;

    /// The session that new segments belong to: those of an earlier one, which it has replaced, are
    /// no business of this process any more.
    fn session(&self) -> SessionId;

    /// Nobody waits for reads and writes any more.
    fn has_ended(&self) -> bool;
}
