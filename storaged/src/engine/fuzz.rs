//! Doors to what reads bytes from a drive, for `tests/fuzz`. Each says whether it took what it was
//! given for good; what it took it must write as it read it.
//!
//! Magic numbers, salts and checksums are put right first: nothing would get past them.

use super::entry::{Extent, JournalEntry, Place};
use super::journal::{self, Change};
use super::scrub::Scrub;
use super::superblock::Superblock;
use super::{BLOCK, header, index};
use weft_proto::{ChunkId, SegmentId, SessionId};

const SALT: u64 = 0x1122_3344_5566_7788;

/// Whole blocks, at most so many, with zeros at the end.
fn blocks(bytes: &[u8], most: usize) -> Vec<u8> {
    let len = bytes.len().div_ceil(BLOCK as usize).clamp(1, most) * BLOCK as usize;
    let mut blocks = bytes[..bytes.len().min(len)].to_vec();
    blocks.resize(len, 0);
    blocks
}

/// A copy of the superblock.
pub fn superblock(bytes: &[u8]) -> bool {
    let mut block = blocks(bytes, 1);
    Superblock::seal(&mut block);
    let Ok(read) = Superblock::decode(&block) else { return false };
    let again = Superblock::decode(read.encode().as_ref());
    assert_eq!(again.as_ref(), Ok(&read), "it is written as it was read");
    let (first, end) = (read.data_block, read.data_end);
    assert!(0 < first && first < end && end < read.size / BLOCK, "it is not inside of itself");
    true
}

/// The header of a chunk, wherever it says that it lies.
pub fn header(bytes: &[u8]) -> bool {
    let mut found = blocks(bytes, 64);
    let Some(at) = header::seal(SALT, &mut found) else { return false };
    let Some(blocks) = header::peek_blocks(SALT, &found) else { return false };
    let Some(whole) = found.get_mut(..(blocks * BLOCK) as usize) else { return false };
    header::seal(SALT, whole);
    let Some((id, entry)) = header::decode(SALT, at, whole) else { return false };
    let written = header::encode(SALT, id, &entry);
    assert_eq!(header::decode(SALT, at, written.as_ref()), Some((id, entry)));
    true
}

/// A record of the journal.
pub fn journal(bytes: &[u8]) -> bool {
    let mut found = blocks(bytes, 20);
    journal::seal(SALT, &mut found);
    let Some((record, blocks)) = journal::decode(SALT, &found) else { return false };
    assert!(0 < blocks && blocks * BLOCK <= found.len() as u64, "it is longer than what it is of");
    let mut changes = Vec::new();
    record.changes.iter().for_each(|change| change.encode(&mut changes));
    let count = record.changes.len() as u32;
    let written = journal::encode(SALT, record.number, count, &changes);
    assert_eq!(journal::decode(SALT, written.as_ref()), Some((record, blocks)));
    true
}

/// What the index has under a key of any kind.
pub fn index(bytes: &[u8]) -> bool {
    let _ = Scrub::decode(bytes);
    let _ = index::decode_applied(bytes);
    if let Some(id) = index::parse_key(bytes) {
        assert_eq!(index::key(id), bytes, "it is written as it was read");
    }
    let Some(entry) = JournalEntry::decode(bytes) else { return false };
    assert_eq!(JournalEntry::decode(&entry.encode()).as_ref(), Some(&entry));
    let Some(place) = JournalEntry::decode_place(&mut &bytes[..]) else {
        panic!("the whole was read, and not where it lies");
    };
    let runs = place.locate(0, place.length);
    assert_eq!(runs.iter().map(|run| run.1).sum::<u64>(), place.length, "{place:?}");
    true
}

/// One of each: a superblock, a header, a record, a value of the index.
pub fn seeds() -> [Vec<u8>; 4] {
    let id = ChunkId { segment: SegmentId { session: SessionId(3), seq: 7 }, shard: 2 };
    let extents = vec![Extent { block: 70, blocks: 2 }, Extent { block: 90, blocks: 2 }];
    let place = Place { stamp: 9, length: 3 * BLOCK, extents };
    let entry = JournalEntry { place: place.clone(), checksums: vec![1, 2, 3] };
    let mut changes = Vec::new();
    Change::Put { id, place }.encode(&mut changes);
    Change::Delete { id }.encode(&mut changes);
    [
        Superblock::new(64 << 20).encode().as_ref()[..256].to_vec(),
        header::encode(SALT, id, &entry).as_ref()[..256].to_vec(),
        journal::encode(SALT, 5, 2, &changes).as_ref()[..256].to_vec(),
        entry.encode(),
    ]
}
