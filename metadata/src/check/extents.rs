//! Extents, against each other and their segments.

use super::Check;
use super::plan::Stage;
use crate::schema::{self, HEAD, Inode, Segment, Tag};
use crate::store::StoreResult;
use crate::tables::content;
use std::collections::{BTreeMap, HashMap};
use v1::extent::Source;
use weft_proto::{InodeId, SegmentId, v1};

/// Most extents of a file that one fix changes.
const MAX_CHANGED: usize = 1000;

/// What the extents say of files (by content) and segments.
#[derive(Default)]
pub(super) struct Extents {
    /// Covered bytes, inline bytes, end of the last.
    pub of: HashMap<u64, (u64, u64, u64)>,
    pub live: BTreeMap<SegmentId, u64>,
    /// Bytes that segments account for and that are not shown: extents may be missing.
    pub missing: u64,
    /// Bytes that are shown of segments and that those do not account for.
    pub surplus: u64,
}

/// What becomes of the extents of one content.
#[derive(Default)]
struct Changes {
    why: Vec<String>,
    /// By key.
    extents: Vec<(Vec<u8>, v1::Extent)>,
}

impl Changes {
    /// Only the first `kept` bytes of an extent are there.
    fn lose(&mut self, key: &[u8], content: InodeId, e: &v1::Extent, kept: u64, why: String) {
        if self.extents.len() >= MAX_CHANGED {
            return;
        }
        self.why.push(format!("{why}; the rest of its content is lost"));
        let split = e.file_off + kept;
        if kept > 0 {
            let first = content::part(e, e.file_off, split);
            self.extents.push((schema::extent(content, split), first));
        }
        let lost = v1::Extent { file_off: split, len: e.len - kept, source: None };
        self.extents.push((key.to_vec(), lost));
    }
}

impl Check<'_> {
    pub(super) fn extents(&mut self) -> StoreResult<Extents> {
        let state = self.state;
        self.note_malformed()?;
        let mut extents = Extents::default();
        let mut changes: BTreeMap<InodeId, Changes> = BTreeMap::new();
        // Segments that are shown and are garbage.
        let mut discarded: BTreeMap<SegmentId, v1::SegmentInfo> = BTreeMap::new();
        state.records(schema::all_in(self.shard, Tag::Extent), |key, e: v1::Extent| {
            let (content, end) = (schema::ino_of(key)?, schema::number_at(key, HEAD + 8)?);
            self.report.extents += 1;
            let sums = extents.of.entry(content.0).or_default();
            let told = format!("extent {}..{end} of content {content}", e.file_off);
            let fits = e.len > 0 && content::end(&e) == end && end <= content::MAX_FILE;
            // It may be that of another file.
            if !fits {
                self.unsure += 1;
                self.problem(format!("{told}: its key does not fit its length {}", e.len));
            }
            // Which of them is right cannot be told.
            if e.file_off < sums.2 {
                self.problem(format!("{told}: overlaps the one before"));
            }
            sums.0 = sums.0.saturating_add(e.len);
            sums.2 = end;
            let mut kept = None;
            match &e.source {
                Some(Source::Inline(bytes)) => {
                    let len = bytes.len() as u64;
                    sums.1 = sums.1.saturating_add(len);
                    if len < e.len {
                        kept = Some((len, format!("{told}: holds {len} bytes")));
                    } else if len > e.len {
                        self.problem(format!("{told}: holds {len} bytes"));
                    }
                }
                Some(Source::Segment(part)) => {
                    let id = part.id.map(SegmentId::from).unwrap_or_default();
                    let live = extents.live.entry(id).or_default();
                    *live = live.saturating_add(e.len);
                    kept = self.within(&told, &e, (id, part.off), &mut discarded)?;
                }
                None => self.report.lost_extents += 1,
            }
            if let Some((kept, why)) = kept.filter(|_| fits) {
                changes.entry(content).or_default().lose(key, content, &e, kept, why);
            }
            Ok(true)
        })?;
        self.change(changes)?;
        for (id, info) in discarded {
            let live_bytes = extents.live.get(&id).copied().unwrap_or(0);
            let what = format!("segment {id}: {live_bytes} live bytes, but garbage");
            self.mend(Stage::Extents, what, |draft| {
                draft.delete(schema::garbage(id))?;
                draft.put(schema::segment(id), &Segment { info, live_bytes })
            })?;
        }
        self.compare(&mut extents)?;
        Ok(extents)
    }

    /// Whether a segment has what an extent shows of it from `off` on; if not, how much of that it
    /// has, and why not more.
    fn within(
        &mut self,
        told: &str,
        e: &v1::Extent,
        (id, off): (SegmentId, u64),
        discarded: &mut BTreeMap<SegmentId, v1::SegmentInfo>,
    ) -> StoreResult<Option<(u64, String)>> {
        let segment: Option<Segment> = self.state.load(&schema::segment(id))?;
        let garbage: Option<v1::SegmentInfo> = self.state.load(&schema::garbage(id))?;
        match (segment.map(|s| s.info), garbage) {
            // What that is the check of segments says.
            (Some(info), _) | (None, Some(info)) if !schema::is_of(&info, id) => {}
            (Some(info), _) if off.saturating_add(e.len) > info.length => {
                let kept = info.length.saturating_sub(off);
                return Ok(Some((kept, format!("{told}: not within segment {id}"))));
            }
            (Some(_), _) => {}
            (None, Some(info)) => drop(discarded.insert(id, info)),
            // Its record may be the one that lies in the wrong place.
            (None, None) if self.malformed > 0 => {
                self.problem(format!("{told}: there is no segment {id}"));
            }
            (None, None) => return Ok(Some((0, format!("{told}: there is no segment {id}")))),
        }
        Ok(None)
    }

    /// Counts records of segments that may be those of others.
    fn note_malformed(&mut self) -> StoreResult<()> {
        let state = self.state;
        state.records(schema::all(Tag::Segment), |key, s: Segment| {
            self.malformed += u64::from(!schema::is_of(&s.info, schema::segment_of(key)?));
            Ok(true)
        })?;
        state.records(schema::all(Tag::Garbage), |key, info: v1::SegmentInfo| {
            self.malformed += u64::from(!schema::is_of(&info, schema::segment_of(key)?));
            Ok(true)
        })?;
        self.unsure += self.malformed;
        Ok(())
    }

    /// What is shown of segments against what they account for.
    fn compare(&self, extents: &mut Extents) -> StoreResult<()> {
        self.state.records(schema::all(Tag::Segment), |key, s: Segment| {
            let id = schema::segment_of(key)?;
            if schema::is_of(&s.info, id) {
                let live = extents.live.get(&id).copied().unwrap_or(0);
                let missing = s.live_bytes.saturating_sub(live);
                let surplus = live.saturating_sub(s.live_bytes);
                extents.missing = extents.missing.saturating_add(missing);
                extents.surplus = extents.surplus.saturating_add(surplus);
            }
            Ok(true)
        })
    }

    /// Changes of a file's content, under a new version of it.
    fn change(&mut self, changes: BTreeMap<InodeId, Changes>) -> StoreResult<()> {
        let state = self.state;
        let mut owners: HashMap<u64, InodeId> = HashMap::new();
        for content in changes.keys() {
            let inode = state.inode(*content)?;
            if inode.is_some_and(|inode| inode.content_id() == *content) {
                owners.insert(content.0, *content);
            }
        }
        if owners.len() < changes.len() {
            state.records(schema::all_in(self.shard, Tag::Inode), |key, inode: Inode| {
                if changes.contains_key(&inode.content_id()) {
                    owners.entry(inode.content_id().0).or_insert(schema::ino_of(key)?);
                }
                Ok(true)
            })?;
        }
        for (content, Changes { why, extents }) in changes {
            let owner = owners.get(&content.0).copied();
            let what = why.join("; ");
            self.plan(Stage::Extents, &what, |draft| {
                for (key, e) in extents {
                    draft.put(key, &e)?;
                }
                let Some(owner) = owner else { return Ok(()) };
                match state.inode(owner)? {
                    Some(mut inode) => {
                        inode.attr.data_version = inode.attr.data_version.saturating_add(1);
                        draft.put(schema::inode(owner), &inode)
                    }
                    None => Ok(()),
                }
            })?;
            why.into_iter().for_each(|what| self.problem(what));
        }
        Ok(())
    }
}
