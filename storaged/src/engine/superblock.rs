//! Who a target is and how it is divided. Two copies, in its first and its last block.
//!
//! They are written twice in the life of a target: when it is formatted, and when it joins a
//! cluster, before which it holds no chunks. The first is durable before the second is touched. So
//! the first copy is never older than the last, and one that says which cluster the target belongs
//! to is never older than any.

use super::BLOCK;
use super::device::Device;
use super::entry::{take, take_u64};
use super::key::KeyCheck;
use std::io;
use weft_net::AlignedBuf;
use weft_proto::{Error, ErrorKind, Result, TargetId, Uuid};

const MAGIC: [u8; 8] = *b"WEFTTGT\n";
/// Format versions: with more in it, builds that do not know that would take a target for what it
/// is not.
const VERSION: u32 = 1;
const ENCRYPTED: u32 = 2;
/// Most bytes of a record of the journal, which holds one at least.
pub(super) const MAX_RECORD: usize = 16 * BLOCK as usize;
/// AES-256-XTS over blocks, of keys that `key` makes.
const AES_256_XTS: u32 = 1;
const CRC_AT: usize = BLOCK as usize - 4;

/// Little-endian, one block, zeros between the last field and the checksum:
///
/// ```text
///    0  8  magic "WEFTTGT\n"
///    8  4  format version: 1, or 2 if the target is encrypted
///   12  4  target id (0 until joined)
///   16 16  uuid of the target
///   32 16  uuid of the cluster (zeros until joined)
///   48  8  size of the target, bytes
///   56  8  sequence: the copy with the greater one holds
///   64  8  salt: a random number in all that belongs to this format of this target
///   72  8  first block of the journal
///   80  8  blocks of the journal
///   88  8  first block for chunks
///   96  8  end of the blocks for chunks
///  104  4  if it is encrypted: how (1: all blocks but these two by AES-256-XTS)
///  108 32  if it is encrypted: by which a wrong key is told
/// 4092  4  CRC-32 of bytes 0..4092
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    pub target: TargetId,
    pub uuid: Uuid,
    pub cluster: Uuid,
    pub size: u64,
    pub sequence: u64,
    pub salt: u64,
    pub journal_block: u64,
    pub journal_blocks: u64,
    pub data_block: u64,
    pub data_end: u64,
    /// It is encrypted, and by this a wrong key is told.
    pub key_check: Option<KeyCheck>,
}

impl Superblock {
    /// Smallest target, in bytes.
    pub const MIN_SIZE: u64 = 16 << 20;

    /// A fresh target of `size` bytes (at least [`Self::MIN_SIZE`]).
    pub fn new(size: u64) -> Self {
        let size = size / BLOCK * BLOCK;
        let journal_blocks = (size / BLOCK / 64).clamp(64, 4096);
        Self {
            target: TargetId(0),
            uuid: Uuid(rand::random()),
            cluster: Uuid::NIL,
            size,
            sequence: 1,
            salt: rand::random(),
            journal_block: 1,
            journal_blocks,
            data_block: 1 + journal_blocks,
            data_end: size / BLOCK - 1,
            key_check: None,
        }
    }

    /// The block's bytes.
    pub fn encode(&self) -> AlignedBuf {
        let version = if self.key_check.is_some() { ENCRYPTED } else { VERSION };
        let mut bytes = Vec::with_capacity(140);
        bytes.extend(MAGIC);
        bytes.extend(version.to_le_bytes());
        bytes.extend(self.target.0.to_le_bytes());
        bytes.extend(self.uuid.0);
        bytes.extend(self.cluster.0);
        for field in [
            self.size,
            self.sequence,
            self.salt,
            self.journal_block,
            self.journal_blocks,
            self.data_block,
            self.data_end,
        ] {
            bytes.extend(field.to_le_bytes());
        }
        if let Some(check) = &self.key_check {
            bytes.extend(AES_256_XTS.to_le_bytes());
            bytes.extend(check);
        }
        let mut buffer = AlignedBuf::take(BLOCK as usize);
        let out = buffer.as_mut_slice();
        out[..bytes.len()].copy_from_slice(&bytes);
        out[bytes.len()..].fill(0);
        let crc = crc32fast::hash(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        buffer
    }

    /// Puts magic and checksum right.
    #[cfg(feature = "fuzz")]
    pub(super) fn seal(block: &mut [u8]) {
        super::entry::set(block, 0, MAGIC);
        let crc = crc32fast::hash(&block[..CRC_AT]);
        super::entry::set(block, CRC_AT, crc.to_le_bytes());
    }

    /// Reads a copy. The error says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut input = bytes;
        let short = || "it is too short".to_string();
        if take(&mut input) != Some(MAGIC) {
            return Err("it has no Weft superblock".into());
        }
        let crc = bytes.get(CRC_AT..BLOCK as usize).ok_or_else(short)?;
        if crc32fast::hash(&bytes[..CRC_AT]).to_le_bytes() != crc {
            return Err("the superblock's checksum does not match".into());
        }
        let version = u32::from_le_bytes(take(&mut input).ok_or_else(short)?);
        if version != VERSION && version != ENCRYPTED {
            return Err(format!(
                "it has format version {version}, this build knows {VERSION} and {ENCRYPTED}"
            ));
        }
        let target = TargetId(u32::from_le_bytes(take(&mut input).ok_or_else(short)?));
        let uuid = Uuid(take(&mut input).ok_or_else(short)?);
        let cluster = Uuid(take(&mut input).ok_or_else(short)?);
        let mut field = || take_u64(&mut input).ok_or_else(short);
        let mut it = Self {
            target,
            uuid,
            cluster,
            size: field()?,
            sequence: field()?,
            salt: field()?,
            journal_block: field()?,
            journal_blocks: field()?,
            data_block: field()?,
            data_end: field()?,
            key_check: None,
        };
        if version == ENCRYPTED {
            let how = u32::from_le_bytes(take(&mut input).ok_or_else(short)?);
            if how != AES_256_XTS {
                return Err(format!(
                    "it is encrypted in a way ({how}) that this build does not know"
                ));
            }
            it.key_check = Some(take(&mut input).ok_or_else(short)?);
        }
        let blocks = it.size / BLOCK;
        let sound = it.size.is_multiple_of(BLOCK)
            && it.journal_block >= 1
            // One that does not hold the longest record would be waited for without end.
            && (MAX_RECORD as u64 / BLOCK..=1 << 20).contains(&it.journal_blocks)
            && it.journal_block.checked_add(it.journal_blocks).is_some_and(|e| e <= it.data_block)
            && it.data_block < it.data_end
            && it.data_end < blocks;
        if sound { Ok(it) } else { Err("the superblock's fields contradict each other".into()) }
    }
}

/// A copy as it is found.
enum Copy {
    Good(Superblock),
    /// What was read is none.
    Bad(String),
    Unreadable(io::Error),
}

impl Copy {
    fn read(device: &dyn Device, at: u64) -> Self {
        match device.read(at, BLOCK as usize).block().map(|b| Superblock::decode(b.as_ref())) {
            Ok(Ok(superblock)) => Self::Good(superblock),
            Ok(Err(what)) => Self::Bad(what),
            Err(e) => Self::Unreadable(e),
        }
    }
}

impl Superblock {
    /// The superblock of a drive, whose copies are repaired from each other; the inner error says
    /// why there is none. Blocks. Errors name the drive: `Invalid`, it is not the whole target, or
    /// parts of two; `Io`, no copy could be read that is known to hold.
    pub fn find(device: &dyn Device, name: &str) -> Result<Result<Self, String>> {
        let refuse = |what: String| Err(Error::new(ErrorKind::Invalid, format!("{name}: {what}")));
        let io = |what: String| Error::new(ErrorKind::Io, format!("{name}: superblock: {what}"));
        let size = device.size();
        let first = Copy::read(device, 0);
        let end = match &first {
            Copy::Good(first) => first.size.min(size),
            _ => size,
        };
        let last = Copy::read(device, end - BLOCK);
        // What counts, where the other is, and why that cannot be read.
        let (holds, other, unreadable) = match (first, last) {
            (Copy::Good(a), _) if a.size > size => {
                return refuse(format!(
                    "it was formatted with {} bytes and has {size} now: it was truncated; restore \
                     its size or replace the target",
                    a.size
                ));
            }
            (Copy::Good(a), Copy::Good(b)) if a.uuid != b.uuid => {
                return refuse(format!(
                    "its superblocks belong to two targets, {} and {}",
                    a.uuid, b.uuid
                ));
            }
            (Copy::Good(a), Copy::Good(b)) if a.sequence == b.sequence => (a, None, None),
            (Copy::Good(a), Copy::Good(b)) if a.sequence < b.sequence => (b, Some(0), None),
            (Copy::Good(a), Copy::Good(_) | Copy::Bad(_)) => (a, Some(end - BLOCK), None),
            (Copy::Good(a), Copy::Unreadable(e)) => (a, Some(end - BLOCK), Some(e)),
            (Copy::Bad(_), Copy::Good(b)) if b.size != size => {
                return refuse(format!(
                    "its last superblock is for {} bytes and it has {size}",
                    b.size
                ));
            }
            (Copy::Bad(_), Copy::Good(b)) => (b, Some(0), None),
            (Copy::Unreadable(e), Copy::Good(b)) if b.size == size && b.cluster != Uuid::NIL => {
                (b, Some(0), Some(e))
            }
            (Copy::Unreadable(e), Copy::Good(_)) => {
                return Err(io(format!(
                    "the first copy cannot be read: {e}; the last may be older"
                )));
            }
            (Copy::Bad(what), Copy::Bad(_)) => return Ok(Err(what)),
            (Copy::Unreadable(e), _) | (_, Copy::Unreadable(e)) => return Err(io(e.to_string())),
        };
        if size > holds.size {
            tracing::warn!("{name} has {size} bytes, of which its format uses {}", holds.size);
        }
        let Some(at) = other else { return Ok(Ok(holds)) };
        match (device.commit(at, holds.encode().into()).block(), unreadable) {
            (Ok(()), None) => tracing::warn!(
                "{name}: one superblock was damaged or stale; it is repaired from the other"
            ),
            (Ok(()), Some(e)) => tracing::error!(
                "{name}: the superblock at byte {at} could not be read, {e}; it is written anew \
                 from the other; \
                 replace the drive if there is more of this"
            ),
            (Err(e), None) => return Err(io(e.to_string())),
            (Err(why), Some(e)) => tracing::error!(
                "{name}: the superblock at byte {at} can neither be read, {e}, nor written anew, \
                 {why}; the \
                 other one is the last: replace the drive"
            ),
        }
        Ok(Ok(holds))
    }
}

/// The block of the first copy of a target of `size` bytes; of the last, if that cannot be read.
pub(super) async fn read_any(device: &dyn Device, size: u64) -> io::Result<AlignedBuf> {
    match device.read(0, BLOCK as usize).wait().await {
        Ok(first) => Ok(first),
        Err(e) => device.read(size - BLOCK, BLOCK as usize).wait().await.map_err(|_| e),
    }
}

/// Writes both copies, one durable before the other is touched.
pub(super) async fn write(device: &dyn Device, superblock: &Superblock) -> io::Result<()> {
    device.commit(0, superblock.encode().into()).wait().await?;
    device.commit(superblock.size - BLOCK, superblock.encode().into()).wait().await
}

#[cfg(test)]
mod tests;
