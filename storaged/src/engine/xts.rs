//! AES-256 in XTS mode (IEEE 1619) over whole blocks of a drive, the number of the block as the
//! tweak, as dm-crypt has it with `aes-xts-plain64` and sectors of 4096 bytes.
//!
//! The cipher is the library's, which takes AES-NI or VAES where the processor has them; many AES
//! blocks are given to it at once, on which its speed depends. Of the mode there is only what whole
//! blocks need: no ciphertext stealing.

use super::BLOCK;
use aes::Aes256;
use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};

/// AES blocks in a block of the drive.
const UNITS: usize = BLOCK as usize / 16;
/// Bytes of a key: one for the data, one for the tweaks.
pub(super) const KEY: usize = 64;

/// A key, made ready. It is wiped when dropped.
pub(super) struct Xts {
    data: Aes256,
    tweaks: Aes256,
}

type Block = [u8; BLOCK as usize];
type Tweaks = [[u8; 16]; UNITS];

impl Xts {
    pub fn new(key: &[u8; KEY]) -> Self {
        let (data, tweaks) = key.split_at(KEY / 2);
        let ready = |half: &[u8]| Aes256::new_from_slice(half).expect("half a key has 32 bytes");
        Self { data: ready(data), tweaks: ready(tweaks) }
    }

    /// Encrypts block `number` of the drive into `to`.
    pub fn encrypt(&self, number: u64, from: &Block, to: &mut Block) {
        let tweaks = self.tweaks(number);
        let (to, from) = (to.as_chunks_mut::<16>().0, from.as_chunks::<16>().0);
        for ((to, from), tweak) in to.iter_mut().zip(from).zip(&tweaks) {
            *to = xor(from, tweak);
        }
        self.data.encrypt_blocks(Array::cast_slice_from_core_mut(to));
        to.iter_mut().zip(&tweaks).for_each(|(unit, tweak)| *unit = xor(unit, tweak));
    }

    /// Decrypts block `number` of the drive where it is.
    pub fn decrypt(&self, number: u64, block: &mut Block) {
        let tweaks = self.tweaks(number);
        let units = block.as_chunks_mut::<16>().0;
        units.iter_mut().zip(&tweaks).for_each(|(unit, tweak)| *unit = xor(unit, tweak));
        self.data.decrypt_blocks(Array::cast_slice_from_core_mut(units));
        units.iter_mut().zip(&tweaks).for_each(|(unit, tweak)| *unit = xor(unit, tweak));
    }

    /// The number, encrypted, and then doubled in GF(2^128) from unit to unit.
    fn tweaks(&self, number: u64) -> Tweaks {
        let mut first = aes::Block::default();
        first[..8].copy_from_slice(&number.to_le_bytes());
        self.tweaks.encrypt_block(&mut first);
        let mut tweak = u128::from_le_bytes(first.into());
        std::array::from_fn(|_| {
            let now = tweak.to_le_bytes();
            tweak = (tweak << 1) ^ ((tweak >> 127) * 0x87);
            now
        })
    }
}

fn xor(a: &[u8; 16], b: &[u8; 16]) -> [u8; 16] {
    (u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b)).to_ne_bytes()
}

#[cfg(test)]
mod tests;
