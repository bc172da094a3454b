//! What one commit takes of a file.

use super::buffer::BufferNo;
use bytes::Bytes;
use std::ops::Range;
use weft_proto::SegmentId;
use weft_segments::Segment;

/// A part of the file that a commit makes visible.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub range: Range<u64>,
    pub source: PieceSource,
}

impl Piece {
    pub fn segment(&self) -> Option<SegmentId> {
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
