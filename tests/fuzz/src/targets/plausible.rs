//! Requests that were drawn, made such that they could be meant: content in order and apart, in
//! segments that its session has written; inodes with numbers that were set aside for it.

use crate::draw::Source;
use v1::batch_op::step::Op as StepOp;
use v1::extent::Source as From;
use v1::meta_request::Op;
use weft_proto::v1;

/// Bytes of a shard's part of a stripe, of a segment with two stripes, and of an inline piece.
const UNIT: u32 = 4096;
const SEGMENT: u64 = 4 * UNIT as u64;
const INLINE: u64 = 300;

/// Who asks.
pub struct Asker {
    pub session: u64,
    /// Of the next request.
    pub number: u64,
    /// Of the last segment.
    pub segment: u64,
    /// Numbers that were set aside.
    pub reserved: Vec<u64>,
}

impl Asker {
    /// Of a new session.
    pub fn of(session: u64) -> Self {
        Self { session, number: 0, segment: 0, reserved: Vec::new() }
    }

    /// Makes it such that it could be meant.
    pub fn mend(&mut self, op: &mut Op, source: &mut Source<'_>) {
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
            Op::ReserveInodes(op) => op.count = 1 + op.count % 8,
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
