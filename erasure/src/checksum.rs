//! CRC-32 of 4096-byte blocks, as stored beside chunks and checked by every reader (I3).
//!
//! A last block that is short is summed as it is stored: extended with zeros.

use crc32fast::Hasher;
use weft_proto::layout::BLOCK;

const BLOCK_BYTES: usize = BLOCK as usize;

static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// CRC-32 of each block of `data`.
pub fn block_checksums(data: &[u8]) -> Vec<u32> {
    data.chunks(BLOCK_BYTES).map(checksum).collect()
}

/// CRC-32 of each block of the concatenation of `pieces`; blocks may straddle pieces.
pub fn checksum_blocks<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<u32> {
    let mut sums = Vec::new();
    let (mut open, mut filled) = (Hasher::new(), 0);
    for mut piece in pieces {
        while !piece.is_empty() {
            if filled == 0 && piece.len() >= BLOCK_BYTES {
                let whole = piece.len() - piece.len() % BLOCK_BYTES;
                sums.extend(piece[..whole].chunks_exact(BLOCK_BYTES).map(crc32fast::hash));
                piece = &piece[whole..];
                continue;
            }
            let (head, rest) = piece.split_at(piece.len().min(BLOCK_BYTES - filled));
            open.update(head);
            filled += head.len();
            piece = rest;
            if filled == BLOCK_BYTES {
                sums.push(std::mem::take(&mut open).finalize());
                filled = 0;
            }
        }
    }
    if filled > 0 {
        open.update(&ZEROS[filled..]);
        sums.push(open.finalize());
    }
    sums
}

/// Checks each block of `data` against its checksum. `Err` holds the first block that does not
/// match, that has no checksum, or that a checksum is left over for.
pub fn verify_blocks(data: &[u8], checksums: &[u32]) -> Result<(), usize> {
    let mut blocks = data.chunks(BLOCK_BYTES);
    for (i, &want) in checksums.iter().enumerate() {
        match blocks.next() {
            Some(block) if checksum(block) == want => {}
            _ => return Err(i),
        }
    }
    if blocks.next().is_some() { Err(checksums.len()) } else { Ok(()) }
}

fn checksum(block: &[u8]) -> u32 {
    if block.len() == BLOCK_BYTES {
        return crc32fast::hash(block);
    }
    let mut hasher = Hasher::new();
    hasher.update(block);
    hasher.update(&ZEROS[block.len()..]);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(data: &[u8]) -> Vec<u32> {
        let mut padded = data.to_vec();
        padded.resize(data.len().next_multiple_of(BLOCK_BYTES), 0);
        padded.chunks(BLOCK_BYTES).map(crc32fast::hash).collect()
    }

    proptest! {
        #[test]
        fn pieces_sum_as_the_whole(data in prop::collection::vec(any::<u8>(), 0..20_000),
                                   cuts in prop::collection::vec(0usize..9000, 0..12)) {
            let mut rest = &data[..];
            let mut pieces = Vec::new();
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                pieces.push(head);
                rest = tail;
            }
            pieces.push(rest);
            let want = whole(&data);
            prop_assert_eq!(&checksum_blocks(pieces.into_iter()), &want);
            prop_assert_eq!(&block_checksums(&data), &want);
            prop_assert_eq!(verify_blocks(&data, &want), Ok(()));
        }

        #[test]
        fn a_flipped_bit_is_found_in_its_block(len in 1usize..20_000,
            at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let mut data = vec![7u8; len];
            let sums = block_checksums(&data);
            let at = at.index(len);
            data[at] ^= 1 << bit;
            prop_assert_eq!(verify_blocks(&data, &sums), Err(at / BLOCK_BYTES));
        }
    }

    #[test]
    fn counts_that_differ_are_refused() {
        let data = vec![1u8; 3 * BLOCK_BYTES];
        let sums = block_checksums(&data);
        assert_eq!(verify_blocks(&data, &sums[..2]), Err(2));
        assert_eq!(verify_blocks(&data[..BLOCK_BYTES], &sums), Err(1));
        assert_eq!(verify_blocks(&[], &[]), Ok(()));
    }
}
