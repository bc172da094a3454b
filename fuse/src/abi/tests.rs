//! Requests as the kernel lays them out, garbage, and replies of the lengths that it expects.

use super::*;
use proptest::prelude::*;
use std::time::Duration;

/// A request as `/dev/fuse` gives it.
fn message(opcode: u32, record: &[u8], tail: &[u8]) -> Vec<u8> {
    let len = IN_HEADER + record.len() + tail.len();
    let mut out = (len as u32).to_ne_bytes().to_vec();
    out.extend(opcode.to_ne_bytes());
    out.extend(77u64.to_ne_bytes());
    out.extend(5u64.to_ne_bytes());
    for word in [1000u32, 100, 4242, 0] {
        out.extend(word.to_ne_bytes());
    }
    out.extend(record);
    out.extend(tail);
    out
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

fn op(opcode: u32, record: &[u8], tail: &[u8]) -> Op<'static> {
    let bytes: &'static [u8] = message(opcode, record, tail).leak();
    decode(bytes).expect("a request").op
}

#[test]
fn requests_decode_as_the_kernel_lays_them_out() {
    let bytes = message(1, &[], b"name\0");
    let header = decode(&bytes).unwrap().header;
    assert_eq!((header.unique, header.node, header.opcode), (77, 5, 1));
    assert_eq!((header.uid, header.gid, header.pid), (1000, 100, 4242));
    assert_eq!(op(1, &[], b"name\0"), Op::Lookup { name: b"name" });
    assert_eq!(op(3, &words(&[1, 0, 9, 0]), &[]), Op::GetAttr);
    assert!(decode(&message(3, &words(&[0, 0, 9]), &[])).is_err());
    assert_eq!(op(6, &[], b"s\0to/it\0"), Op::SymLink { name: b"s", target: b"to/it" });
    let (mode, rdev) = (0o20644, 0x801);
    let made = Op::MkNod { name: b"n", mode, rdev, umask: 0o22 };
    assert_eq!(op(8, &words(&[mode, rdev, 0o22, 0]), b"n\0"), made);
    let made = Op::MkDir { name: b"d", mode, umask: 0o27 };
    assert_eq!(op(9, &words(&[mode, 0o27]), b"d\0"), made);
    let (name, new_parent, new_name) = (&b"a"[..], 6, &b"b"[..]);
    let renamed = Op::Rename { name, new_parent, new_name, flags: 0 };
    assert_eq!(op(12, &longs(&[6]), b"a\0b\0"), renamed);
    let exchanged = Op::Rename { name, new_parent, new_name, flags: 2 };
    assert_eq!(op(45, &[longs(&[6]), words(&[2, 0])].concat(), b"a\0b\0"), exchanged);
    let (fh, offset, data) = (3, 4096, b"bytes".as_slice());
    for flags in 0..16 {
        let bit = |bit: u32| flags & 1 << bit != 0;
        let (write_back, direct, drop_set_ids) = (bit(0), bit(1), bit(2));
        let (append, sync) = (bit(0) != bit(3), bit(3));
        let of_file = if append { libc::O_APPEND } else { libc::O_NONBLOCK };
        let of_file = (of_file | if sync { libc::O_DSYNC } else { libc::O_DIRECT }) as u32;
        let owner = u64::MAX;
        let write = [longs(&[3, 4096]), words(&[5, flags]), longs(&[owner]), words(&[of_file, 0])];
        let write = write.concat();
        let written =
            Op::Write { fh, offset, data, direct, write_back, drop_set_ids, append, sync };
        assert_eq!(op(16, &write, data), written);
        assert_eq!(op(15, &write, b""), Op::Read { fh, offset, size: 5, direct });
    }
    let created = Op::Create { name: b"f", mode: 0o100644, umask: 0o22, flags: 0x42 };
    assert_eq!(op(35, &words(&[0x42, 0o100644, 0o22, 0]), b"f\0"), created);
    let unnamed = Op::TmpFile { mode: 0o100600, umask: 0o22, flags: 0x410002 };
    assert_eq!(op(51, &words(&[0x410002, 0o100600, 0o22, 0]), b"/\0"), unnamed);
    for clear_setgid in [false, true] {
        let set = Op::SetXattr { name: b"user.a", value: b"\0x", flags: 1, clear_setgid };
        let record = words(&[2, 1, u32::from(clear_setgid), 0]);
        assert_eq!(op(21, &record, b"user.a\0\0x"), set);
    }
    assert_eq!(op(36, &longs(&[75]), &[]), Op::Interrupt { unique: 75 });
    let release = [longs(&[8]), words(&[0, 2]), longs(&[99])].concat();
    assert_eq!(op(18, &release, &[]), Op::Release { fh: 8, flock_owner: Some(99) });
    let lock = [longs(&[1, 2, 3, 4]), words(&[1, 55, 1, 0])].concat();
    let locked = Lock { fh: 1, owner: 2, start: 3, end: 4, kind: 1, pid: 55, flock: true };
    assert_eq!(op(33, &lock, &[]), Op::SetLkW(locked));
    let allocate = [longs(&[1, 2, 3]), words(&[16, 0])].concat();
    let allocated = Op::Fallocate { fh: 1, offset: 2, len: 3, mode: 16 };
    assert_eq!(op(43, &allocate, &[]), allocated);
    let seek = [longs(&[1, 2]), words(&[3, 0])].concat();
    assert_eq!(op(46, &seek, &[]), Op::Lseek { fh: 1, offset: 2, whence: 3 });
    for (opcode, wide) in [(47, false), (53, true)] {
        let (fh, offset, to_node, to_fh, to_offset, len, flags) = (1, 2, 3, 4, 5, 6, 7);
        let want = Op::CopyFileRange { fh, offset, to_node, to_fh, to_offset, len, flags, wide };
        assert_eq!(op(opcode, &longs(&[1, 2, 3, 4, 5, 6, 7]), &[]), want);
        assert!(decode(&message(opcode, &longs(&[1, 2, 3, 4, 5, 6]), &[])).is_err());
    }
    assert_eq!(op(4096, &[], b"anything"), Op::Unknown);
}

#[test]
fn attributes_to_set_are_those_whose_bit_says_so() {
    let record = |valid: u32| {
        let mut out = words(&[valid, 0]);
        out.extend(longs(&[11, 22, 33, u64::MAX, 44, 55]));
        out.extend(words(&[500, 600, 700, 0o644, 0, 1, 2, 0]));
        out
    };
    assert_eq!(op(4, &record(0), &[]), Op::SetAttr(SetAttr::default()));
    let all = SetAttr {
        mode: Some(0o644),
        uid: Some(1),
        gid: Some(2),
        size: Some(22),
        atime: Some(SetTime::At(-1, 500)),
        mtime: Some(SetTime::At(44, 600)),
        fh: Some(11),
        drop_set_ids: true,
    };
    assert_eq!(op(4, &record(1 << 11 | 0b111_1111), &[]), Op::SetAttr(all));
    let now = SetAttr { mtime: Some(SetTime::Now), ..Default::default() };
    assert_eq!(op(4, &record(1 << 5 | 1 << 8), &[]), Op::SetAttr(now));
    // The bit that says "now" means nothing without the one that says "set".
    assert_eq!(op(4, &record(1 << 7), &[]), Op::SetAttr(SetAttr::default()));
}

#[test]
fn parts_decode_as_the_whole_does() {
    let record = [longs(&[3, 4096]), words(&[5, 0]), longs(&[0]), words(&[0, 0])].concat();
    let whole = message(16, &record, b"bytes");
    let mut padded = record.clone();
    padded.resize(128, 0xee);
    let parts = decode_parts(&whole[..IN_HEADER], &padded, b"bytes").unwrap();
    assert_eq!(parts, decode(&whole).unwrap());
}

#[test]
fn extensions_at_the_end_are_no_part_of_the_data() {
    let mut bytes = message(1, &[], b"name\0\0\0\0extends!");
    bytes[36] = 1;
    assert_eq!(decode(&bytes).unwrap().op, Op::Lookup { name: b"name" });
    bytes[36] = 200;
    assert_eq!(decode(&bytes), Err(Malformed::Short));
}

#[test]
fn handshakes_agree_on_what_both_want() {
    let offer = |minor, flags: u64| Init { major: 7, minor, max_readahead: 1 << 17, flags };
    let wanted = Wanted { io_uring: true, ..Default::default() };
    let all = negotiate(&offer(99, u64::MAX), wanted).unwrap();
    assert_eq!(all.minor, 45);
    assert_eq!(all.max_readahead, 1 << 17);
    assert_ne!(all.flags & flag::OVER_IO_URING, 0);
    assert_eq!(all.flags & flag::POSIX_LOCKS, 0);
    let plain = negotiate(&offer(33, flag::MAX_PAGES | flag::BIG_WRITES), wanted).unwrap();
    assert_eq!((plain.minor, plain.flags), (33, flag::MAX_PAGES | flag::BIG_WRITES));
    let none = Wanted::default();
    assert_eq!(negotiate(&offer(42, u64::MAX), none).unwrap().flags & flag::OVER_IO_URING, 0);
    assert_eq!(negotiate(&offer(30, u64::MAX), none), Err(Errno(libc::EPROTO)));
    assert!(negotiate(&Init { major: 8, ..offer(45, 0) }, none).is_err());

    // Who writes pages back late shares none with another mount.
    for (minor, shares) in [(33, false), (43, false), (44, true), (45, true)] {
        let agreed = negotiate(&offer(minor, u64::MAX), none).unwrap();
        assert_eq!(agreed.flags & flag::DIRECT_IO_ALLOW_MMAP != 0, shares, "7.{minor}");
    }

    // A request has as many bytes whatever a page has.
    for page in [4096, 16 << 10, 64 << 10] {
        let agreed = negotiate(&offer(45, u64::MAX), Wanted { page, ..wanted }).unwrap();
        assert_eq!(u32::from(agreed.max_pages) * page, MAX_REQUEST);
        let answer = Ok(Reply::Init(agreed));
        let told = Encoded::new(7, &answer);
        assert_eq!(told.record()[28..30], agreed.max_pages.to_ne_bytes());
    }

    // As an older kernel and as a newer one send it.
    let old = words(&[7, 33, 4096, flag::MAX_PAGES as u32]);
    let Op::Init(init) = op(26, &[], &old) else { panic!("no handshake") };
    assert_eq!(init.flags, flag::MAX_PAGES);
    let mut new = words(&[7, 45, 4096, flag::INIT_EXT as u32, 1 << 9]);
    new.resize(64, 0);
    let Op::Init(init) = op(26, &[], &new) else { panic!("no handshake") };
    assert_eq!(init.flags, flag::INIT_EXT | flag::OVER_IO_URING);
}

#[test]
fn replies_have_the_lengths_of_the_kernels_records() {
    let attr = Attr { ino: 5, size: 9, mode: 0o100644, ..Default::default() };
    let ttl = Duration::new(3, 4);
    let entry = Entry { node: attr.ino, attr, name_ttl: ttl, attr_ttl: Duration::ZERO };
    let opened = Open { fh: 1, flags: 0 };
    let (files, files_free, block_size, name_max) = (4, 5, 6, 7);
    let room = StatFs { blocks: 1, free: 2, available: 3, files, files_free, block_size, name_max };
    let lock = Lock { fh: 0, owner: 0, start: 0, end: 1, kind: 2, pid: 3, flock: false };
    let agreed = InitReply { minor: 45, max_readahead: 1, flags: u64::MAX, max_pages: 256 };
    for (reply, len) in [
        (Reply::Empty, 0),
        (Reply::Entry(entry), 128),
        (Reply::NoEntry(ttl), 128),
        (Reply::Attr(attr, ttl), 104),
        (Reply::StatX(attr, ttl), 288),
        (Reply::Open(opened), 16),
        (Reply::Created(entry, opened), 144),
        (Reply::XattrSize(1), 8),
        (Reply::Written(1), 8),
        (Reply::StatFs(room), 80),
        (Reply::Lock(lock), 24),
        (Reply::Offset(1), 8),
        (Reply::Init(agreed), 64),
        (Reply::Data(vec![b"one".as_slice().into(), b"two".as_slice().into()]), 6),
    ] {
        let answer = Ok(reply);
        let encoded = Encoded::new(7, &answer);
        let data: usize = encoded.data().iter().map(|d| d.len()).sum();
        assert_eq!(encoded.record().len() + data, len, "{answer:?}");
        assert_eq!(encoded.header()[..4], ((OUT_HEADER + len) as u32).to_ne_bytes());
        assert_eq!(encoded.header()[4..8], [0; 4]);
        assert_eq!(encoded.header()[8..], 7u64.to_ne_bytes());
    }
    let statfs = Ok(Reply::StatFs(room));
    let want = [longs(&[1, 2, 3, 4, 5]), words(&[6, 7, 6])].concat();
    assert_eq!(Encoded::new(7, &statfs).record()[..want.len()], want);
    let error = Err(Errno(libc::ENOENT));
    assert_eq!(Encoded::new(7, &error).head()[4..8], (-libc::ENOENT).to_ne_bytes());
}

#[test]
fn notices_are_laid_out_as_the_kernel_reads_them() {
    let inode = Notice::Inode { ino: 5, offset: -1, len: 0 }.encode();
    assert_eq!(inode, [words(&[40, 2, 0, 0]), longs(&[5, u64::MAX, 0])].concat());
    let entry = Notice::Entry { parent: 1, name: b"ab".to_vec() }.encode();
    let want = [words(&[35, 3, 0, 0]), longs(&[1]), words(&[2, 0]), b"ab\0".to_vec()];
    assert_eq!(entry, want.concat());
    let delete = Notice::Delete { parent: 1, child: 9, name: b"ab".to_vec() }.encode();
    let want = [words(&[43, 6, 0, 0]), longs(&[1, 9]), words(&[2, 0]), b"ab\0".to_vec()];
    assert_eq!(delete, want.concat());
    let expire = Notice::Expire { parent: 1, name: b"ab".to_vec() }.encode();
    let want = [words(&[35, 3, 0, 0]), longs(&[1]), words(&[2, 1]), b"ab\0".to_vec()];
    assert_eq!(expire, want.concat());
}

#[test]
fn what_the_kernel_drops_is_told_one_by_one_or_many_at_a_time() {
    assert_eq!(op(2, &longs(&[3]), &[]), Op::Forget { answers: 3 });
    let two = longs(&[7, 1, 8, 2]);
    let Op::ForgetMany(many) = op(42, &words(&[2, 0]), &two) else { panic!("another request") };
    assert_eq!(many.collect::<Vec<_>>(), [(7, 1), (8, 2)]);
    for more in [3, u32::MAX] {
        assert!(decode(&message(42, &words(&[more, 0]), &two)).is_err(), "{more} in two");
    }
}

#[test]
fn listings_end_where_the_kernel_wants_them_to() {
    let mut list = Listing::new(63);
    assert!(list.add(2, 1, 0o100644, b"12345678"));
    assert!(!list.add(3, 2, 0o100644, b"1"), "one byte takes eight");
    let Ok(Reply::Data(data)) = list.finish() else { panic!("no data") };
    let want = [longs(&[2, 1]), words(&[8, 8]), b"12345678".to_vec()].concat();
    assert_eq!(data[0], want);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn garbage_is_refused_or_decoded_and_never_more(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let _ = decode(&bytes);
        let (head, rest) = bytes.split_at(bytes.len().min(IN_HEADER));
        let (record, tail) = rest.split_at(rest.len().min(128));
        let _ = decode_parts(head, record, tail);
    }

    #[test]
    fn a_request_of_any_kind_that_is_cut_short_is_refused_or_shorter(
        opcode in 0u32..56,
        record in prop::collection::vec(any::<u8>(), 0..100),
        tail in prop::collection::vec(any::<u8>(), 0..40),
        cut in 1usize..60,
    ) {
        let mut whole = message(opcode, &record, &tail);
        let _ = decode(&whole);
        whole.truncate(whole.len().saturating_sub(cut));
        prop_assert!(decode(&whole).is_err(), "the header tells another length");
        if let Some(len) = whole.get_mut(..4) {
            let len_now = (IN_HEADER + record.len() + tail.len()).saturating_sub(cut) as u32;
            len.copy_from_slice(&len_now.to_ne_bytes());
            let _ = decode(&whole);
        }
    }

    #[test]
    fn names_and_data_come_out_as_they_went_in(
        name in prop::collection::vec(1u8..=255, 0..260),
        data in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let named = [&name[..], b"\0"].concat();
        let bytes = message(1, &[], &named);
        prop_assert_eq!(decode(&bytes).unwrap().op, Op::Lookup { name: &name });
        let len = data.len() as u32;
        let set = message(21, &words(&[len, 0, 0, 0]), &[&named[..], &data].concat());
        let want = Op::SetXattr { name: &name, value: &data, flags: 0, clear_setgid: false };
        prop_assert_eq!(decode(&set).unwrap().op, want);
    }
}
