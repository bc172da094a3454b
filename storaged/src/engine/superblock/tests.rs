//! A superblock as it was written, and bytes that are none.

use super::*;
use proptest::prelude::*;

fn sample() -> Superblock {
    Superblock {
        target: TargetId(3),
        uuid: Uuid([0x11; 16]),
        cluster: Uuid([0x22; 16]),
        sequence: 9,
        salt: 0x0123_4567_89ab_cdef,
        ..Superblock::new(64 << 20)
    }
}

#[test]
fn the_superblock_is_this_format() {
    let it = sample();
    let bytes = it.encode();
    let bytes = bytes.as_ref();
    assert_eq!(&bytes[..16], b"WEFTTGT\n\x01\0\0\0\x03\0\0\0");
    assert_eq!(&bytes[16..48], [[0x11; 16], [0x22; 16]].concat());
    #[rustfmt::skip]
    assert_eq!(&bytes[48..104], [
        0, 0, 0, 4, 0, 0, 0, 0,
        9, 0, 0, 0, 0, 0, 0, 0,
        0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01,
        1, 0, 0, 0, 0, 0, 0, 0,
        0, 1, 0, 0, 0, 0, 0, 0,
        1, 1, 0, 0, 0, 0, 0, 0,
        0xff, 0x3f, 0, 0, 0, 0, 0, 0,
    ]);
    assert!(bytes[104..CRC_AT].iter().all(|&b| b == 0));
    assert_eq!(Superblock::decode(bytes).unwrap(), it);
}

#[test]
fn that_it_is_encrypted_makes_it_another_format() {
    let plain = sample();
    let it = Superblock { key_check: Some([0x33; 32]), ..plain.clone() };
    let (bytes, plain) = (it.encode(), plain.encode());
    let (bytes, plain) = (bytes.as_ref(), plain.as_ref());
    assert_eq!(&bytes[..12], b"WEFTTGT\n\x02\0\0\0", "older builds refuse it");
    assert_eq!(bytes[12..104], plain[12..104]);
    assert_eq!(bytes[104..108], [1, 0, 0, 0]);
    assert_eq!(bytes[108..140], [0x33; 32]);
    assert!(bytes[140..CRC_AT].iter().all(|&b| b == 0));
    assert_eq!(Superblock::decode(bytes).unwrap(), it);
    // In another way than we know.
    let mut other = bytes.to_vec();
    other[104] = 2;
    let crc = crc32fast::hash(&other[..CRC_AT]);
    other[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    assert!(Superblock::decode(&other).unwrap_err().contains("does not know"));
}

/// Else the first commit that is as long would wait for room in it for ever.
#[test]
fn a_journal_holds_the_longest_record() {
    let of = |journal_blocks| Superblock { journal_blocks, ..sample() };
    let longest = MAX_RECORD as u64 / BLOCK;
    assert_eq!(Superblock::decode(of(longest).encode().as_ref()), Ok(of(longest)));
    let refused = Superblock::decode(of(longest - 1).encode().as_ref()).unwrap_err();
    assert!(refused.contains("contradict"), "{refused}");
}

proptest! {
    #[test]
    fn torn_and_garbage_copies_are_refused(
        at in 0usize..4096, flip in 1u8..=255, cut in 0usize..4096, encrypted: bool,
    ) {
        let key_check = Some([0x33; 32]).filter(|_| encrypted);
        let it = Superblock { key_check, ..sample() };
        let mut bytes = it.encode().as_ref().to_vec();
        prop_assert!(Superblock::decode(&bytes[..cut]).is_err());
        bytes[at] ^= flip;
        prop_assert!(Superblock::decode(&bytes).is_err());
    }
}
