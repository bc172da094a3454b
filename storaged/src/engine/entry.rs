//! What the index knows of a chunk, and its encoding. Parsing is bounded and rejects garbage.

use super::BLOCK;
use weft_proto::{ChunkId, layout};

/// A run of blocks on the target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Extent {
    /// First block, counted from the start of the target.
    pub block: u64,
    /// Number of blocks, never 0.
    pub blocks: u32,
}

impl Extent {
    pub const LEN: usize = 12;
    /// Most extents of a chunk.
    pub const MAX: usize = 16;

    pub fn end(self) -> u64 {
        self.block + u64::from(self.blocks)
    }
}

/// Bytes of a chunk's header before the checksums, when all extents are used.
pub(super) const HEADER_FIXED: u64 =
    24 + ChunkId::LEN as u64 + 17 + (Extent::MAX * Extent::LEN) as u64;

/// Blocks that the header of a chunk of `length` bytes takes.
pub(super) const fn header_blocks(length: u64) -> u64 {
    (HEADER_FIXED + length / BLOCK * 4).div_ceil(BLOCK)
}

/// Where a chunk lies: header blocks first, then data, in the extents' order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// Number of the put that wrote it; a greater one is newer.
    pub stamp: u64,
    /// Bytes of data, a multiple of [`BLOCK`], never 0.
    pub length: u64,
    pub extents: Vec<Extent>,
}

/// A chunk as the index holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct JournalEntry {
    pub place: Place,
    /// CRC-32 of each block of data.
    pub checksums: Vec<u32>,
}

impl Place {
    /// Writes stamp u64, length u64, count u8, then block u64 and blocks u32 of each extent; all
    /// little-endian.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.stamp.to_le_bytes());
        out.extend(self.length.to_le_bytes());
        out.push(self.extents.len() as u8);
        for e in &self.extents {
            out.extend(e.block.to_le_bytes());
            out.extend(e.blocks.to_le_bytes());
        }
    }

    /// Bytes that `encode` writes.
    pub fn encoded_len(&self) -> usize {
        17 + self.extents.len() * Extent::LEN
    }

    /// Reads what `encode` wrote. `None` for anything that cannot be a chunk.
    pub fn decode(input: &mut &[u8]) -> Option<Self> {
        let stamp = take_u64(input)?;
        let length = take_u64(input)?;
        let count = usize::from(take::<1>(input)?[0]);
        if length == 0 || length > layout::MAX_CHUNK || length % BLOCK != 0 {
            return None;
        }
        if count == 0 || count > Extent::MAX {
            return None;
        }
        let mut extents = Vec::with_capacity(count);
        for _ in 0..count {
            let block = take_u64(input)?;
            let blocks = u32::from_le_bytes(take(input)?);
            if blocks == 0 || block.checked_add(u64::from(blocks))? > u64::MAX / BLOCK {
                return None;
            }
            extents.push(Extent { block, blocks });
        }
        let place = Self { stamp, length, extents };
        let blocks: u64 = place.extents.iter().map(|e| u64::from(e.blocks)).sum();
        let fits = blocks == place.header_blocks() + length / BLOCK
            && u64::from(place.extents[0].blocks) >= place.header_blocks();
        (fits && place.is_apart()).then_some(place)
    }

    /// Blocks that the header takes; all in the first extent.
    pub fn header_blocks(&self) -> u64 {
        header_blocks(self.length)
    }

    /// Whether no two extents share a block.
    fn is_apart(&self) -> bool {
        let mut before = self.extents.iter().enumerate().map(|(n, e)| (e, &self.extents[..n]));
        before.all(|(e, before)| before.iter().all(|b| b.end() <= e.block || e.end() <= b.block))
    }

    /// Whether the extents lie in `[first, end)` blocks.
    pub fn lies_in(&self, first: u64, end: u64) -> bool {
        self.extents.iter().all(|e| e.block >= first && e.end() <= end)
    }

    /// The runs `(byte offset on the target, bytes)` that hold `[off, off + len)` of the data.
    pub fn locate(&self, off: u64, len: u64) -> Vec<(u64, u64)> {
        let mut skip = self.header_blocks() * BLOCK + off;
        let mut left = len;
        let mut runs = Vec::with_capacity(1);
        for e in &self.extents {
            let bytes = u64::from(e.blocks) * BLOCK;
            if skip >= bytes {
                skip -= bytes;
                continue;
            }
            let run = (bytes - skip).min(left);
            if run == 0 {
                break;
            }
            runs.push((e.block * BLOCK + skip, run));
            left -= run;
            skip = 0;
        }
        runs
    }
}

impl JournalEntry {
    const VERSION: u8 = 1;

    /// Value of the index: version u8, the place, then the checksums, little-endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + Extent::LEN + 4 * self.checksums.len());
        out.push(Self::VERSION);
        self.place.encode(&mut out);
        self.checksums.iter().for_each(|c| out.extend(c.to_le_bytes()));
        out
    }

    pub fn decode(mut input: &[u8]) -> Option<Self> {
        let place = Self::decode_place(&mut input)?;
        let checksums = decode_checksums(input, place.length)?;
        Some(Self { place, checksums })
    }

    /// Only where the chunk lies.
    pub fn decode_place(input: &mut &[u8]) -> Option<Place> {
        (take::<1>(input)?[0] == Self::VERSION).then(|| Place::decode(input)).flatten()
    }

    /// Bytes of memory, about.
    pub fn weight(&self) -> u64 {
        (96 + self.place.extents.len() * 16 + self.checksums.len() * 4) as u64
    }
}

/// The checksums of `length` bytes of data; `None` unless `input` is exactly these.
pub(super) fn decode_checksums(input: &[u8], length: u64) -> Option<Vec<u32>> {
    let (words, rest) = input.as_chunks::<4>();
    (rest.is_empty() && words.len() as u64 == length / BLOCK)
        .then(|| words.iter().map(|w| u32::from_le_bytes(*w)).collect())
}

pub(super) fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = input.split_first_chunk::<N>()?;
    *input = rest;
    Some(*head)
}

pub(super) fn take_u64(input: &mut &[u8]) -> Option<u64> {
    take(input).map(u64::from_le_bytes)
}

pub(super) fn take_chunk(input: &mut &[u8]) -> Option<ChunkId> {
    take::<{ ChunkId::LEN }>(input).map(|b| ChunkId::from_bytes(&b))
}

/// Sets bytes, where there are so many.
#[cfg(feature = "fuzz")]
pub(super) fn set<const N: usize>(bytes: &mut [u8], at: usize, to: [u8; N]) {
    if let Some(into) = bytes.get_mut(at..at + N) {
        into.copy_from_slice(&to);
    }
}

/// A number in bytes.
#[cfg(feature = "fuzz")]
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u64> {
    take(&mut bytes.get(at..)?).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_index_value_is_this_format() {
        let entry = JournalEntry {
            place: Place {
                stamp: 7,
                length: 8192,
                extents: vec![Extent { block: 300, blocks: 2 }, Extent { block: 9, blocks: 1 }],
            },
            checksums: vec![0x01020304, 0xa0b0c0d0],
        };
        let bytes = entry.encode();
        #[rustfmt::skip]
        assert_eq!(bytes, [
            1,
            7, 0, 0, 0, 0, 0, 0, 0,
            0, 0x20, 0, 0, 0, 0, 0, 0,
            2,
            0x2c, 1, 0, 0, 0, 0, 0, 0,  2, 0, 0, 0,
            9, 0, 0, 0, 0, 0, 0, 0,  1, 0, 0, 0,
            4, 3, 2, 1,  0xd0, 0xc0, 0xb0, 0xa0,
        ]);
        assert_eq!(JournalEntry::decode(&bytes), Some(entry));
    }

    /// An index that is made anew of such a header would be taken for a damaged one, each time.
    #[test]
    fn a_chunk_does_not_lie_over_itself() {
        let decoded = |extents: &[(u64, u32)]| {
            let extents = extents.iter().map(|&(block, blocks)| Extent { block, blocks }).collect();
            let (place, mut bytes) = (Place { stamp: 1, length: 9 * BLOCK, extents }, Vec::new());
            place.encode(&mut bytes);
            Place::decode(&mut &bytes[..]).is_some()
        };
        assert!(decoded(&[(20, 4), (24, 4), (18, 2)]), "they touch");
        assert!(!decoded(&[(20, 4), (23, 4), (18, 2)]));
        assert!(!decoded(&[(20, 4), (30, 2), (17, 4)]));
        assert!(!decoded(&[(20, 5), (20, 5)]));
    }

    proptest! {
        #[test]
        fn garbage_is_rejected_without_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..64,
        ) {
            let _ = JournalEntry::decode(&bytes);
            let entry = JournalEntry {
                place: Place {
                    stamp: 1,
                    length: 4096,
                    extents: vec![Extent { block: 3, blocks: 2 }],
                },
                checksums: vec![5],
            };
            let good = entry.encode();
            let cut = cut % good.len();
            prop_assert_eq!(JournalEntry::decode(&good[..cut]), None);
            let mut long = good.clone();
            long.push(0);
            prop_assert_eq!(JournalEntry::decode(&long), None);
        }

        #[test]
        fn runs_cover_the_range_in_order(split in 1u32..9, off in 0u64..10, len in 1u64..10) {
            let place = Place {
                stamp: 0,
                length: 9 * BLOCK,
                extents: vec![
                    Extent { block: 100, blocks: split },
                    Extent { block: 50, blocks: 10 - split },
                ],
            };
            let len = len.min(9u64.saturating_sub(off));
            let runs = place.locate(off * BLOCK, len * BLOCK);
            let mut at = 1 + off;
            for (start, bytes) in runs {
                let first = u64::from(split);
                let expect = if at < first { 100 + at } else { 50 + at - first };
                prop_assert_eq!(start, expect * BLOCK);
                at += bytes / BLOCK;
            }
            prop_assert_eq!(at, 1 + off + len);
        }
    }
}
