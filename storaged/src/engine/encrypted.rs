//! A drive of which all blocks are encrypted but the two superblocks.
//!
//! Invariants: nothing reaches the drive below but ciphertext, and superblocks, which hold nothing
//! secret. Payloads stay as they are: what is written is encrypted into memory of its own, what is
//! read is decrypted where it was read to, by whoever waits for it. The drive's thread does
//! neither.

use super::BLOCK;
use super::device::{Device, Done};
use super::key::{Key, KeyCheck, KeySource};
use super::superblock::Superblock;
use super::xts::Xts;
use bytes::Bytes;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weft_net::AlignedBuf;
use weft_proto::{Error, ErrorKind, Result};

/// So many bytes take a tenth of a millisecond: more are not done on a thread that others wait for.
const LONG: usize = 256 << 10;

/// Encrypts what goes to a drive.
pub struct Encrypted {
    drive: Arc<dyn Device>,
    cipher: Arc<Cipher>,
}

struct Cipher {
    xts: Xts,
    /// The block of the last superblock.
    last: u64,
}

impl Encrypted {
    /// Makes of the superblock of a new target one that is encrypted. Blocks. Errors: those of
    /// getting the key.
    pub fn prepare(superblock: &mut Superblock, source: &KeySource) -> Result<()> {
        superblock.key_check = Some(source.load()?.check(superblock.uuid));
        Ok(())
    }

    /// The drive as its engine is to see it: `drive` itself, unless it is encrypted. Blocks.
    /// Errors: `Invalid`, the key is wrong, or there is none, or one that is not needed;
    /// `Unavailable`, it cannot be had now.
    pub fn unlock(
        drive: Arc<dyn Device>,
        superblock: &Superblock,
        source: Option<&KeySource>,
        path: &Path,
    ) -> Result<Arc<dyn Device>> {
        let refuse =
            |what: &str| Err(Error::new(ErrorKind::Invalid, format!("{}: {what}", path.display())));
        let (check, source) = match (&superblock.key_check, source) {
            (None, None) => return Ok(drive),
            (Some(check), Some(source)) => (check, source),
            (Some(_), None) => {
                return refuse(
                    "it is encrypted: name its key in [targets.encryption], as key_file or \
                     key_command",
                );
            }
            (None, Some(_)) => {
                return refuse(
                    "its configuration names a key, but it is not encrypted: leave \
                     [targets.encryption] out, or replace the target by an encrypted one",
                );
            }
        };
        let key = source
            .load()
            .map_err(|e| Error { message: format!("{}: {}", path.display(), e.message), ..e })?;
        if !same(check, &key.check(superblock.uuid)) {
            return refuse(
                "the key is not that with which it was formatted; nothing was read or written",
            );
        }
        Ok(Arc::new(Self::new(drive, &key, superblock)))
    }

    fn new(drive: Arc<dyn Device>, key: &Key, superblock: &Superblock) -> Self {
        let xts = key.cipher(superblock.uuid);
        Self { drive, cipher: Arc::new(Cipher { xts, last: superblock.size / BLOCK - 1 }) }
    }

    /// What is being read there, decrypted.
    fn decrypted(&self, off: u64, len: usize, read: Done<AlignedBuf>) -> Done<AlignedBuf> {
        let (cipher, long) = (self.cipher.clone(), self.takes_long(len));
        read.then(move |buffer| cipher.decrypt(off, buffer), long)
    }
}

fn same(a: &KeyCheck, b: &KeyCheck) -> bool {
    a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

impl Cipher {
    /// Whether a block holds a superblock.
    fn is_plain(&self, block: u64) -> bool {
        block == 0 || block == self.last
    }

    /// What is to be written at `off`.
    fn encrypt(&self, off: u64, piece: Bytes) -> Bytes {
        let mut out = AlignedBuf::take(piece.len());
        let to = out.as_mut_slice().as_chunks_mut().0;
        for (block, (from, to)) in (off / BLOCK..).zip(piece.as_chunks().0.iter().zip(to)) {
            match self.is_plain(block) {
                true => to.copy_from_slice(from),
                false => self.xts.encrypt(block, from, to),
            }
        }
        out.into()
    }

    /// What was read at `off`.
    fn decrypt(&self, off: u64, mut buffer: AlignedBuf) -> AlignedBuf {
        let all = buffer.as_mut_slice().as_chunks_mut().0;
        for (block, bytes) in (off / BLOCK..).zip(all) {
            if !self.is_plain(block) {
                self.xts.decrypt(block, bytes);
            }
        }
        buffer
    }
}

impl Device for Encrypted {
    fn size(&self) -> u64 {
        self.drive.size()
    }

    fn read(&self, off: u64, len: usize) -> Done<AlignedBuf> {
        self.decrypted(off, len, self.drive.read(off, len))
    }

    fn read_many(&self, places: &[(u64, usize)]) -> Vec<Done<AlignedBuf>> {
        let reads = places.iter().zip(self.drive.read_many(places));
        reads.map(|(&(off, len), read)| self.decrypted(off, len, read)).collect()
    }

    fn write(&self, off: u64, mut pieces: Vec<Bytes>) -> Done<()> {
        let mut at = off;
        for piece in &mut pieces {
            let len = piece.len() as u64;
            *piece = self.cipher.encrypt(at, std::mem::take(piece));
            at += len;
        }
        self.drive.write(off, pieces)
    }

    fn commit(&self, off: u64, piece: Bytes) -> Done<()> {
        self.drive.commit(off, self.cipher.encrypt(off, piece))
    }

    fn flush(&self) -> Done<()> {
        self.drive.flush()
    }

    fn discard_rate(&self) -> u64 {
        self.drive.discard_rate()
    }

    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        self.drive.discard(off, len)
    }

    fn is_simulated(&self) -> bool {
        self.drive.is_simulated()
    }

    fn takes_long(&self, len: usize) -> bool {
        len > LONG && !self.is_simulated()
    }

    fn stalled(&self) -> Duration {
        self.drive.stalled()
    }
}
