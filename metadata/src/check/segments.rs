//! Segments and placement groups: what they account for, and that each leads to the other.

use super::Check;
use super::extents::Extents;
use super::plan::Stage;
use crate::schema::{self, Group, Segment, Tag};
use crate::store::StoreResult;
use std::collections::BTreeMap;
use weft_proto::{SegmentId, v1};

/// No group was so far behind the last that is known: its id is damaged.
const MAX_PG_STEP: u32 = 1 << 24;

impl Check<'_> {
    /// Live bytes, that garbage is garbage, and that every segment's placement group is there,
    /// counts it and lists it.
    pub(super) fn segments(&mut self, extents: &Extents) -> StoreResult<()> {
        let state = self.state;
        let mut named: BTreeMap<u32, u64> = BTreeMap::new();
        state.records(schema::all(Tag::Segment), |key, s: Segment| {
            let id = schema::segment_of(key)?;
            self.report.segments += 1;
            // It may be the record of another: nothing follows from it.
            if !schema::is_of(&s.info, id) {
                self.malformed(id);
                return Ok(true);
            }
            let live = extents.live.get(&id).copied().unwrap_or(0);
            if live != s.live_bytes || live == 0 {
                let what = format!("segment {id}: {live} live bytes, counts {}", s.live_bytes);
                // As long as content is missing somewhere, it may be this.
                let (missing, surplus) = (extents.missing > 0, extents.surplus > 0);
                let keeps = self.unsure > 0 || self.report.lost_extents > 0 || missing && surplus;
                // What shows too much may show what another shows too little.
                if keeps && (live < s.live_bytes || missing && surplus) {
                    self.problem(format!("{what}; it is kept, since content is lost or missing"));
                } else {
                    self.mend(Stage::Segments, what, |draft| {
                        if live > 0 {
                            let right = Segment { live_bytes: live, ..s.clone() };
                            return draft.put(key.to_vec(), &right);
                        }
                        draft.delete(key.to_vec())?;
                        draft.put(schema::garbage(id), &s.info)
                    })?;
                }
            }
            *named.entry(s.info.pg).or_default() += 1;
            self.is_listed(s.info.pg, id)?;
            if state.get(&schema::garbage(id))?.is_some() {
                let what = format!("segment {id}: both committed and garbage");
                self.mend(Stage::Segments, what, |draft| {
                    draft.keep(key.to_vec())?;
                    draft.delete(schema::garbage(id))
                })?;
            }
            Ok(true)
        })?;
        state.records(schema::all(Tag::Garbage), |key, info: v1::SegmentInfo| {
            let id = schema::segment_of(key)?;
            if !schema::is_of(&info, id) {
                self.malformed(id);
                return Ok(true);
            }
            *named.entry(info.pg).or_default() += 1;
            self.is_listed(info.pg, id)?;
            Ok(true)
        })?;
        let mut listed = 0;
        state.records(schema::all(Tag::Member), |_, _: v1::Empty| {
            listed += 1;
            Ok(true)
        })?;
        let segments: u64 = named.values().sum();
        if listed > segments && self.malformed == 0 {
            self.strays()?;
        }
        self.groups(named)
    }

    fn malformed(&mut self, id: SegmentId) {
        self.problem(format!("segment {id}: its record is not well formed"));
    }

    fn is_listed(&mut self, pg: u32, id: SegmentId) -> StoreResult<()> {
        let key = schema::member(pg, id);
        if self.state.get(&key)?.is_some() {
            return Ok(());
        }
        let what = format!("segment {id}: its placement group does not list it");
        self.mend(Stage::Groups, what, |draft| {
            draft.keep(schema::segment(id))?;
            draft.keep(schema::garbage(id))?;
            draft.put(key, &v1::Empty {})
        })
    }

    /// What groups list is there, and names them.
    fn strays(&mut self) -> StoreResult<()> {
        let state = self.state;
        state.records(schema::all(Tag::Member), |key, _: v1::Empty| {
            let (pg, id) = (schema::group_listing(key)?, schema::member_of(key)?);
            let committed: Option<Segment> = state.load(&schema::segment(id))?;
            let garbage: Option<v1::SegmentInfo> = state.load(&schema::garbage(id))?;
            let of = committed.map(|s| s.info).or(garbage).map(|info| info.pg);
            if of != Some(pg) {
                let what = format!("placement group {pg} lists segment {id}, which is none of it");
                self.mend(Stage::Groups, what, |draft| {
                    draft.keep(schema::segment(id))?;
                    draft.keep(schema::garbage(id))?;
                    draft.delete(key.to_vec())
                })?;
            }
            Ok(true)
        })
    }

    /// Counts of groups, by how many segments name each.
    fn groups(&mut self, mut named: BTreeMap<u32, u64>) -> StoreResult<()> {
        let state = self.state;
        let next = state.counters()?.next_pg;
        state.records(schema::all(Tag::Group), |_, group: Group| {
            let id = group.info.id;
            let segments = named.remove(&id).unwrap_or(0);
            // Which group a record that is not well formed names is not known.
            if group.segments != segments && self.malformed == 0 {
                let counted = group.segments;
                let what = format!("placement group {id}: {segments} segments, counts {counted}");
                let change = i128::from(segments) - i128::from(counted);
                self.mend(Stage::Groups, what, |draft| {
                    if let Ok(change) = i64::try_from(change) {
                        draft.count_in_group(id, change);
                    }
                    Ok(())
                })?;
            }
            if id >= next {
                let what = format!("placement group {id}: the next would be {next}");
                self.mend(Stage::Names, what, |draft| {
                    if id < next.saturating_add(MAX_PG_STEP) {
                        draft.last_pg(id);
                    }
                    Ok(())
                })?;
            }
            Ok(true)
        })?;
        for (pg, segments) in named {
            if (next..next.saturating_add(MAX_PG_STEP)).contains(&pg) {
                let what = format!("placement group {pg} is named: the next would be {next}");
                self.mend(Stage::Names, what, |draft| {
                    draft.last_pg(pg);
                    Ok(())
                })?;
            }
            self.problem(format!("placement group {pg}: none, but {segments} segments name it"));
        }
        Ok(())
    }
}
