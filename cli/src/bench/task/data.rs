//! The bytes that tasks write, and how readers know them again.

use anyhow::Result;

/// File data is stamped with its own offset once in each of these, so that readers notice bytes
/// from anywhere else.
pub const STAMP_EVERY: usize = 4096;

/// Bytes that no layer can compress or deduplicate, from a seed.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random(&mut state).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The next number of an xorshift generator.
pub fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Writes the file offset of each block of `data`, which begins at `offset`, into the block.
pub fn stamp(data: &mut [u8], offset: u64) {
    for (i, block) in data.chunks_exact_mut(STAMP_EVERY).enumerate() {
        block[..8].copy_from_slice(&(offset + (i * STAMP_EVERY) as u64).to_le_bytes());
    }
}

/// Checks the stamps of `data`, which was read at `offset`, a multiple of a block.
pub fn check_stamps(data: &[u8], offset: u64) -> Result<()> {
    for (i, block) in data.chunks_exact(STAMP_EVERY).enumerate() {
        let at = offset + (i * STAMP_EVERY) as u64;
        let found = block.first_chunk().copied().map(u64::from_le_bytes);
        anyhow::ensure!(
            found == Some(at),
            "the bytes read at offset {at} are not those that were written there"
        );
    }
    Ok(())
}
