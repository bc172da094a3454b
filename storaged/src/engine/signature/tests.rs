//! Tests of `signature`.

use super::*;

fn of(bytes: &[u8]) -> Content {
    let mut first = AlignedBuf::take(bytes.len());
    first.as_mut_slice().copy_from_slice(bytes);
    let mut last = AlignedBuf::take(bytes.len());
    last.as_mut_slice().copy_from_slice(bytes);
    content(&first, &last)
}

#[test]
fn every_signature_is_known_and_zeros_are_blank() {
    let zeros = vec![0; WINDOW as usize];
    assert_eq!(of(&zeros), Content::Blank);
    for (at, what, name) in STARTS {
        let mut bytes = zeros.clone();
        bytes[*at..at + what.len()].copy_from_slice(what);
        assert_eq!(of(&bytes), Content::Known(name));
    }
    let with = |at: usize, what: &[u8]| {
        let mut bytes = zeros.clone();
        bytes[at..at + what.len()].copy_from_slice(what);
        of(&bytes)
    };
    let end = WINDOW as usize;
    assert_eq!(with(1536, b"LABELONE"), Content::Known("a physical volume of LVM"));
    assert_eq!(
        with(0x2_0400, &0x00ba_b10c_u64.to_le_bytes()),
        Content::Known("a member of a ZFS pool")
    );
    assert_eq!(
        with(end - (64 << 10), b"\xfc\x4e\x2b\xa9"),
        Content::Known("a member of an md RAID")
    );
    assert_eq!(with(end - 512, b"EFI PART"), Content::Known("a partition table (GPT)"));
    assert_eq!(with(777, b"x"), Content::Unknown);
    let mut mbr = zeros.clone();
    (mbr[450], mbr[510], mbr[511]) = (0x83, 0x55, 0xaa);
    assert_eq!(of(&mbr), Content::Known("a partition table (MBR)"));
    let superblock = Superblock::new(64 << 20);
    assert_eq!(
        with(end - 4096, superblock.encode().as_ref()),
        Content::Target(Box::new(superblock))
    );
}

#[test]
fn a_small_drive_is_looked_at_whole_and_a_large_one_all_over() {
    for size in [0, 4096, 1 << 20, 2 << 20, (2 << 20) + 4096, 16 << 20, 66 << 20] {
        let mut seen: Vec<_> = pieces(size);
        seen.sort_unstable();
        let mut end = WINDOW.min(size);
        for (at, len) in seen {
            assert!(at <= end, "bytes {end} to {at} of {size} are not looked at");
            end = end.max(at + len);
        }
        assert!(end + WINDOW >= size, "bytes from {end} on of {size} are not looked at");
    }
    for size in [67 << 20, 1 << 30, 18 << 40, 1 << 62] {
        let seen = pieces(size);
        let sound = |&(at, len): &(u64, u64)| {
            at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK) && len > 0 && at + len <= size
        };
        assert!(seen.iter().all(sound) && seen.len() as u64 >= PIECES && seen.len() < 1100);
        // No run of 1/400 of the drive is missed.
        let mut starts: Vec<_> = seen.iter().map(|p| p.0).collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|w| w[1] - w[0] <= size / 400));
    }
}

#[test]
fn what_lies_behind_a_wiped_beginning_is_found() {
    let file = tempfile::tempfile().unwrap();
    let size = 1 << 40;
    file.set_len(size).unwrap();
    let target = TargetFile { file, size, block_device: false };
    assert_eq!(find(&target).unwrap(), Content::Blank);
    let holds = |at: u64, bytes: &[u8]| {
        target.file.write_all_at(bytes, at).unwrap();
        let found = find(&target).unwrap();
        target.file.write_all_at(&vec![0; bytes.len()], at).unwrap();
        found
    };
    let somewhere = pieces(size)[77].0;
    for at in [128 << 20, 256 << 30, size / 4, somewhere, size - WINDOW, size - 1] {
        assert_eq!(holds(at, b"x"), Content::Unknown, "at {at}");
    }
    let chunks = Content::Known("chunks of a target whose superblocks are gone");
    assert_eq!(holds(somewhere, b"WEFTCHK\n of some target"), chunks);
    assert_eq!(find(&target).unwrap(), Content::Blank);
}

#[test]
fn short_and_odd_windows_do_not_panic() {
    for len in [0, 1, 511, 512, 4095, 4096, 5000, 70_000] {
        assert!(matches!(of(&vec![0; len]), Content::Blank));
        assert!(matches!(of(&vec![0xff; len]), Content::Unknown | Content::Blank));
    }
}
