//! What is on a drive, as far as its signatures tell: so that nothing of value is formatted by
//! mistake.
//!
//! Invariant: a drive is blank only if the first MiB is all zeros and nothing known lies at its end.

use super::superblock::Superblock;
use super::{BLOCK, file, file::TargetFile};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use weft_net::AlignedBuf;
use weft_proto::{Error, ErrorKind, Result};

/// Bytes that are looked at, at either end.
const WINDOW: u64 = 1 << 20;

/// What a drive holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    Blank,
    /// A target of Weft; of the two copies the one that counts.
    Target(Box<Superblock>),
    /// Something with a name, such as an ext4 filesystem.
    Known(&'static str),
    /// Bytes that nothing here recognises.
    Unknown,
}

/// A file or device as it is found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspection {
    pub size: u64,
    pub block_device: bool,
    pub content: Content,
    /// What each copy of the superblock is worth.
    pub copies: [Result<Superblock, String>; 2],
    /// Whether puts will be flushed, and whether freed space can be discarded.
    pub caches_writes: bool,
    pub discards: bool,
}

/// Looks at a drive without changing it; it may be in use. Blocks. Errors: it cannot be read.
pub fn inspect(path: &Path) -> Result<Inspection> {
    let fail = |e: io::Error| {
        Error::new(ErrorKind::Io, format!("{}: cannot read it: {e}", path.display()))
    };
    let target = file::look_at(path)?;
    let [first, last] = windows(&target.file, target.size).map_err(fail)?;
    Ok(Inspection {
        size: target.size,
        block_device: target.block_device,
        content: content(&first, &last),
        copies: [decode_first(&first), decode_last(&last)],
        caches_writes: !target.block_device || super::kernel::caches_writes(&target.file),
        discards: super::kernel::discards(&target.file, target.block_device),
    })
}

/// What an open drive holds.
pub(super) fn find(target: &TargetFile) -> io::Result<Content> {
    let [first, last] = windows(&target.file, target.size)?;
    Ok(content(&first, &last))
}

/// Overwrites both ends with zeros, so that no signature is left. Blocks.
pub(super) fn wipe(target: &TargetFile) -> io::Result<()> {
    let len = target.size.min(WINDOW);
    let mut zeros = AlignedBuf::take(len as usize);
    zeros.as_mut_slice().fill(0);
    target.file.write_all_at(zeros.as_ref(), 0)?;
    target.file.write_all_at(zeros.as_ref(), target.size - len)?;
    target.file.sync_all()
}

impl std::fmt::Display for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Blank => f.write_str("nothing"),
            Self::Target(s) if s.cluster == weft_proto::Uuid::NIL => {
                write!(f, "target {}, which no cluster has", s.uuid)
            }
            Self::Target(s) => {
                write!(f, "target {} ({}) of cluster {}", s.target, s.uuid, s.cluster)
            }
            Self::Known(name) => f.write_str(name),
            Self::Unknown => f.write_str("data of an unknown kind"),
        }
    }
}

fn windows(file: &File, size: u64) -> io::Result<[AlignedBuf; 2]> {
    let len = size.min(WINDOW);
    let read = |at: u64| -> io::Result<AlignedBuf> {
        let mut buffer = AlignedBuf::take(len as usize);
        file.read_exact_at(buffer.as_mut_slice(), at)?;
        Ok(buffer)
    };
    Ok([read(0)?, read(size - len)?])
}

fn decode_first(first: &AlignedBuf) -> Result<Superblock, String> {
    Superblock::decode(first.as_ref())
}

fn decode_last(last: &AlignedBuf) -> Result<Superblock, String> {
    let bytes = last.as_ref();
    Superblock::decode(&bytes[bytes.len().saturating_sub(BLOCK as usize)..])
}

fn content(first: &AlignedBuf, last: &AlignedBuf) -> Content {
    let newer = [decode_first(first), decode_last(last)].into_iter().flatten();
    if let Some(superblock) = newer.max_by_key(|s| s.sequence) {
        return Content::Target(Box::new(superblock));
    }
    let (first, last) = (first.as_ref(), last.as_ref());
    let known = at_start(first).or_else(|| at_end(last));
    match known {
        Some(name) => Content::Known(name),
        None if first.iter().all(|&b| b == 0) => Content::Blank,
        None => Content::Unknown,
    }
}

/// Offset, bytes and name of what begins a drive. The first that fits counts.
const STARTS: &[(usize, &[u8], &str)] = &[
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (0, b"XFSB", "an XFS filesystem"),
    (0x438, b"\x53\xef", "an ext2, ext3 or ext4 filesystem"),
    (0x1_0040, b"_BHRfS_M", "a btrfs filesystem"),
    (
        0x1018,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        "a bcache device or bcachefs filesystem",
    ),
    (0x400, b"\x10\x20\xf5\xf2", "an F2FS filesystem"),
    (4086, b"SWAPSPACE2", "swap space"),
    (4086, b"SWAP-SPACE", "swap space"),
    (0, b"\xfc\x4e\x2b\xa9", "a member of an md RAID"),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of an md RAID"),
    (0, b"bluestore block device", "a Ceph OSD (BlueStore)"),
    (0, b"hsqs", "a squashfs filesystem"),
    (0x8001, b"CD001", "an ISO 9660 filesystem"),
    (3, b"NTFS    ", "an NTFS filesystem"),
    (3, b"EXFAT   ", "an exFAT filesystem"),
    (54, b"FAT", "a FAT filesystem"),
    (82, b"FAT32", "a FAT filesystem"),
    (512, b"EFI PART", "a partition table (GPT)"),
    (4096, b"EFI PART", "a partition table (GPT)"),
];

fn at_start(bytes: &[u8]) -> Option<&'static str> {
    let holds = |at: usize, what: &[u8]| bytes.get(at..at + what.len()) == Some(what);
    if let Some((_, _, name)) = STARTS.iter().find(|(at, what, _)| holds(*at, what)) {
        return Some(name);
    }
    if (0..4).any(|sector| holds(sector * 512, b"LABELONE")) {
        return Some("a physical volume of LVM");
    }
    if (0x2_0000..0x4_0000).step_by(1024).any(|at| holds(at, &0x00ba_b10c_u64.to_le_bytes()))
        || (0x2_0000..0x4_0000).step_by(1024).any(|at| holds(at, &0x00ba_b10c_u64.to_be_bytes()))
    {
        return Some("a member of a ZFS pool");
    }
    let entries = bytes.get(446..510)?.chunks(16).any(|e| e[4] != 0);
    (holds(510, b"\x55\xaa") && entries).then_some("a partition table (MBR)")
}

fn at_end(bytes: &[u8]) -> Option<&'static str> {
    let end = bytes.len();
    let holds = |back: usize, what: &[u8]| {
        end.checked_sub(back).is_some_and(|at| bytes.get(at..at + what.len()) == Some(what))
    };
    let md = (8 << 10..=128 << 10).step_by(4096).any(|back| holds(back, b"\xfc\x4e\x2b\xa9"));
    if md {
        return Some("a member of an md RAID");
    }
    if holds(1024, b"Intel Raid ISM Cfg Sig.") || holds(512, b"\xde\x11\xde\x11") {
        return Some("a member of a firmware RAID");
    }
    (holds(512, b"EFI PART") || holds(4096, b"EFI PART")).then_some("a partition table (GPT)")
}

#[cfg(test)]
mod tests {
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
    fn short_and_odd_windows_do_not_panic() {
        for len in [0, 1, 511, 512, 4095, 4096, 5000, 70_000] {
            assert!(matches!(of(&vec![0; len]), Content::Blank));
            assert!(matches!(of(&vec![0xff; len]), Content::Unknown | Content::Blank));
        }
    }
}
