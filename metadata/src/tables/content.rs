//! The content of files: which extents cover which bytes, and how many live bytes that leaves in
//! each segment.
//!
//! Invariants: extents of a file do not overlap and end within its size; neighbours that one extent
//! could express are one; a file's `allocated` and `inline_bytes` are the sums over its extents; a
//! segment's `live_bytes` is the sum over all extents that point at it, and at 0 it is garbage; a
//! placement group counts the segments that name it, garbage too.
//!
//! Who takes away a range of very many extents only notes that it is cut out: nobody sees them from
//! then on, and the leader has them deleted step by step ([`trim`]). Until then they count as
//! allocated.

use crate::operation::Fault;
use crate::schema::{self, Inode, Segment, Span, Tag};
use crate::store::{Read, StoreError, StoreResult, Txn};
use crate::tables::scattered;
use bytes::BytesMut;
use std::collections::BTreeMap;
use v1::extent::Source;
pub(crate) use weft_proto::layout::MAX_FILE;

/// Most extents that one entry deletes; after as many extents and attributes it goes on to no other
/// inode.
pub(crate) const STEP: usize = 2048;
use weft_proto::{InodeId, SegmentId, v1};

/// Neighbouring inline extents are joined up to this many bytes, so that small appends neither
/// pile up nor rewrite much.
const INLINE_JOIN: usize = 4096;

/// End of an extent. Stored extents are checked to be within bounds.
pub(crate) fn end(e: &v1::Extent) -> u64 {
    e.file_off.saturating_add(e.len)
}

fn inline_len(e: &v1::Extent) -> u64 {
    match &e.source {
        Some(Source::Inline(bytes)) => bytes.len() as u64,
        _ => 0,
    }
}

/// The part `[from, to)` of an extent, both within it.
pub(crate) fn part(e: &v1::Extent, from: u64, to: u64) -> v1::Extent {
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
pub(crate) fn segment_of(e: &v1::Extent) -> Option<SegmentId> {
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
pub(crate) fn walk(
    state: &dyn Read,
    file: &Inode,
    from: u64,
    touching: bool,
    mut visit: impl FnMut(v1::Extent) -> StoreResult<bool>,
) -> StoreResult<()> {
    let (mut from, mut touching) = (from, touching);
    loop {
        let mut cut = None;
        walk_all(state, file, from, touching, |e| {
            cut = cut_around(file, &e);
            if cut.is_some() { Ok(false) } else { visit(e) }
        })?;
        match cut {
            // On behind it.
            Some(span) => (from, touching) = (span.to, false),
            None => return Ok(()),
        }
    }
}

/// As [`walk`], with those that are cut out.
fn walk_all(
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

/// The range that an extent is cut out with.
fn cut_around(file: &Inode, e: &v1::Extent) -> Option<Span> {
    file.cut.iter().find(|span| span.from <= e.file_off && end(e) <= span.to).copied()
}

/// Where a range of the file ends that begins at `from`, goes no further than `to`, and has at most
/// `limit` extents, those that are cut out among them.
pub(crate) fn reach(
    state: &dyn Read,
    file: &Inode,
    from: u64,
    to: u64,
    limit: usize,
) -> StoreResult<u64> {
    let (mut seen, mut reach) = (0, to);
    walk_all(state, file, from, false, |e| {
        seen += 1;
        if seen > limit {
            reach = to.min(e.file_off);
        }
        Ok(seen <= limit && e.file_off < to)
    })?;
    Ok(reach)
}

/// Inline bytes of the file within `[from, to)`.
pub(crate) fn inline_within(
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
pub(crate) struct Edit {
    pub file: Inode,
    live: BTreeMap<SegmentId, i128>,
}

impl Edit {
    pub(crate) fn new(file: Inode) -> Self {
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
    pub(crate) fn punch(
        &mut self,
        tx: &mut Txn<'_>,
        from: u64,
        to: u64,
    ) -> StoreResult<(Option<v1::Extent>, Option<v1::Extent>)> {
        let mut near = Vec::new();
        walk_all(tx.state(), &self.file, from, true, |e| {
            let on = e.file_off <= to;
            if on {
                near.push(e);
            }
            Ok(on)
        })?;
        let (mut left, mut right) = (None, None);
        for e in near {
            let (start, stop) = (e.file_off, end(&e));
            let shown = cut_around(&self.file, &e).is_none();
            if stop == from {
                left = Some(e).filter(|_| shown);
                continue;
            }
            if start == to {
                right = Some(e).filter(|_| shown);
                continue;
            }
            self.take(tx, &e);
            if start < from {
                let rest = part(&e, start, from);
                self.put(tx, &rest);
                left = Some(rest).filter(|_| shown);
            }
            if stop > to {
                let rest = part(&e, to, stop);
                self.put(tx, &rest);
                right = Some(rest).filter(|_| shown);
            }
        }
        self.cut_no_more(tx, from, to);
        Ok((left, right))
    }

    /// Nothing that is cut out lies in `[from, to)` any more.
    fn cut_no_more(&mut self, tx: &mut Txn<'_>, from: u64, to: u64) {
        if self.file.cut.is_empty() {
            return;
        }
        let around = |span: &Span| {
            let before = Span { from: span.from, to: span.to.min(from) };
            let behind = Span { from: span.from.max(to), to: span.to };
            [before, behind].into_iter().filter(|rest| rest.from < rest.to)
        };
        self.file.cut = self.file.cut.iter().flat_map(around).collect();
        if self.file.cut.is_empty() {
            tx.delete(schema::trim(self.file.ino()));
        }
    }

    /// Makes a hole of `[from, to)`. If over `limit` extents lie there, they are cut out.
    pub(crate) fn clear(
        &mut self,
        tx: &mut Txn<'_>,
        from: u64,
        to: u64,
        limit: usize,
    ) -> StoreResult<()> {
        if from >= to {
            return Ok(());
        }
        if reach(tx.state(), &self.file, from, to, limit)? == to {
            return self.punch(tx, from, to).map(drop);
        }
        self.split(tx, from)?;
        self.split(tx, to)?;
        let mut all = Span { from, to };
        self.file.cut.retain(|span| {
            let apart = span.to < all.from || all.to < span.from;
            if !apart {
                all = Span { from: all.from.min(span.from), to: all.to.max(span.to) };
            }
            apart
        });
        let at = self.file.cut.partition_point(|span| span.from < all.from);
        self.file.cut.insert(at, all);
        tx.put_bytes(schema::trim(self.file.ino()), Default::default());
        Ok(())
    }

    /// Makes two of an extent that reaches over `at`.
    fn split(&mut self, tx: &mut Txn<'_>, at: u64) -> StoreResult<()> {
        let mut over = None;
        walk_all(tx.state(), &self.file, at, false, |e| {
            over = Some(e).filter(|e| e.file_off < at);
            Ok(false)
        })?;
        if let Some(e) = over {
            self.take(tx, &e);
            self.put(tx, &part(&e, e.file_off, at));
            self.put(tx, &part(&e, at, end(&e)));
        }
        Ok(())
    }

    /// Puts an extent in place of whatever lies there.
    pub(crate) fn insert(&mut self, tx: &mut Txn<'_>, mut e: v1::Extent) -> StoreResult<()> {
        let (left, right) = if e.file_off >= self.file.attr.size && self.file.cut.is_empty() {
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
    /// become garbage. A file that may be worth being put together is listed.
    pub(crate) fn finish(self, tx: &mut Txn<'_>, new: &[v1::SegmentInfo]) -> StoreResult<Inode> {
        let new: BTreeMap<SegmentId, &v1::SegmentInfo> =
            new.iter().filter_map(|info| Some((info.id?.into(), info))).collect();
        let mut is_scattered = false;
        for (id, change) in self.live {
            let key = schema::segment(id);
            let mut segment = match new.get(&id) {
                Some(&info) => {
                    tx.enter_group(info.pg, id)?;
                    let writer = tx.state().session(id.session)?;
                    let confined = writer.is_some_and(|session| session.confined);
                    Segment { info: info.clone(), live_bytes: 0, confined }
                }
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
                let is_new = new.contains_key(&id);
                if is_new || change < 0 {
                    is_scattered |= scattered::suspects(tx.state(), &self.file, &segment, is_new)?;
                }
                tx.put(key, &segment);
            }
        }
        if is_scattered {
            tx.put_bytes(schema::scattered(self.file.ino()), Default::default());
        }
        tx.put_inode(&self.file)?;
        Ok(self.file)
    }
}

/// Up to `limit` extents of a file are deleted; answers how many, and the inode as stored.
pub(crate) fn purge(tx: &mut Txn<'_>, file: Inode, limit: usize) -> StoreResult<(usize, Inode)> {
    let mut doomed = Vec::new();
    if limit > 0 {
        walk_all(tx.state(), &file, 0, false, |e| {
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

/// Up to `limit` extents that are cut out of a file are deleted; answers how many.
pub(crate) fn trim(tx: &mut Txn<'_>, file: Inode, limit: usize) -> StoreResult<usize> {
    let mut doomed: Vec<v1::Extent> = Vec::new();
    let mut edit = Edit::new(file);
    for span in edit.file.cut.clone() {
        if doomed.len() >= limit {
            break;
        }
        let mut to = span.to;
        walk_all(tx.state(), &edit.file, span.from, false, |e| {
            if e.file_off >= span.to || doomed.len() >= limit {
                to = to.min(e.file_off);
                return Ok(false);
            }
            doomed.push(e);
            Ok(true)
        })?;
        edit.cut_no_more(tx, span.from, to);
    }
    for e in &doomed {
        edit.take(tx, e);
    }
    edit.finish(tx, &[])?;
    Ok(doomed.len())
}

/// Whether the file has more than `limit` extents.
pub(crate) fn has_more_than(state: &dyn Read, file: &Inode, limit: usize) -> StoreResult<bool> {
    Ok(reach(state, file, 0, u64::MAX, limit)? < u64::MAX)
}

/// The records of the segments that extents point at, each once.
pub(crate) fn segments(
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
pub(crate) fn hand_over(tx: &mut Txn<'_>, file: &mut Inode, heir: &mut Inode) {
    // What is to be deleted anyway needs no trimming.
    file.cut.clear();
    tx.delete(schema::trim(file.ino()));
    let (old, fresh): (InodeId, InodeId) = (file.content_id(), heir.content_id());
    file.content = fresh.0;
    heir.content = old.0;
    heir.set_allocated(file.allocated);
    heir.attr.inline_bytes = file.attr.inline_bytes;
    heir.attr.size = file.attr.size;
    file.set_allocated(0);
    file.attr.inline_bytes = 0;
}

#[cfg(test)]
mod tests;
