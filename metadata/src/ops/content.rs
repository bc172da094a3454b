//! The content of files: which extents cover which bytes, and how many live bytes that leaves in
//! each segment.
//!
//! Invariants: extents of a file do not overlap and end within its size; neighbours that one extent
//! could express are one; a file's `allocated` and `inline_bytes` are the sums over its extents; a
//! segment's `live_bytes` is the sum over all extents that point at it, and at 0 it is garbage.

use super::Fault;
use crate::schema::{self, Inode, Segment, Tag};
use crate::store::{Read, StoreError, StoreResult, Txn};
use bytes::BytesMut;
use std::collections::BTreeMap;
use v1::extent::Source;
pub(super) use weft_proto::layout::MAX_FILE;
use weft_proto::{InodeId, SegmentId, v1};

/// Neighbouring inline extents are joined up to this many bytes, so that small appends neither
/// pile up nor rewrite much.
const INLINE_JOIN: usize = 4096;

/// End of an extent. Stored extents are checked to be within bounds.
pub(super) fn end(e: &v1::Extent) -> u64 {
    e.file_off.saturating_add(e.len)
}

fn inline_len(e: &v1::Extent) -> u64 {
    match &e.source {
        Some(Source::Inline(bytes)) => bytes.len() as u64,
        _ => 0,
    }
}

/// The part `[from, to)` of an extent, both within it.
pub(super) fn part(e: &v1::Extent, from: u64, to: u64) -> v1::Extent {
    let skip = from - e.file_off;
    let source = e.source.as_ref().map(|source| match source {
        Source::Segment(p) => {
            Source::Segment(v1::SegmentPart { id: p.id, off: p.off.saturating_add(skip) })
        }
        Source::Inline(bytes) => {
            let at = |n: u64| (n as usize).min(bytes.len());
            Source::Inline(bytes.slice(at(skip)..at(to - e.file_off)))
        }
    });
    v1::Extent { file_off: from, len: to - from, source }
}

/// The segment that an extent points at.
pub(super) fn segment_of(e: &v1::Extent) -> Option<SegmentId> {
    match &e.source {
        Some(Source::Segment(p)) => p.id.map(Into::into),
        _ => None,
    }
}

/// One extent for two neighbours, if one can express both.
fn joined(left: &v1::Extent, right: &v1::Extent) -> Option<v1::Extent> {
    let source = match (left.source.as_ref()?, right.source.as_ref()?) {
        (Source::Segment(a), Source::Segment(b))
            if a.id == b.id && a.off.checked_add(left.len) == Some(b.off) =>
        {
            Source::Segment(*a)
        }
        (Source::Inline(a), Source::Inline(b)) if a.len() + b.len() <= INLINE_JOIN => {
            let mut both = BytesMut::with_capacity(a.len() + b.len());
            both.extend_from_slice(a);
            both.extend_from_slice(b);
            Source::Inline(both.freeze())
        }
        _ => return None,
    };
    Some(v1::Extent { file_off: left.file_off, len: left.len + right.len, source: Some(source) })
}

/// Visits the extents of a file that reach beyond `from`, or end there if `touching`, in order,
/// until `visit` answers false.
pub(super) fn walk(
    state: &dyn Read,
    file: &Inode,
    from: u64,
    touching: bool,
    mut visit: impl FnMut(v1::Extent) -> StoreResult<bool>,
) -> StoreResult<()> {
    if file.allocated == 0 {
        return Ok(());
    }
    let content = file.content_id();
    let first = from.saturating_add(u64::from(!touching));
    let (_, to) = schema::all_of(Tag::Extent, content);
    state.records((schema::extent(content, first), to), |_, e| visit(e))
}

/// Inline bytes of the file within `[from, to)`.
pub(super) fn inline_within(
    state: &dyn Read,
    file: &Inode,
    from: u64,
    to: u64,
) -> StoreResult<u64> {
    let mut sum = 0;
    walk(state, file, from, false, |e| {
        if e.file_off < to && inline_len(&e) > 0 {
            sum += end(&e).min(to) - e.file_off.max(from);
        }
        Ok(e.file_off < to)
    })?;
    Ok(sum)
}

/// A change of one file's extents: the inode as it becomes, and what each segment gains or loses.
/// Nothing is complete until [`Edit::finish`].
pub(super) struct Edit {
    pub file: Inode,
    live: BTreeMap<SegmentId, i128>,
}

impl Edit {
    pub(super) fn new(file: Inode) -> Self {
        Self { file, live: BTreeMap::new() }
    }

    fn count(&mut self, e: &v1::Extent, sign: i128) {
        if let Some(id) = segment_of(e) {
            *self.live.entry(id).or_default() += sign * i128::from(e.len);
        }
        let apply = |sum: u64, n: u64| match sign > 0 {
            true => sum.saturating_add(n),
            false => sum.saturating_sub(n),
        };
        self.file.set_allocated(apply(self.file.allocated, e.len));
        self.file.attr.inline_bytes = apply(self.file.attr.inline_bytes, inline_len(e));
    }

    fn put(&mut self, tx: &mut Txn<'_>, e: &v1::Extent) {
        self.count(e, 1);
        tx.put(schema::extent(self.file.content_id(), end(e)), e);
    }

    fn take(&mut self, tx: &mut Txn<'_>, e: &v1::Extent) {
        self.count(e, -1);
        tx.delete(schema::extent(self.file.content_id(), end(e)));
    }

    /// Makes a hole of `[from, to)`. Answers the extents that touch the hole from outside.
    pub(super) fn punch(
        &mut self,
        tx: &mut Txn<'_>,
        from: u64,
        to: u64,
    ) -> StoreResult<(Option<v1::Extent>, Option<v1::Extent>)> {
        let mut near = Vec::new();
        walk(tx.state(), &self.file, from, true, |e| {
            let on = e.file_off <= to;
            if on {
                near.push(e);
            }
            Ok(on)
        })?;
        let (mut left, mut right) = (None, None);
        for e in near {
            let (start, stop) = (e.file_off, end(&e));
            if stop == from {
                left = Some(e);
                continue;
            }
            if start == to {
                right = Some(e);
                continue;
            }
            self.take(tx, &e);
            if start < from {
                let rest = part(&e, start, from);
                self.put(tx, &rest);
                left = Some(rest);
            }
            if stop > to {
                let rest = part(&e, to, stop);
                self.put(tx, &rest);
                right = Some(rest);
            }
        }
        Ok((left, right))
    }

    /// Puts an extent in place of whatever lies there.
    pub(super) fn insert(&mut self, tx: &mut Txn<'_>, mut e: v1::Extent) -> StoreResult<()> {
        let (left, right) = if e.file_off >= self.file.attr.size {
            // Nothing lies at or behind the end of file: at most a neighbour before it.
            let key = schema::extent(self.file.content_id(), e.file_off);
            let left = if self.file.allocated == 0 { None } else { tx.state().load(&key)? };
            (left, None)
        } else {
            self.punch(tx, e.file_off, end(&e))?
        };
        if let Some(left) = left
            && let Some(both) = joined(&left, &e)
        {
            self.take(tx, &left);
            e = both;
        }
        if let Some(right) = right
            && let Some(both) = joined(&e, &right)
        {
            self.take(tx, &right);
            e = both;
        }
        self.put(tx, &e);
        self.file.attr.size = self.file.attr.size.max(end(&e));
        Ok(())
    }

    /// Stores the inode and settles the segments: new ones are recorded, those without live bytes
    /// become garbage.
    pub(super) fn finish(self, tx: &mut Txn<'_>, new: &[v1::SegmentInfo]) -> StoreResult<Inode> {
        let new: BTreeMap<SegmentId, &v1::SegmentInfo> =
            new.iter().filter_map(|info| Some((info.id?.into(), info))).collect();
        for (id, change) in self.live {
            let key = schema::segment(id);
            let mut segment = match new.get(&id) {
                Some(&info) => Segment { info: info.clone(), live_bytes: 0 },
                None if change == 0 => continue,
                None => tx.state().load(&key)?.ok_or_else(|| {
                    StoreError::corrupt(format!("segment {id} of an extent is missing"))
                })?,
            };
            let live = i128::from(segment.live_bytes) + change;
            segment.live_bytes = u64::try_from(live).map_err(|_| {
                StoreError::corrupt(format!("segment {id} would have {live} live bytes"))
            })?;
            if segment.live_bytes == 0 {
                tx.delete(key);
                tx.put(schema::garbage(id), &segment.info);
            } else {
                tx.put(key, &segment);
            }
        }
        tx.put_inode(&self.file);
        Ok(self.file)
    }
}

/// Up to `limit` extents of a file are deleted; answers how many, and the inode as stored.
pub(super) fn purge(tx: &mut Txn<'_>, file: Inode, limit: usize) -> StoreResult<(usize, Inode)> {
    let mut doomed = Vec::new();
    if limit > 0 {
        walk(tx.state(), &file, 0, false, |e| {
            doomed.push(e);
            Ok(doomed.len() < limit)
        })?;
    }
    let mut edit = Edit::new(file);
    for e in &doomed {
        edit.take(tx, e);
    }
    Ok((doomed.len(), edit.finish(tx, &[])?))
}

/// Whether the file has more than `limit` extents.
pub(super) fn has_more_than(state: &dyn Read, file: &Inode, limit: usize) -> StoreResult<bool> {
    let mut seen = 0;
    walk(state, file, 0, false, |_| {
        seen += 1;
        Ok(seen <= limit)
    })?;
    Ok(seen > limit)
}

/// The records of the segments that extents point at, each once.
pub(super) fn segments(
    state: &dyn Read,
    extents: &[v1::Extent],
) -> Result<Vec<v1::SegmentInfo>, Fault> {
    let ids: std::collections::BTreeSet<_> = extents.iter().filter_map(segment_of).collect();
    let mut infos = Vec::with_capacity(ids.len());
    for id in ids {
        let segment: Segment = state
            .load(&schema::segment(id))?
            .ok_or_else(|| StoreError::corrupt(format!("segment {id} of an extent is missing")))?;
        infos.push(segment.info);
    }
    Ok(infos)
}

/// Hands all extents of a file to `heir`, an inode without any: the two exchange their content.
pub(super) fn hand_over(file: &mut Inode, heir: &mut Inode) {
    let (old, fresh): (InodeId, InodeId) = (file.content_id(), heir.content_id());
    file.content = fresh.0;
    heir.content = old.0;
    heir.set_allocated(file.allocated);
    heir.attr.inline_bytes = file.attr.inline_bytes;
    heir.attr.size = file.attr.size;
    file.set_allocated(0);
    file.attr.inline_bytes = 0;
}
