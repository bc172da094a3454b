//! A client that asks for whatever is drawn. Most of it could be meant: it is about inodes that
//! there are, content is in order and apart, in segments that its session has written, and new
//! inodes have numbers that were set aside for it.

use crate::draw::{Source, one_of};
use v1::batch_op::step::Op as StepOp;
use v1::extent::Source as From;
use v1::meta_reply::Result as Reply;
use v1::meta_request::Op;
use weft_proto::v1;

/// Bytes of a shard's part of a stripe, of a segment with two stripes, and of an inline piece.
const UNIT: u32 = 4096;
const SEGMENT: u64 = 4 * UNIT as u64;
const INLINE: u64 = 300;

/// What changes something.
const CHANGES: &[&str] = &[
    "create",
    "mk_nod",
    "mk_dir",
    "sym_link",
    "link",
    "unlink",
    "rm_dir",
    "rename",
    "set_attr",
    "set_xattr",
    "remove_xattr",
    "set_layout",
    "commit_extents",
    "tmp_file",
    "fallocate",
    "copy_range",
    "accessed",
    "reserve_inodes",
    "make_files",
    "batch",
    "set_lock",
    "set_quota",
];

/// Numbers that are set aside at once, at least.
const RESERVED: u64 = 8;

/// A client with a session.
pub struct Asker {
    pub session: u64,
    /// Of the last request, and of the last segment.
    number: u64,
    segment: u64,
    /// Numbers that were set aside.
    reserved: Vec<u64>,
    /// Directories, and all inodes, that it was told of.
    directories: Vec<u64>,
    inodes: Vec<u64>,
}

impl Asker {
    /// Of a new session, which knows the root.
    pub fn of(session: u64) -> Self {
        Self {
            session,
            number: 0,
            segment: 0,
            reserved: Vec::new(),
            directories: vec![1],
            inodes: vec![1],
        }
    }

    /// The next request. `how` it is meant: some as they are drawn, some with the last number.
    pub fn ask(&mut self, how: u8, source: &mut Source<'_>) -> v1::MetaRequest {
        source.directories.clone_from(&self.directories);
        source.inodes.clone_from(&self.inodes);
        source.inodes.extend(&self.reserved);
        let mut request: v1::MetaRequest = one_of(CHANGES, source);
        if let Some(op) = &mut request.op
            && how & 14 != 0
        {
            self.mend(op, source);
        }
        self.number += u64::from(how & 62 != 2 || self.number == 0);
        (request.session, request.number) = (self.session, self.number);
        request.acked_below = self.number.saturating_sub(3);
        request
    }

    /// Remembers what it is told.
    pub fn note(&mut self, told: &Reply) {
        match told {
            Reply::ReserveInodes(some) => self.reserved.extend(some.first..some.first + RESERVED),
            Reply::Attr(attr) | Reply::Open(v1::OpenReply { attr: Some(attr), .. }) => {
                if attr.kind() == v1::FileKind::Directory && !self.directories.contains(&attr.ino) {
                    self.directories.push(attr.ino);
                }
                if !self.inodes.contains(&attr.ino) {
                    self.inodes.push(attr.ino);
                }
            }
            _ => {}
        }
    }

    /// Makes it such that it could be meant.
    fn mend(&mut self, op: &mut Op, source: &mut Source<'_>) {
        match op {
            Op::CommitExtents(op) => self.mend_commit(op, source),
            Op::MakeFiles(op) => {
                for file in &mut op.files {
                    self.mend_number(&mut file.ino, source);
                    file.session = 0;
                    if let Some(content) = &mut file.content {
                        content.ino = file.ino;
                        self.mend_commit(content, source);
                    }
                }
            }
            Op::Batch(op) => {
                op.session = 0;
                op.steps.iter_mut().for_each(|step| self.mend_step(step, source));
            }
            Op::Rename(op) => op.flags %= 5,
            Op::ReserveInodes(op) => op.count = RESERVED as u32 + op.count % 8,
            _ => {}
        }
    }

    fn mend_step(&mut self, step: &mut v1::batch_op::Step, source: &mut Source<'_>) {
        match &mut step.op {
            Some(StepOp::Make(op)) => {
                self.mend_number(&mut op.ino, source);
                op.kind = [v1::FileKind::Regular, v1::FileKind::Directory]
                    [usize::from(source.byte()) % 2] as i32;
            }
            Some(StepOp::Commit(op)) => {
                if source.byte() & 1 == 1 {
                    self.mend_number(&mut op.ino, source);
                }
                self.mend_commit(op, source);
            }
            _ => {}
        }
    }

    fn mend_number(&self, ino: &mut u64, source: &mut Source<'_>) {
        if !self.reserved.is_empty() {
            *ino = self.reserved[usize::from(source.byte()) % self.reserved.len()];
        }
    }

    fn mend_commit(&mut self, op: &mut v1::CommitExtentsOp, source: &mut Source<'_>) {
        for info in &mut op.segments {
            self.segment += 1;
            info.id = Some(v1::SegmentKey { session: self.session, seq: self.segment });
            info.profile = Some(v1::ProfileInfo { k: 2, m: 1 });
            (info.unit, info.length, info.pg) = (UNIT, SEGMENT, 1);
            info.seats = vec![0, 1, 2 + source.byte() % 2].into();
        }
        let mut at = 0;
        for (number, extent) in op.extents.iter_mut().enumerate() {
            at += u64::from(source.byte() % 4) * 4096;
            extent.file_off = at;
            match &mut extent.source {
                // Those that are new first: each must be used.
                Some(From::Segment(part)) => {
                    let key = v1::SegmentKey {
                        session: self.session,
                        seq: self.segment.saturating_sub(source.byte().into()),
                    };
                    part.id = op.segments.get(number).map_or(Some(key), |info| info.id);
                    part.off %= SEGMENT;
                    extent.len = 1 + extent.len % (SEGMENT - part.off);
                }
                _ => {
                    extent.len = 1 + extent.len % INLINE;
                    extent.source = Some(From::Inline(vec![7; extent.len as usize].into()));
                }
            }
            at += extent.len;
        }
        let used = op.extents.iter().filter(|e| matches!(e.source, Some(From::Segment(_)))).count();
        op.segments.truncate(used);
        (op.append, op.min_size) = (op.append && op.min_size == 0, op.min_size % (1 << 20));
    }
}
