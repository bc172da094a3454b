//! The log of puts and deletes on the target: one record for each group commit, in a ring.
//!
//! Invariants: records have consecutive numbers; a record is written only after the one before it
//! is durable, so that in a crash only the last can be torn; a record is overwritten only after the
//! index holds its changes durably. A reader takes whole valid records only and orders them by
//! number.

use super::BLOCK;
use super::device::Device;
use super::entry::{Place, take, take_chunk, take_u64};
use super::superblock::{MAX_RECORD, Superblock};
use super::unread::Salvage;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use weft_net::AlignedBuf;
use weft_proto::{ChunkId, Result};

const MAGIC: [u8; 8] = *b"WEFTJNL\n";
const CRC_AT: usize = 32;
/// Bytes of a record before its changes.
pub(super) const HEAD: usize = 36;
/// Bytes read at once in a scan; holds the longest record several times.
const SCAN: u64 = 1 << 20;

/// One put or delete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Change {
    Put { id: ChunkId, place: Place },
    Delete { id: ChunkId },
}

impl Change {
    const PUT: u8 = 1;
    const DELETE: u8 = 2;
    /// Bytes of a delete.
    pub const DELETE_LEN: usize = 1 + ChunkId::LEN;

    /// Kind u8 (1 put, 2 delete), the chunk id, and for a put its place.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Put { id, place } => {
                out.push(Self::PUT);
                out.extend(id.to_bytes());
                place.encode(out);
            }
            Self::Delete { id } => {
                out.push(Self::DELETE);
                out.extend(id.to_bytes());
            }
        }
    }

    fn decode(input: &mut &[u8]) -> Option<Self> {
        let kind = take::<1>(input)?[0];
        let id = take_chunk(input)?;
        match kind {
            Self::PUT => Some(Self::Put { id, place: Place::decode(input)? }),
            Self::DELETE => Some(Self::Delete { id }),
            _ => None,
        }
    }
}

/// The changes of one group commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub number: u64,
    pub changes: Vec<Change>,
}

/// The blocks of a record. Little-endian, padded with zeros:
///
/// ```text
///   0  8  magic "WEFTJNL\n"
///   8  8  salt of the target
///  16  8  record number
///  24  4  number of changes
///  28  4  bytes of changes
///  32  4  CRC-32 of bytes 0..32 and of the changes
///  36  .  changes
/// ```
pub(super) fn encode(salt: u64, number: u64, count: u32, changes: &[u8]) -> AlignedBuf {
    let mut head = Vec::with_capacity(HEAD);
    head.extend(MAGIC);
    head.extend(salt.to_le_bytes());
    head.extend(number.to_le_bytes());
    head.extend(count.to_le_bytes());
    head.extend((changes.len() as u32).to_le_bytes());
    head.extend(crc(&head, changes).to_le_bytes());

    let len = HEAD + changes.len();
    let mut buffer = AlignedBuf::take(len.next_multiple_of(BLOCK as usize));
    let out = buffer.as_mut_slice();
    out[..HEAD].copy_from_slice(&head);
    out[HEAD..len].copy_from_slice(changes);
    out[len..].fill(0);
    buffer
}

/// Reads the record that begins here, and how many blocks it takes.
pub(super) fn decode(salt: u64, bytes: &[u8]) -> Option<(Record, u64)> {
    let mut input = bytes;
    if take(&mut input)? != MAGIC || take_u64(&mut input)? != salt {
        return None;
    }
    let number = take_u64(&mut input)?;
    let count = u32::from_le_bytes(take(&mut input)?) as usize;
    let len = u32::from_le_bytes(take(&mut input)?) as usize;
    let stored = u32::from_le_bytes(take(&mut input)?);
    let mut body = input.get(..len)?;
    if HEAD + len > MAX_RECORD || crc(&bytes[..CRC_AT], body) != stored {
        return None;
    }
    let blocks = (HEAD + len).div_ceil(BLOCK as usize) as u64;
    let mut changes = Vec::with_capacity(count.min(len / Change::DELETE_LEN));
    for _ in 0..count {
        changes.push(Change::decode(&mut body)?);
    }
    body.is_empty().then_some((Record { number, changes }, blocks))
}

/// Puts magic, salt and checksum right.
#[cfg(feature = "fuzz")]
pub(super) fn seal(salt: u64, bytes: &mut [u8]) {
    super::entry::set(bytes, 0, MAGIC);
    super::entry::set(bytes, 8, salt.to_le_bytes());
    let len = super::entry::word(bytes, 24).map_or(0, |word| word >> 32) as usize;
    if let Some(changes) = bytes.get(HEAD..).and_then(|rest| rest.get(..len)) {
        let crc = crc(&bytes[..CRC_AT], changes);
        super::entry::set(bytes, CRC_AT, crc.to_le_bytes());
    }
}

fn crc(head: &[u8], changes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(changes);
    hasher.finalize()
}

/// All valid records in the journal that can be read, by number; `salvage` notes what cannot.
/// Blocks the thread. Errors: the drive's.
pub(super) fn scan(
    salvage: &mut Salvage<'_>,
    superblock: &Superblock,
) -> Result<BTreeMap<u64, Record>> {
    let start = superblock.journal_block * BLOCK;
    let end = start + superblock.journal_blocks * BLOCK;
    let mut records = BTreeMap::new();
    let mut at = start;
    while at < end {
        let len = SCAN.min(end - at);
        // A record that begins near the end of this piece is read again with the next.
        let last = at + if at + len == end { len } else { len - MAX_RECORD as u64 };
        let mut next = last;
        for (start, bytes) in salvage.read(at, len)? {
            let mut off = 0;
            while start + off < last && off < bytes.len() as u64 {
                match decode(superblock.salt, &bytes[off as usize..]) {
                    Some((record, blocks)) => {
                        records.insert(record.number, record);
                        off += blocks * BLOCK;
                    }
                    None => off += BLOCK,
                }
            }
            if start < last {
                next = next.max(start + off);
            }
        }
        at = next;
    }
    Ok(records)
}

/// Writes blocks of the journal anew that could not be read, which drives heal by using others in
/// their place. What they held counts no more by now. Blocks the thread. Errors: the drive's.
pub(super) fn mend(device: &dyn Device, blocks: &BTreeSet<u64>) -> io::Result<()> {
    for block in blocks {
        let mut zeros = AlignedBuf::take(BLOCK as usize);
        zeros.as_mut_slice().fill(0);
        device.commit(block * BLOCK, zeros.into()).block()?;
        device.read(block * BLOCK, BLOCK as usize).block()?;
    }
    Ok(())
}

/// Which blocks of the journal the next record may take.
pub(super) struct Ring {
    blocks: u64,
    head: u64,
    /// (number, first block, blocks) of the records that the index does not hold durably yet.
    live: VecDeque<(u64, u64, u64)>,
    used: u64,
}

impl Ring {
    pub fn new(blocks: u64) -> Self {
        Self { blocks, head: 0, live: VecDeque::new(), used: 0 }
    }

    /// Room for record `number`: the first of its blocks within the journal, or `None` until older
    /// records are released.
    pub fn reserve(&mut self, number: u64, blocks: u64) -> Option<u64> {
        let to_end = self.blocks - self.head;
        let at = match self.live.front() {
            None if to_end >= blocks => Some(self.head),
            None => Some(0).filter(|_| self.blocks >= blocks),
            Some(&(_, oldest, _)) if self.head > oldest => {
                if to_end >= blocks {
                    Some(self.head)
                } else {
                    Some(0).filter(|_| oldest >= blocks)
                }
            }
            Some(&(_, oldest, _)) => Some(self.head).filter(|_| oldest - self.head >= blocks),
        }?;
        self.head = at + blocks;
        self.live.push_back((number, at, blocks));
        self.used += blocks;
        Some(at)
    }

    /// The index holds everything up to record `number`.
    pub fn release(&mut self, number: u64) {
        while let Some(&(n, _, blocks)) = self.live.front()
            && n <= number
        {
            self.live.pop_front();
            self.used -= blocks;
        }
    }

    /// Time to make the index durable.
    pub fn half_full(&self) -> bool {
        self.used * 2 > self.blocks
    }
}

#[cfg(test)]
mod tests;
