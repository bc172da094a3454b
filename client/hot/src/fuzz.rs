//! Doors to what reads the drive, for `tests/fuzz`. Magic numbers and checksums of what comes are
//! put right first. Each says whether it took what it was given for good.

use crate::list::{Entry, List};
use crate::piece::Piece;
use crate::record::{self, BLOCK_LEN};
use weft_proto::SegmentId;

const STORE: u64 = 7;
const ROOM: u32 = 1000;
const PIECE: Piece =
    Piece { segment: SegmentId { session: weft_proto::SessionId(1), seq: 2 }, number: 3 };

/// A record and a list that are taken.
pub fn seeds() -> [Vec<u8>; 2] {
    let entry = |number, at| Entry { piece: Piece { number, ..PIECE }, len: 5000, at };
    let list = List { generation: 9, entries: vec![entry(0, 0), entry(1, 3)] };
    [record::encode(PIECE, &[5; 5000]).to_vec(), list.encode(STORE)]
}

/// A record, of which all blocks that there are are looked at.
pub fn record(bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    let Some((head, body)) = bytes.split_at_mut_checked(BLOCK_LEN) else { return false };
    let body = &body[..body.len() - body.len() % BLOCK_LEN];
    let len = u32::from_le_bytes([head[28], head[29], head[30], head[31]]);
    record::put_right(head);
    (0..3).any(|first| record::is_good(PIECE, len, head, first, body))
}

/// What is in a region.
pub fn list(bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    List::put_right(STORE, &mut bytes);
    let Some(list) = List::decode(STORE, &bytes, ROOM) else { return false };
    let again = list.encode(STORE);
    assert_eq!(List::decode(STORE, &again, ROOM), Some(list));
    true
}
