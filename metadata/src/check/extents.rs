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
    /// Live bytes that each segment counts, and its length.
    segments: BTreeMap<SegmentId, (u64, u64)>,
    /// Bytes that segments account for and that are not shown: extents may be missing.
    pub missing: u64,
    /// Bytes that are shown of segments and that those do not account for.
    pub surplus: u64,
}

impl Extents {
    /// What is shown of segments against what they account for.
    fn compare(&mut self) {
        for (id, (counted, _)) in &self.segments {
            let live = self.live.get(id).copied().unwrap_or(0);
            self.missing = self.missing.saturating_add(counted.saturating_sub(live));
            self.surplus = self.surplus.saturating_add(live.saturating_sub(*counted));
        }
    }
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
        let mut extents = Extents { segments: self.well_formed()?, ..Default::default() };
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
                self.unsure += 1;
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
                    kept = match extents.segments.get(&id) {
                        Some((_, length)) if part.off.saturating_add(e.len) <= *length => None,
                        Some((_, length)) => {
                            let why = format!("{told}: not within segment {id}");
                            Some((length.saturating_sub(part.off), why))
                        }
                        None => self.without(&told, id, &mut discarded)?,
                    };
                }
                None => self.report.lost_extents += 1,
            }
            if let Some((kept, why)) = kept.filter(|_| fits) {
                let of_content = changes.entry(content).or_default();
                match of_content.extents.len() < MAX_CHANGED {
                    true => of_content.lose(key, content, &e, kept, why),
                    false => self.problem(why),
                }
            }
            Ok(true)
        })?;
        self.change(changes)?;
        for (id, info) in discarded {
            self.take_back(id, info, extents.live.get(&id).copied().unwrap_or(0))?;
        }
        extents.compare();
        Ok(extents)
    }

    /// Garbage that is shown is none.
    fn take_back(
        &mut self,
        id: SegmentId,
        info: v1::SegmentInfo,
        live_bytes: u64,
    ) -> StoreResult<()> {
        let what = format!("segment {id}: {live_bytes} live bytes, but garbage");
        let writer = self.state.session(id.session)?;
        let confined = writer.is_some_and(|session| session.confined);
        self.mend(Stage::Extents, what, |draft| {
            draft.delete(schema::garbage(id))?;
            let segment = Segment { info, live_bytes, confined };
            draft.put(schema::segment(id), &segment)
        })
    }

    /// What is left of an extent of a segment that is not committed: it is garbage, and comes back;
    /// or nothing, and why.
    fn without(
        &mut self,
        told: &str,
        id: SegmentId,
        discarded: &mut BTreeMap<SegmentId, v1::SegmentInfo>,
    ) -> StoreResult<Option<(u64, String)>> {
        let why = format!("{told}: there is no segment {id}");
        match self.state.load::<v1::SegmentInfo>(&schema::garbage(id))? {
            // Not over what may be the only record of another.
            Some(info)
                if schema::is_of(&info, id) && self.state.get(&schema::segment(id))?.is_none() =>
            {
                discarded.insert(id, info);
            }
            // Its record may be one of those.
            _ if self.malformed > 0 => self.problem(why),
            _ => return Ok(Some((0, why))),
        }
        Ok(None)
    }

    /// The committed segments. Records that may be those of others are left out, and counted.
    fn well_formed(&mut self) -> StoreResult<BTreeMap<SegmentId, (u64, u64)>> {
        let state = self.state;
        let mut segments = BTreeMap::new();
        state.records(schema::all(Tag::Segment), |key, s: Segment| {
            let id = schema::segment_of(key)?;
            match schema::is_of(&s.info, id) {
                true => drop(segments.insert(id, (s.live_bytes, s.info.length))),
                false => self.malformed += 1,
            }
            Ok(true)
        })?;
        state.records(schema::all(Tag::Garbage), |key, info: v1::SegmentInfo| {
            self.malformed += u64::from(!schema::is_of(&info, schema::segment_of(key)?));
            Ok(true)
        })?;
        self.unsure += self.malformed;
        Ok(segments)
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
