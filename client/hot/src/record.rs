//! A piece as it lies on the drive: a block that says what follows, with a checksum of each block
//! of it, and the content, extended with zeros to whole blocks.
//!
//! | bytes | |
//! |---|---|
//! | 0..8 | [`MAGIC`] |
//! | 8..24 | the segment's id |
//! | 24..28 | number of the piece |
//! | 28..32 | its length |
//! | 32..36 | CRC-32 of this block, with zeros here |
//! | 36.. | CRC-32 of each block of content |
//!
//! Numbers are little-endian.

use crate::piece::{PIECE, Piece};
use weft_net::Buffer;
use weft_proto::SegmentId;
use weft_proto::layout::BLOCK;

/// Bytes of a block, the first of a record among them.
pub const BLOCK_LEN: usize = BLOCK as usize;

const MAGIC: [u8; 8] = *b"WEFTHOTP";
const SUM: std::ops::Range<usize> = 32..36;
const SUMS: usize = 36;

/// Blocks of a record with so much content.
pub fn blocks(len: u32) -> u32 {
    1 + len.div_ceil(BLOCK)
}

/// The record of a piece. `content` is not longer than one.
pub fn encode(piece: Piece, content: &[u8]) -> Buffer {
    let mut record = Buffer::take(blocks(content.len() as u32) as usize * BLOCK_LEN);
    let (head, body) = record.split_at_mut(BLOCK_LEN);
    body[..content.len()].copy_from_slice(content);
    body[content.len()..].fill(0);
    head.fill(0);
    head[..8].copy_from_slice(&MAGIC);
    head[8..24].copy_from_slice(&piece.segment.to_bytes());
    head[24..28].copy_from_slice(&piece.number.to_le_bytes());
    head[28..32].copy_from_slice(&(content.len() as u32).to_le_bytes());
    for (place, sum) in head[SUMS..].chunks_exact_mut(4).zip(weft_erasure::block_checksums(body)) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
    put_sum(head);
    record
}

/// The checksum of the first block, which is written last.
fn put_sum(head: &mut [u8]) {
    head[SUM].fill(0);
    let sum = crc32fast::hash(head);
    head[SUM].copy_from_slice(&sum.to_le_bytes());
}

/// Makes `head` one that is read on.
#[cfg(feature = "fuzz")]
pub fn put_right(head: &mut [u8]) {
    head[..8].copy_from_slice(&MAGIC);
    put_sum(head);
}

/// Whether `head` is that of this piece with so much content, and `body` its blocks from number
/// `first` on.
pub fn is_good(piece: Piece, len: u32, head: &[u8], first: usize, body: &[u8]) -> bool {
    let Ok(head): Result<&[u8; BLOCK_LEN], _> = head.try_into() else { return false };
    let number =
        |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let mut summed = *head;
    summed[SUM].fill(0);
    let count = len.div_ceil(BLOCK) as usize;
    let told = head[..8] == MAGIC
        && head[8..8 + SegmentId::LEN] == piece.segment.to_bytes()
        && (number(24), number(28)) == (piece.number, len)
        && number(SUM.start) == crc32fast::hash(&summed)
        && u64::from(len) <= PIECE;
    let touched = first..first + body.len().div_ceil(BLOCK_LEN);
    if !told || touched.end > count {
        return false;
    }
    let sums: Vec<_> = touched.map(|block| number(SUMS + block * 4)).collect();
    weft_erasure::verify_blocks(body, &sums).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_proto::SessionId;

    fn piece(session: u64, seq: u64, number: u32) -> Piece {
        Piece { segment: SegmentId { session: SessionId(session), seq }, number }
    }

    proptest! {
        #[test]
        fn a_record_is_good_until_a_bit_of_it_is_not(
            len in 1usize..30_000,
            (at, bit) in (0usize..40_000, 0u8..8),
        ) {
            let content: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let (piece, len) = (piece(1, 2, 3), len as u32);
            let mut record = encode(piece, &content);
            let good = |record: &[u8], piece, len, first: usize| {
                let (head, body) = record.split_at(BLOCK_LEN);
                is_good(piece, len, head, first, &body[first * BLOCK_LEN..])
            };
            prop_assert_eq!(&record[BLOCK_LEN..][..content.len()], &content[..]);
            for first in 0..(len as usize).div_ceil(BLOCK_LEN) {
                prop_assert!(good(&record, piece, len, first));
            }
            let others = [(1, 2, 4), (1, 3, 3), (2, 2, 3)];
            for (session, seq, number) in others {
                let other = Piece { number, ..self::piece(session, seq, number) };
                prop_assert!(!good(&record, other, len, 0));
            }
            prop_assert!(!good(&record, piece, len + 1, 0));
            let at = at % record.len();
            record[at] ^= 1 << bit;
            prop_assert!(!good(&record, piece, len, 0));
        }

        #[test]
        fn garbage_is_no_record(
            head in prop::collection::vec(any::<u8>(), BLOCK_LEN),
            body in prop::collection::vec(any::<u8>(), 0..3 * BLOCK_LEN),
            len: u32,
            first in 0usize..200,
        ) {
            prop_assert!(!is_good(piece(0, 0, 0), len, &head, first, &body));
            prop_assert!(!is_good(piece(0, 0, 0), len, &head[1..], first, &body));
        }
    }
}
