//! What is on a drive, as far as its signatures tell: so that nothing of value is formatted by
//! mistake.
//!
//! Invariant: a drive is blank only if all that was looked at is zeros: a MiB at both ends, where
//! filesystems keep copies of their superblocks, and pieces all over it; of a small one everything.
//! So one whose beginning alone was wiped is not blank.

use super::superblock::Superblock;
use super::{BLOCK, file, file::TargetFile, header};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use weft_net::AlignedBuf;
use weft_proto::{Error, ErrorKind, Result};

/// Bytes that are looked at, at either end.
const WINDOW: u64 = 1 << 20;
/// Pieces that are looked at between, and the bytes of each: a moment on flash, some seconds on a
/// drive that turns.
const PIECES: u64 = 1024;
const PIECE: u64 = 64 << 10;
/// Where copies of superblocks lie: ext2 to ext4 with blocks of 1, 2 and 4 KiB; btrfs.
const COPIES: [u64; 5] = [8 << 20, 32 << 20, 128 << 20, 64 << 20, 256 << 30];

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
        content: whole_content(&target, &first, &last).map_err(fail)?,
        copies: [decode_first(&first), decode_last(&last)],
        caches_writes: !target.block_device || super::kernel::caches_writes(&target.file),
        discards: super::kernel::discards(&target.file, target.block_device),
    })
}

/// What an open drive holds.
pub(super) fn find(target: &TargetFile) -> io::Result<Content> {
    let [first, last] = windows(&target.file, target.size)?;
    whole_content(target, &first, &last)
}

/// What both ends say; that they are blank must be true of the middle, too.
fn whole_content(
    target: &TargetFile,
    first: &AlignedBuf,
    last: &AlignedBuf,
) -> io::Result<Content> {
    let content = content(first, last);
    if content == Content::Blank { middle(target) } else { Ok(content) }
}

fn middle(target: &TargetFile) -> io::Result<Content> {
    let mut buffer = AlignedBuf::take(PIECE as usize);
    for (at, len) in pieces(target.size) {
        let bytes = &mut buffer.as_mut_slice()[..len as usize];
        target.file.read_exact_at(bytes, at)?;
        if bytes.chunks(BLOCK as usize).any(header::may_begin_any) {
            return Ok(Content::Known("chunks of a target whose superblocks are gone"));
        }
        if bytes.iter().any(|&b| b != 0) {
            return Ok(Content::Unknown);
        }
    }
    Ok(Content::Blank)
}

/// Offset and length of what is looked at between the ends, in whole blocks.
fn pieces(size: u64) -> Vec<(u64, u64)> {
    let (from, to) = (WINDOW.min(size), size.saturating_sub(WINDOW));
    let stride = (to.saturating_sub(from) / PIECES).max(PIECE) / BLOCK * BLOCK;
    // Somewhere else in each stride, lest what repeats itself is always missed.
    let slack = (stride - PIECE) / BLOCK + 1;
    let spread = (from..to).step_by(stride as usize).enumerate().map(|(n, start)| {
        let turn = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        start + turn % slack * BLOCK
    });
    // Of four allocation groups of XFS the second begins at a quarter, or a little before.
    let copies = COPIES.into_iter().chain([(size / 4 / BLOCK * BLOCK).saturating_sub(PIECE / 2)]);
    let all = copies.chain(spread).filter(|&at| at >= from && at < to);
    all.map(|at| (at, PIECE.min(to - at))).collect()
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
        None if first.iter().chain(last).all(|&b| b == 0) => Content::Blank,
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
mod tests;
