//! What is kept or not as a whole.

use std::ops::Range;
use weft_proto::SegmentId;

/// Bytes of a piece, but for the last one of a segment. As much as read-ahead fetches at least.
pub const PIECE: u64 = 512 << 10;

/// A piece of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    /// The segment.
    pub segment: SegmentId,
    /// It begins at so many times [`PIECE`].
    pub number: u32,
}

impl Piece {
    /// Its bytes in a segment of `length`.
    pub fn range(&self, length: u64) -> Range<u64> {
        let start = u64::from(self.number) * PIECE;
        start..(start + PIECE).min(length)
    }
}

/// The pieces that have a part of `range` of a segment, in order.
pub fn pieces(segment: SegmentId, range: Range<u64>) -> impl Iterator<Item = Piece> {
    let numbers = match range.is_empty() {
        true => 0..0,
        false => range.start / PIECE..(range.end - 1) / PIECE + 1,
    };
    // A segment has far fewer.
    numbers.map_while(move |number| Some(Piece { segment, number: number.try_into().ok()? }))
}
