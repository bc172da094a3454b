//! Shows bytes of a file from where they were written again.
//!
//! Nothing of the file changes but where its bytes are: a move has effect only where the file still
//! shows the very bytes that were copied. What was overwritten, cut or moved meanwhile stays as it
//! is, and a new segment that is of no use then is garbage at once (I7).

use super::commit_extents::check_new_segments;
use crate::operation::{Context, EMPTY, Fault, Operation, Reply, refuse};
use crate::schema::{self, Inode};
use crate::store::{Read, StoreResult, Txn};
use crate::tables::content::{Edit, end, segment_of, walk};
use crate::tables::{inodes, sessions};
use std::collections::BTreeSet;
use v1::extent::Source;
use v1::move_extents_entry::Move;
use weft_proto::{ErrorKind, InodeId, Profile, SegmentId, SessionId, v1};

/// Most moves in one entry.
const MAX_MOVES: usize = 8192;

impl Operation for v1::MoveExtentsEntry {
    /// The file; `None` if it is no more.
    type Plan = Option<Inode>;

    fn check(&self, state: &dyn Read, cx: &Context) -> Result<Self::Plan, Fault> {
        let writer = SessionId(self.session);
        sessions::must_exist(state, writer)?;
        let by = Context { session: writer, ..cx.clone() };
        let new = check_new_segments(state, &self.segments, &by)?;
        if self.moves.len() > MAX_MOVES {
            let what = format!("{} moves in one entry, over {MAX_MOVES}", self.moves.len());
            return refuse(ErrorKind::Invalid, what);
        }
        let mut at = 0;
        for m in &self.moves {
            let (Some(from), Some(to)) = (&m.from, &m.to) else {
                return refuse(ErrorKind::Protocol, "a move from or to no segment");
            };
            let (known, id) = (from.id.is_some(), to.id.map(SegmentId::from));
            let length = id.and_then(|id| new.get(&id)).map_or(0, |info| info.length);
            let within = to.off.checked_add(m.len).is_some_and(|end| end <= length);
            let stop = m.file_off.checked_add(m.len);
            let Some(stop) = stop.filter(|_| known && within && m.len > 0 && m.file_off >= at)
            else {
                let what = format!("move of {} bytes at {} makes no sense", m.len, m.file_off);
                return refuse(ErrorKind::Invalid, what);
            };
            at = stop;
        }
        if state.inode(InodeId(self.ino))?.is_none() {
            return Ok(None);
        }
        let (file, layout) = inodes::file(state, self.ino)?;
        for info in new.values() {
            let profile: Profile = info.geometry()?.profile;
            if profile.m() < layout.profile.m() {
                let what = format!("{profile} is less than the {} of the file", layout.profile);
                return refuse(ErrorKind::Invalid, what);
            }
        }
        Ok(Some(file))
    }

    fn apply(&self, file: Option<Inode>, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        let mut used = BTreeSet::new();
        if let Some(file) = file {
            let mut edit = Edit::new(file);
            for m in &self.moves {
                for moved in still_shown(tx.state(), &edit.file, m)? {
                    used.extend(segment_of(&moved));
                    edit.insert(tx, moved)?;
                }
            }
            if !used.is_empty() {
                edit.finish(tx, &self.segments)?;
            }
        }
        for info in &self.segments {
            let Some(id) = info.id.map(SegmentId::from).filter(|id| !used.contains(id)) else {
                continue;
            };
            tx.enter_group(info.pg, id)?;
            tx.put(schema::garbage(id), info);
        }
        Ok(EMPTY)
    }
}

/// The parts of a move whose bytes the file shows from where they were copied, as they become.
fn still_shown(state: &dyn Read, file: &Inode, m: &Move) -> StoreResult<Vec<v1::Extent>> {
    let (Some(from), Some(to)) = (&m.from, &m.to) else { return Ok(Vec::new()) };
    let (mut parts, stop) = (Vec::new(), m.file_off + m.len);
    walk(state, file, m.file_off, false, |e| {
        if e.file_off >= stop {
            return Ok(false);
        }
        let (start, stop) = (e.file_off.max(m.file_off), end(&e).min(stop));
        if let Some(Source::Segment(part)) = &e.source
            && part.id == from.id
            && part.off + (start - e.file_off) == from.off.saturating_add(start - m.file_off)
        {
            let off = to.off + (start - m.file_off);
            let source = Some(Source::Segment(v1::SegmentPart { id: to.id, off }));
            parts.push(v1::Extent { file_off: start, len: stop - start, source });
        }
        Ok(true)
    })?;
    Ok(parts)
}
