//! Random requests. A step names things by small numbers, which are resolved against what exists
//! when it runs, so that most steps do something and shrinking keeps them meaningful.

use crate::model::Model;
use crate::rig::Rig;
use proptest::prelude::*;
use v1::FileKind;
use v1::extent::Source;
use v1::meta_request::Op;
use weft_proto::v1;

pub const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

#[derive(Clone, Debug)]
pub enum Step {
    Create { dir: Pick, name: Name, mode: u32, exclusive: bool },
    MkNod { dir: Pick, name: Name, kind: u8 },
    MkDir { dir: Pick, name: Name, mode: u32 },
    SymLink { dir: Pick, name: Name },
    Link { ino: Pick, dir: Pick, name: Name },
    Unlink { dir: Pick, name: Name },
    RmDir { dir: Pick, name: Name },
    Rename { dir: Pick, name: Name, to: Pick, to_name: Name, flags: u32 },
    SetAttr { ino: Pick, what: u8, value: u32 },
    Truncate { ino: Pick, size: u64 },
    SetXattr { ino: Pick, name: Name, len: usize, flags: u32 },
    RemoveXattr { ino: Pick, name: Name },
    SetLayout { ino: Pick, inline_limit: u32 },
    Commit { ino: Pick, pieces: Vec<Piece>, append: bool, min_size: u64 },
    Fallocate { ino: Pick, off: u64, len: u64, keep_size: bool, hole: bool },
    CopyRange { from: Pick, from_off: u64, to: Pick, to_off: u64, len: u64 },
    Purge,
    Free,
    Retry,
}

/// One extent: a gap before it, its length, and where its bytes come from.
#[derive(Clone, Debug)]
pub struct Piece {
    gap: u64,
    len: u64,
    source: From,
}

#[derive(Clone, Debug)]
enum From {
    Inline(u8),
    /// A new segment, or the one of the piece before.
    New {
        skip: u64,
        share: bool,
    },
    /// One that was committed earlier.
    Old {
        which: usize,
        off: u64,
    },
}

/// An inode: by its rank among those of a kind, or among all, gone ones included.
#[derive(Clone, Debug)]
pub struct Pick {
    rank: usize,
    any: bool,
}

#[derive(Clone, Debug)]
pub enum Name {
    Usual(usize),
    Odd(usize),
}

impl Name {
    fn bytes(&self) -> bytes::Bytes {
        match *self {
            Self::Usual(i) => NAMES[i % NAMES.len()].as_bytes().into(),
            Self::Odd(i) => {
                let odd = ["", ".", "..", "x/y", "n\0l", "\u{fffd}"];
                let long = "l".repeat(250 + i % 10);
                odd.get(i % 8).map_or(long.into(), |s| s.as_bytes().into())
            }
        }
    }
}

impl Pick {
    fn of(&self, model: &Model, kind: FileKind) -> u64 {
        let all: Vec<u64> = model
            .nodes
            .iter()
            .filter(|(_, n)| self.any || n.kind == kind)
            .map(|(&ino, _)| ino)
            .collect();
        // One beyond the last: an inode that does not exist.
        let all_and_none = all.len() + usize::from(self.any);
        match all.is_empty() {
            true => 999,
            false => all.get(self.rank % all_and_none).copied().unwrap_or(9999),
        }
    }

    fn dir(&self, model: &Model) -> u64 {
        self.of(model, FileKind::Directory)
    }

    fn file(&self, model: &Model) -> u64 {
        self.of(model, FileKind::Regular)
    }
}

/// The operation that a step stands for now.
pub fn resolve(step: &Step, model: &Model, rig: &Rig, next_seq: &mut u64) -> Op {
    let any = |pick: &Pick| Pick { any: true, ..pick.clone() }.of(model, FileKind::Unknown);
    match step {
        Step::Create { dir, name, mode, exclusive } => Op::Create(v1::CreateOp {
            parent: dir.dir(model),
            name: name.bytes(),
            mode: *mode,
            uid: 10,
            gid: 20,
            exclusive: *exclusive,
            open_seq: 1,
            umask: 0o027,
        }),
        Step::MkNod { dir, name, kind } => {
            let kinds = [
                FileKind::Regular,
                FileKind::Fifo,
                FileKind::Socket,
                FileKind::CharDevice,
                FileKind::BlockDevice,
            ];
            Op::MkNod(v1::MkNodOp {
                parent: dir.dir(model),
                name: name.bytes(),
                kind: kinds[usize::from(*kind) % kinds.len()].into(),
                mode: 0o600,
                uid: 11,
                gid: 21,
                rdev: 0x0103,
                umask: 0o077,
            })
        }
        Step::MkDir { dir, name, mode } => Op::MkDir(v1::MkDirOp {
            parent: dir.dir(model),
            name: name.bytes(),
            mode: *mode,
            uid: 12,
            gid: 22,
            umask: 0o1022,
        }),
        Step::SymLink { dir, name } => Op::SymLink(v1::SymLinkOp {
            parent: dir.dir(model),
            name: name.bytes(),
            target: format!("/to/{}", model.nodes.len()).into(),
            uid: 13,
            gid: 23,
        }),
        Step::Link { ino, dir, name } => {
            let ino = if ino.any { any(ino) } else { ino.file(model) };
            Op::Link(v1::LinkOp { ino, parent: dir.dir(model), name: name.bytes() })
        }
        Step::Unlink { dir, name } => {
            Op::Unlink(v1::UnlinkOp { parent: dir.dir(model), name: name.bytes() })
        }
        Step::RmDir { dir, name } => {
            Op::RmDir(v1::RmDirOp { parent: dir.dir(model), name: name.bytes() })
        }
        Step::Rename { dir, name, to, to_name, flags } => Op::Rename(v1::RenameOp {
            parent: dir.dir(model),
            name: name.bytes(),
            new_parent: to.dir(model),
            new_name: to_name.bytes(),
            flags: *flags,
        }),
        Step::SetAttr { ino, what, value } => Op::SetAttr(set_attr(any(ino), *what, *value)),
        Step::Truncate { ino, size } => Op::SetAttr(v1::SetAttrOp {
            ino: ino.file(model),
            size: Some(*size),
            ..Default::default()
        }),
        Step::SetXattr { ino, name, len, flags } => Op::SetXattr(v1::SetXattrOp {
            ino: any(ino),
            name: xattr_name(name),
            value: vec![*len as u8; *len].into(),
            flags: *flags,
            clear_setgid: false,
        }),
        Step::RemoveXattr { ino, name } => {
            Op::RemoveXattr(v1::RemoveXattrOp { ino: any(ino), name: xattr_name(name) })
        }
        Step::SetLayout { ino, inline_limit } => {
            let layout = v1::LayoutInfo {
                profile: Some(v1::ProfileInfo { k: 2, m: 1 }),
                unit: 4096,
                segment_len: 8192,
                inline_limit: *inline_limit,
            };
            let ino = if ino.rank % 2 == 0 { ino.dir(model) } else { any(ino) };
            Op::SetLayout(v1::SetLayoutOp { ino, layout: Some(layout) })
        }
        Step::Commit { ino, pieces, append, min_size } => {
            let ino = ino.file(model);
            // The model keeps every byte before the last that was written.
            let append = *append && model.attr(ino).is_ok_and(|attr| attr.size < 1 << 20);
            commit(ino, pieces, append, *min_size, model, rig, next_seq)
        }
        &Step::Fallocate { ref ino, off, len, keep_size, hole } => {
            Op::Fallocate(v1::FallocateOp { ino: ino.file(model), off, len, keep_size, hole })
        }
        &Step::CopyRange { ref from, from_off, ref to, to_off, len } => {
            let (from, to) = (from.file(model), to.file(model));
            Op::CopyRange(v1::CopyRangeOp { from, from_off, to, to_off, len })
        }
        Step::Purge | Step::Free | Step::Retry => unreachable!("not an operation"),
    }
}

fn xattr_name(name: &Name) -> bytes::Bytes {
    match name {
        Name::Usual(i) => format!("user.{i}").into(),
        Name::Odd(i) => format!("trusted.{i}").into(),
    }
}

fn set_attr(ino: u64, what: u8, value: u32) -> v1::SetAttrOp {
    let bit = |n: u8| what & 1 << n != 0;
    v1::SetAttrOp {
        ino,
        mode: bit(0).then_some(value & 0o7777),
        uid: bit(1).then_some(value >> 4),
        gid: bit(2).then_some(value >> 5),
        size: None,
        atime_ns: bit(3).then_some(i64::from(value) - 500),
        mtime_ns: bit(4).then_some(i64::from(value) + 500),
        atime_now: bit(5),
        mtime_now: bit(6),
    }
}

fn commit(
    ino: u64,
    pieces: &[Piece],
    append: bool,
    min_size: u64,
    model: &Model,
    rig: &Rig,
    next_seq: &mut u64,
) -> Op {
    let mut segments: Vec<v1::SegmentInfo> = Vec::new();
    let mut extents = Vec::new();
    let mut at = 0;
    for piece in pieces {
        at += piece.gap;
        let mut len = piece.len;
        let source = match &piece.source {
            From::Inline(byte) => Source::Inline(vec![*byte; len as usize].into()),
            From::New { share: true, .. } if !segments.is_empty() => {
                // The part of the same segment that follows: neighbours are to be joined.
                let segment = segments.last_mut().unwrap();
                let off = segment.length;
                segment.length += len;
                Source::Segment(v1::SegmentPart { id: segment.id, off })
            }
            From::New { skip, .. } => {
                segments.push(rig.segment(*next_seq, skip + len));
                *next_seq += 1;
                Source::Segment(v1::SegmentPart { id: segments.last().unwrap().id, off: *skip })
            }
            From::Old { which, off } => {
                let known: Vec<_> = model.segments.iter().collect();
                match known.get(which % known.len().max(1)) {
                    None => Source::Inline(vec![9; len as usize].into()),
                    Some(&(&seq, &length)) => {
                        let off = off % length;
                        len = len.min(length - off);
                        let id = Some(v1::SegmentKey { session: rig.session, seq });
                        Source::Segment(v1::SegmentPart { id, off })
                    }
                }
            }
        };
        extents.push(v1::Extent { file_off: at, len, source: Some(source) });
        at += len;
    }
    let min_size = if append { 0 } else { min_size };
    let mtime_ns = if at % 3 == 0 { 77 } else { 0 };
    let changed_ns = if at % 5 == 0 { 99 } else { 0 };
    let attr = (at % 2 == 0).then(|| set_attr(ino, at as u8 & 0b1111, at as u32 * 977));
    Op::CommitExtents(v1::CommitExtentsOp {
        ino,
        extents,
        segments,
        append,
        min_size,
        mtime_ns,
        changed_ns,
        attr,
        ..Default::default()
    })
}

fn pick() -> impl Strategy<Value = Pick> {
    (0usize..64, prop::bool::weighted(0.06)).prop_map(|(rank, any)| Pick { rank, any })
}

fn name() -> impl Strategy<Value = Name> {
    prop_oneof![60 => (0usize..5).prop_map(Name::Usual), 1 => (0usize..40).prop_map(Name::Odd)]
}

fn piece() -> impl Strategy<Value = Piece> {
    let source = prop_oneof![
        3 => any::<u8>().prop_map(From::Inline),
        3 => (prop_oneof![Just(0u64), 1u64..100], any::<bool>())
            .prop_map(|(skip, share)| From::New { skip, share }),
        2 => (0usize..50, 0u64..600).prop_map(|(which, off)| From::Old { which, off }),
    ];
    let gap = prop_oneof![2 => Just(0u64), 1 => 0u64..700];
    (gap, 1u64..500, source).prop_map(|(gap, len, source)| Piece { gap, len, source })
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0u64..2000,
        2 => Just(0u64),
        1 => (0u64..3).prop_map(|n| (16 << 40) - 1 + n),
    ]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![12 => 1u64..1500, 1 => Just(0u64), 1 => Just(16 << 40), 1 => Just(u64::MAX)]
}

pub fn step() -> impl Strategy<Value = Step> {
    let mode = prop_oneof![Just(0o644u32), Just(0o2755), 0u32..0o10000];
    let flags = prop_oneof![6 => Just(0u32), 1 => Just(1u32), 3 => Just(2u32), 1 => Just(4u32),
        1 => 0u32..16];
    prop_oneof![
        8 => (pick(), name(), mode.clone(), any::<bool>())
            .prop_map(|(dir, name, mode, exclusive)| Step::Create { dir, name, mode, exclusive }),
        2 => (pick(), name(), 0u8..5).prop_map(|(dir, name, kind)| Step::MkNod { dir, name, kind }),
        7 => (pick(), name(), mode).prop_map(|(dir, name, mode)| Step::MkDir { dir, name, mode }),
        1 => (pick(), name()).prop_map(|(dir, name)| Step::SymLink { dir, name }),
        4 => (pick(), pick(), name()).prop_map(|(ino, dir, name)| Step::Link { ino, dir, name }),
        4 => (pick(), name()).prop_map(|(dir, name)| Step::Unlink { dir, name }),
        3 => (pick(), name()).prop_map(|(dir, name)| Step::RmDir { dir, name }),
        14 => (pick(), name(), pick(), name(), flags).prop_map(|(dir, name, to, to_name, flags)| {
            Step::Rename { dir, name, to, to_name, flags }
        }),
        4 => (pick(), 0u8..128, any::<u16>())
            .prop_map(|(ino, what, value)| Step::SetAttr { ino, what, value: value.into() }),
        5 => (pick(), size()).prop_map(|(ino, size)| Step::Truncate { ino, size }),
        2 => (pick(), name(), 0usize..300, 0u32..4)
            .prop_map(|(ino, name, len, flags)| Step::SetXattr { ino, name, len, flags }),
        1 => (pick(), name()).prop_map(|(ino, name)| Step::RemoveXattr { ino, name }),
        2 => (pick(), 0u32..1500)
            .prop_map(|(ino, inline_limit)| Step::SetLayout { ino, inline_limit }),
        14 => (pick(), prop::collection::vec(piece(), 0..5), prop::bool::weighted(0.3), size())
            .prop_map(|(ino, pieces, append, min_size)| Step::Commit { ino, pieces, append,
                min_size: min_size % 4000 }),
        6 => (pick(), 0u64..2500, length(), any::<bool>(), prop::bool::weighted(0.7)).prop_map(
            |(ino, off, len, keep_size, hole)| Step::Fallocate { ino, off, len, keep_size, hole }
        ),
        8 => (pick(), 0u64..1500, pick(), 0u64..2500, length()).prop_map(
            |(from, from_off, to, to_off, len)| Step::CopyRange { from, from_off, to, to_off, len }
        ),
        1 => Just(Step::Purge),
        1 => Just(Step::Free),
        2 => Just(Step::Retry),
    ]
}
