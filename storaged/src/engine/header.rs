//! The header in front of a chunk's data, from which a lost index is rebuilt.
//!
//! Little-endian, padded with zeros to whole blocks:
//!
//! ```text
//!   0  8  magic "WEFTCHK\n"
//!   8  8  salt of the target: headers of other targets and of former formats do not count
//!  16  4  CRC-32 of everything else in the header blocks
//!  20  4  0
//!  24 17  chunk id: session, sequence (big-endian), shard
//!  41  .  place: stamp u64, length u64, extent count u8, extents (block u64, blocks u32)
//!   .  .  checksums of the data, u32 each
//! ```
//!
//! The header's own position must be the first block of its first extent.

use super::BLOCK;
use super::entry::{HEADER_FIXED, JournalEntry, Place, decode_checksums, take, take_chunk};
use weft_net::AlignedBuf;
use weft_proto::ChunkId;

const MAGIC: [u8; 8] = *b"WEFTCHK\n";
const CRC_AT: usize = 16;

/// The header blocks of a chunk.
pub(super) fn encode(salt: u64, id: ChunkId, entry: &JournalEntry) -> AlignedBuf {
    let mut bytes = Vec::with_capacity(HEADER_FIXED as usize + 4 * entry.checksums.len());
    bytes.extend(MAGIC);
    bytes.extend(salt.to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(id.to_bytes());
    entry.place.encode(&mut bytes);
    entry.checksums.iter().for_each(|c| bytes.extend(c.to_le_bytes()));

    let mut buffer = AlignedBuf::take((entry.place.header_blocks() * BLOCK) as usize);
    let out = buffer.as_mut_slice();
    out[..bytes.len()].copy_from_slice(&bytes);
    out[bytes.len()..].fill(0);
    let crc = crc(out);
    out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    buffer
}

/// Whether a block may begin a header of this target. Cheap; `decode` decides.
pub(super) fn may_begin(salt: u64, block: &[u8]) -> bool {
    block.starts_with(&MAGIC) && block.get(8..16) == Some(&salt.to_le_bytes()[..])
}

/// Whether a block may begin a header of any target.
pub(super) fn may_begin_any(block: &[u8]) -> bool {
    block.starts_with(&MAGIC)
}

/// Blocks of the header that begins here, if it may be one.
pub(super) fn peek_blocks(salt: u64, block: &[u8]) -> Option<u64> {
    if !may_begin(salt, block) {
        return None;
    }
    let mut input = block.get(24 + ChunkId::LEN..)?;
    Some(Place::decode(&mut input)?.header_blocks())
}

/// Reads the header that lies at block `at`; `bytes` are all of its blocks.
pub(super) fn decode(salt: u64, at: u64, bytes: &[u8]) -> Option<(ChunkId, JournalEntry)> {
    if !may_begin(salt, bytes) {
        return None;
    }
    let mut input = &bytes[CRC_AT..];
    let stored = u32::from_le_bytes(take(&mut input)?);
    take::<4>(&mut input)?;
    let id = take_chunk(&mut input)?;
    let place = Place::decode(&mut input)?;
    if place.extents[0].block != at || bytes.len() as u64 != place.header_blocks() * BLOCK {
        return None;
    }
    if crc(bytes) != stored {
        return None;
    }
    let words = input.get(..(place.length / BLOCK * 4) as usize)?;
    let checksums = decode_checksums(words, place.length)?;
    Some((id, JournalEntry { place, checksums }))
}

/// Puts magic, salt and checksum right, and answers at which block it says that it lies.
#[cfg(feature = "fuzz")]
pub(super) fn seal(salt: u64, bytes: &mut [u8]) -> Option<u64> {
    super::entry::set(bytes, 0, MAGIC);
    super::entry::set(bytes, 8, salt.to_le_bytes());
    let crc = crc(bytes);
    super::entry::set(bytes, CRC_AT, crc.to_le_bytes());
    super::entry::word(bytes, 24 + ChunkId::LEN + 17)
}

fn crc(bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..CRC_AT]);
    hasher.update(&[0; 4]);
    hasher.update(&bytes[CRC_AT + 4..]);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::super::entry::{Extent, header_blocks};
    use super::*;
    use proptest::prelude::*;
    use weft_proto::{SegmentId, SessionId};

    const SALT: u64 = 0x1122_3344_5566_7788;

    fn sample(blocks: u64) -> (ChunkId, JournalEntry) {
        let id = ChunkId { segment: SegmentId { session: SessionId(1), seq: 2 }, shard: 3 };
        let length = blocks * BLOCK;
        let all = (blocks + header_blocks(length)) as u32;
        let extents = vec![Extent { block: 500, blocks: all }];
        let checksums = (0..blocks as u32).map(|n| n.wrapping_mul(0x0101_0101)).collect();
        (id, JournalEntry { place: Place { stamp: 9, length, extents }, checksums })
    }

    #[test]
    fn the_header_is_this_format() {
        let (id, entry) = sample(2);
        let buffer = encode(SALT, id, &entry);
        let bytes = buffer.as_ref();
        assert_eq!(bytes.len(), 4096);
        assert_eq!(&bytes[..16], b"WEFTCHK\n\x88\x77\x66\x55\x44\x33\x22\x11");
        assert_eq!(bytes[16..20], crc(bytes).to_le_bytes());
        #[rustfmt::skip]
        assert_eq!(&bytes[20..74], [
            0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 1,  0, 0, 0, 0, 0, 0, 0, 2,  3,
            9, 0, 0, 0, 0, 0, 0, 0,  0, 0x20, 0, 0, 0, 0, 0, 0,  1,
            0xf4, 1, 0, 0, 0, 0, 0, 0,  3, 0, 0, 0,
            0, 0, 0, 0,
        ]);
        assert_eq!(bytes[74..78], [1, 1, 1, 1]);
        assert!(bytes[78..].iter().all(|&b| b == 0));
        assert_eq!(peek_blocks(SALT, bytes), Some(1));
        assert_eq!(decode(SALT, 500, bytes), Some((id, entry)));
        assert_eq!(decode(SALT, 501, bytes), None, "a copy elsewhere");
        assert_eq!(decode(SALT + 1, 500, bytes), None, "of another target");
    }

    proptest! {
        #[test]
        fn headers_of_all_lengths_come_back_and_damage_is_noticed(
            blocks in prop_oneof![1u64..2000, 16_384u64..16_385],
            at: prop::sample::Index,
            flip in 1u8..=255,
        ) {
            let (id, entry) = sample(blocks);
            let mut bytes = encode(SALT, id, &entry).as_ref().to_vec();
            prop_assert_eq!(peek_blocks(SALT, &bytes[..4096]), Some(bytes.len() as u64 / BLOCK));
            prop_assert_eq!(decode(SALT, 500, &bytes), Some((id, entry)));
            let cut = at.index(bytes.len());
            prop_assert_eq!(decode(SALT, 500, &bytes[..cut]), None);
            bytes[cut] ^= flip;
            prop_assert_eq!(decode(SALT, 500, &bytes), None);
            let _ = peek_blocks(SALT, &bytes);
        }
    }
}
