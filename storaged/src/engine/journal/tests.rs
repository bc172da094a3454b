//! Tests of `journal`.

use super::super::entry::Extent;
use super::*;
use proptest::prelude::*;
use weft_proto::{SegmentId, SessionId};

fn id(seq: u64) -> ChunkId {
    ChunkId { segment: SegmentId { session: SessionId(1), seq }, shard: 2 }
}

fn bytes_of(changes: &[Change]) -> Vec<u8> {
    let mut out = Vec::new();
    changes.iter().for_each(|c| c.encode(&mut out));
    out
}

#[test]
fn the_record_is_this_format() {
    let changes = [
        Change::Delete { id: id(5) },
        Change::Put {
            id: id(6),
            place: Place { stamp: 1, length: 4096, extents: vec![Extent { block: 8, blocks: 2 }] },
        },
    ];
    let buffer = encode(0xabcd, 77, 2, &bytes_of(&changes));
    let bytes = buffer.as_ref();
    assert_eq!(bytes.len(), 4096);
    #[rustfmt::skip]
    assert_eq!(&bytes[..32], [
        b'W', b'E', b'F', b'T', b'J', b'N', b'L', b'\n',
        0xcd, 0xab, 0, 0, 0, 0, 0, 0,
        77, 0, 0, 0, 0, 0, 0, 0,
        2, 0, 0, 0,  65, 0, 0, 0,
    ]);
    #[rustfmt::skip]
    assert_eq!(&bytes[36..101], [
        2,  0, 0, 0, 0, 0, 0, 0, 1,  0, 0, 0, 0, 0, 0, 0, 5,  2,
        1,  0, 0, 0, 0, 0, 0, 0, 1,  0, 0, 0, 0, 0, 0, 0, 6,  2,
        1, 0, 0, 0, 0, 0, 0, 0,  0, 0x10, 0, 0, 0, 0, 0, 0,  1,
        8, 0, 0, 0, 0, 0, 0, 0,  2, 0, 0, 0,
    ]);
    let (record, blocks) = decode(0xabcd, bytes).unwrap();
    assert_eq!((record.number, blocks), (77, 1));
    assert_eq!(record.changes, changes);
    assert!(decode(0xabce, bytes).is_none(), "another target's salt");
}

proptest! {
    #[test]
    fn damage_is_noticed(count in 1usize..300, at: prop::sample::Index, flip in 1u8..=255) {
        let changes: Vec<_> = (0..count).map(|i| Change::Delete { id: id(i as u64) }).collect();
        let mut bytes = encode(1, 2, count as u32, &bytes_of(&changes)).as_ref().to_vec();
        let used = HEAD + count * Change::DELETE_LEN;
        bytes[at.index(used)] ^= flip;
        prop_assert!(decode(1, &bytes).is_none());
        let _ = decode(1, &bytes[..at.index(bytes.len())]);
    }

    #[test]
    fn the_ring_never_gives_out_live_blocks(ops in prop::collection::vec((1u64..9, 0u64..3),
        1..300)) {
        let mut ring = Ring::new(32);
        let mut live: VecDeque<(u64, u64, u64)> = VecDeque::new();
        let mut number = 0;
        for (blocks, release) in ops {
            match ring.reserve(number, blocks) {
                Some(at) => {
                    prop_assert!(at + blocks <= 32);
                    for &(_, s, l) in &live {
                        prop_assert!(at + blocks <= s || s + l <= at);
                    }
                    live.push_back((number, at, blocks));
                    number += 1;
                }
                None => prop_assert!(!live.is_empty()),
            }
            for _ in 0..release {
                if let Some((n, _, _)) = live.pop_front() {
                    ring.release(n);
                }
            }
            prop_assert_eq!(ring.used, live.iter().map(|l| l.2).sum::<u64>());
        }
    }
}
