//! Makes a range of a file show what another range holds, without moving data: extents of both
//! point at the same segments. A segment lives until the last byte of it goes, whoever points at it
//! ([`crate::tables::content`]).
//! What a confined client has stored it may delete, too: it is shared in its own session, and moved
//! by all others.

use crate::operation::{Context, Fault, Operation, Reply, refuse};
use crate::schema::{self, Inode, Segment};
use crate::store::{Read, StoreError, StoreResult, Txn};
use crate::tables::content::STEP;
use crate::tables::content::{self, Edit, MAX_FILE, end, part, segment_of};
use crate::tables::inodes;
use std::collections::BTreeMap;
use weft_proto::{ErrorKind, Layout, SegmentId, SessionId, v1};

/// Most extents in one copy. A longer one is cut short, and one onto more than [`STEP`], too.
const MAX_EXTENTS: usize = 4096;

pub(crate) struct Plan {
    to: Inode,
    /// What is put in, at its place there.
    extents: Vec<v1::Extent>,
    copied: u64,
}

impl Operation for v1::CopyRangeOp {
    type Plan = Plan;

    fn check(&self, state: &dyn Read, cx: &Context) -> Result<Plan, Fault> {
        let (from, _) = inodes::file(state, self.from)?;
        let (to, layout) = inodes::file(state, self.to)?;
        let len = self.len.min(from.attr.size.saturating_sub(self.from_off));
        let fits = self.to_off.checked_add(len).is_some_and(|end| end <= MAX_FILE);
        if !fits {
            return refuse(
                ErrorKind::TooLarge,
                format!("{len} bytes at {} end beyond the longest file, {MAX_FILE}", self.to_off),
            );
        }
        if self.from == self.to && len > 0 && self.from_off.abs_diff(self.to_off) < len {
            return refuse(ErrorKind::Invalid, "a range cannot be copied onto a part of itself");
        }
        let len = match self.to_off + len {
            stop if len > 0 => content::reach(state, &to, self.to_off, stop, STEP)? - self.to_off,
            _ => 0,
        };
        let (session, segments) = (cx.session, BTreeMap::new());
        let mut copy = Copy { op: self, state, to, layout, session, segments, inline: 0 };
        let (extents, copied) = copy.gather(&from, len)?;
        Ok(Plan { to: copy.to, extents, copied })
    }

    fn apply(&self, plan: Plan, tx: &mut Txn<'_>, cx: &Context) -> StoreResult<Reply> {
        let Plan { to, extents, copied } = plan;
        let mut attr = to.attr;
        if copied > 0 {
            let mut edit = Edit::new(to);
            edit.file.attr.data_version += 1;
            edit.file.attr.mtime_ns = cx.now;
            edit.file.attr.ctime_ns = cx.now;
            let (size, stop) = (edit.file.attr.size, self.to_off + copied);
            if self.to_off < size {
                edit.punch(tx, self.to_off, stop.min(size))?;
            }
            for e in extents {
                edit.insert(tx, e)?;
            }
            edit.file.attr.size = size.max(stop);
            attr = edit.finish(tx, &[])?.attr;
        }
        Ok(Reply::CopyRange(v1::CopyRangeReply { attr: Some(attr), copied }))
    }
}

struct Copy<'a> {
    op: &'a v1::CopyRangeOp,
    state: &'a dyn Read,
    to: Inode,
    layout: Layout,
    session: SessionId,
    /// Whether a segment may be shared, if it was looked at.
    segments: BTreeMap<SegmentId, bool>,
    /// Inline bytes that come in.
    inline: u64,
}

impl Copy<'_> {
    /// What is in `len` bytes of the source, up to what cannot be shared. Refused if that comes
    /// first.
    fn gather(&mut self, from: &Inode, len: u64) -> Result<(Vec<v1::Extent>, u64), Fault> {
        let (start, stop) = (self.op.from_off, self.op.from_off.saturating_add(len));
        let (mut extents, mut copied, mut obstacle) = (Vec::new(), len, None);
        let state = self.state;
        content::walk(state, from, start, false, |e| {
            let (first, last) = (e.file_off.max(start), end(&e).min(stop));
            if first >= last {
                return Ok(false);
            }
            let mut e = part(&e, first, last);
            e.file_off = self.op.to_off + (first - start);
            obstacle = match extents.len() < MAX_EXTENTS {
                true => self.obstacle(&e)?,
                false => Some(ErrorKind::Busy),
            };
            match obstacle {
                None => extents.push(e),
                Some(_) => copied = first - start,
            }
            Ok(obstacle.is_none())
        })?;
        match obstacle {
            Some(kind) if copied == 0 => refuse(
                kind,
                format!(
                    "inode {} cannot share the data at {start} of {}",
                    self.op.to, self.op.from
                ),
            ),
            _ => Ok((extents, copied)),
        }
    }

    /// Why an extent cannot be put into the file, if so.
    fn obstacle(&mut self, e: &v1::Extent) -> StoreResult<Option<ErrorKind>> {
        let Some(id) = segment_of(e) else {
            self.inline += e.len;
            return Ok(self.inline_full(end(e))?.then_some(ErrorKind::InlineFull));
        };
        let may_share = match self.segments.get(&id) {
            Some(&known) => known,
            None => {
                let segment: Segment = self.state.load(&schema::segment(id))?.ok_or_else(|| {
                    StoreError::corrupt(format!("segment {id} of an extent is missing"))
                })?;
                let geometry = segment.info.geometry();
                let profile = geometry.map_err(|e| StoreError::corrupt(e.to_string()))?.profile;
                // It has the redundancy that the layout asks for.
                let enough = profile.m() >= self.layout.profile.m();
                let may_share = enough && (!segment.confined || id.session == self.session);
                self.segments.insert(id, may_share);
                may_share
            }
        };
        Ok((!may_share).then_some(ErrorKind::CrossDevice))
    }

    /// Whether the file has too many inline bytes once all up to `to` is copied.
    fn inline_full(&self, to: u64) -> StoreResult<bool> {
        let (had, limit) = (self.to.attr.inline_bytes, u64::from(self.layout.inline_limit));
        if had + self.inline <= limit {
            return Ok(false);
        }
        let replaced = content::inline_within(self.state, &self.to, self.op.to_off, to)?;
        Ok(had + self.inline - replaced > limit)
    }
}
