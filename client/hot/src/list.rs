//! What is in a region that is full, as it stands at the region's end: read at start, so that the
//! records need not be.
//!
//! A head of 32 bytes: [`MAGIC`], the store's id (8), the region's generation (8), the number of
//! entries (4), CRC-32 of head and entries with zeros here (4). Each entry has 32: the segment's id
//! (16), number (4) and length (4) of the piece, the block that its record begins at (4), zeros.
//! Numbers are little-endian.

use crate::piece::{PIECE, Piece};
use crate::record;
use weft_proto::SegmentId;

/// Room for a list at the end of a region, bytes.
pub const LIST: u64 = 256 << 10;
/// Most entries of one.
pub const MAX_ENTRIES: usize = (LIST as usize - HEAD) / ENTRY;

const MAGIC: [u8; 8] = *b"WEFTHOTL";
const HEAD: usize = 32;
const ENTRY: usize = 32;

/// A piece in a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub piece: Piece,
    /// Bytes.
    pub len: u32,
    /// The block of the region that its record begins at.
    pub at: u32,
}

/// What a region has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct List {
    /// Grows with each region that is filled.
    pub generation: u64,
    pub entries: Vec<Entry>,
}

impl List {
    /// Bytes that a list takes whose head begins with these; `None` if they are none of this store.
    pub fn len(store: u64, head: &[u8]) -> Option<usize> {
        let head = head.first_chunk::<HEAD>()?;
        let count = u32::from_le_bytes(*head[24..].first_chunk()?) as usize;
        let ours = head[..8] == MAGIC && head[8..16] == store.to_le_bytes();
        (ours && count <= MAX_ENTRIES).then_some(HEAD + count * ENTRY)
    }

    pub fn encode(&self, store: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + self.entries.len() * ENTRY);
        out.extend(MAGIC);
        out.extend(store.to_le_bytes());
        out.extend(self.generation.to_le_bytes());
        out.extend((self.entries.len() as u32).to_le_bytes());
        out.extend([0; 4]);
        for Entry { piece, len, at } in &self.entries {
            out.extend(piece.segment.to_bytes());
            out.extend([piece.number, *len, *at, 0].map(u32::to_le_bytes).as_flattened());
        }
        put_sum(&mut out);
        out
    }

    /// Makes `bytes` such that they are read on.
    #[cfg(feature = "fuzz")]
    pub fn put_right(store: u64, bytes: &mut [u8]) {
        let Some(head) = bytes.first_chunk_mut::<HEAD>() else { return };
        head[..8].copy_from_slice(&MAGIC);
        head[8..16].copy_from_slice(&store.to_le_bytes());
        if let Some(len) = Self::len(store, bytes).filter(|len| *len <= bytes.len()) {
            put_sum(&mut bytes[..len]);
        }
    }

    /// Reverses [`Self::encode`], of a region with so many blocks for records. `None`: it is not
    /// whole, or of another store.
    pub fn decode(store: u64, bytes: &[u8], room: u32) -> Option<Self> {
        let bytes = bytes.get(..Self::len(store, bytes)?)?;
        let mut summed = bytes.to_vec();
        let sum: [u8; 4] = bytes[28..HEAD].try_into().ok()?;
        summed[28..HEAD].fill(0);
        if u32::from_le_bytes(sum) != crc32fast::hash(&summed) {
            return None;
        }
        // It grows by one at a time: no store comes near.
        let generation = u64::from_le_bytes(*bytes[16..].first_chunk()?);
        if generation > u64::MAX / 2 {
            return None;
        }
        let entry = |entry: &[u8]| {
            let segment = SegmentId::from_bytes(entry.first_chunk()?);
            let number = |at: usize| Some(u32::from_le_bytes(*entry.get(at..)?.first_chunk()?));
            let (number, len, at) = (number(16)?, number(20)?, number(24)?);
            let end = at.checked_add(record::blocks(len.min(PIECE as u32)))?;
            let fits = (1..=PIECE).contains(&len.into()) && end <= room;
            fits.then_some(Entry { piece: Piece { segment, number }, len, at })
        };
        let entries = bytes[HEAD..].chunks_exact(ENTRY).map(entry).collect::<Option<_>>()?;
        Some(Self { generation, entries })
    }
}

/// The checksum, which is written last.
fn put_sum(list: &mut [u8]) {
    list[28..HEAD].fill(0);
    let sum = crc32fast::hash(list);
    list[28..HEAD].copy_from_slice(&sum.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_proto::SessionId;

    const ROOM: u32 = 10_000;

    fn entries() -> impl Strategy<Value = Vec<Entry>> {
        let entry = (any::<(u64, u64, u32)>(), 1..=PIECE as u32, 0..ROOM - 129);
        let entry = entry.prop_map(|((session, seq, number), len, at)| {
            let segment = SegmentId { session: SessionId(session), seq };
            Entry { piece: Piece { segment, number }, len, at }
        });
        prop::collection::vec(entry, 0..60)
    }

    proptest! {
        #[test]
        fn a_list_reads_as_it_was_written_or_not_at_all(
            entries in entries(),
            (store, generation) in (any::<u64>(), 0..=u64::MAX / 2),
            (at, bit) in (0usize..4000, 0u8..8),
        ) {
            let list = List { generation, entries };
            let mut bytes = list.encode(store);
            bytes.extend([7; 50]);
            prop_assert_eq!(List::decode(store, &bytes, ROOM), Some(list.clone()));
            prop_assert_eq!(List::decode(store ^ 1, &bytes, ROOM), None);
            let len = List::len(store, &bytes).unwrap();
            prop_assert_eq!(List::decode(store, &bytes[..len - 1], ROOM), None);
            bytes[at % len] ^= 1 << bit;
            prop_assert_eq!(List::decode(store, &bytes, ROOM), None);
        }

        #[test]
        fn garbage_is_no_list(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(List::decode(0, &bytes, ROOM), None);
            if bytes.len() >= 16 {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..16].fill(0);
                prop_assert_eq!(List::decode(0, &bytes, ROOM), None);
            }
        }
    }

    #[test]
    fn what_lies_outside_of_its_region_is_no_list() {
        let piece = Piece { segment: SegmentId::default(), number: 0 };
        for (len, at) in [(0, 0), (PIECE as u32 + 1, 0), (4096, ROOM - 1), (1, u32::MAX)] {
            let list = List { generation: 1, entries: vec![Entry { piece, len, at }] };
            assert_eq!(List::decode(1, &list.encode(1), ROOM), None, "{len} at {at}");
        }
    }
}
