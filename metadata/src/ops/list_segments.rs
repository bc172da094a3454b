//! Every segment that metadata knows, in order of id, for a reconcile with the targets (I7).

use crate::operation::{BRIEF, Fault, Query, Reply, SEGMENT};
use crate::schema::{self, Segment, Tag};
use crate::store::{Read, StoreResult};
use v1::list_segments_reply::Item;
use weft_proto::{SegmentId, v1};

/// Most segments in one answer.
const MAX_ITEMS: u32 = 8192;

/// The numbers of very many sessions, in bytes.
const SESSIONS: usize = 64 << 10;

impl Query for v1::ListSegmentsOp {
    fn answer(&self, state: &dyn Read) -> Result<Reply, Fault> {
        let limit = if self.limit == 0 { MAX_ITEMS } else { self.limit.min(MAX_ITEMS) } as usize;
        let after = self.after.map(SegmentId::from);
        // One more than asked for of each sort tells whether there are more in all.
        let mut items = committed(state, after, limit + 1)?;
        items.extend(garbage(state, after, limit + 1)?);
        items.sort_by_key(|(id, _)| *id);
        let more = items.len() > limit;
        items.truncate(limit);
        Ok(Reply::ListSegments(v1::ListSegmentsReply {
            items: items.into_iter().map(|(_, item)| item).collect(),
            more,
            live_sessions: live_sessions(state)?,
        }))
    }

    fn longest(&self) -> usize {
        let limit = if self.limit == 0 { MAX_ITEMS } else { self.limit.min(MAX_ITEMS) } as usize;
        BRIEF + limit * SEGMENT + SESSIONS
    }
}

type Items = Vec<(SegmentId, Item)>;

fn range(tag: Tag, after: Option<Vec<u8>>) -> (Vec<u8>, Vec<u8>) {
    let (first, to) = schema::all(tag);
    let from = after.map_or(first, |mut key| {
        key.push(0);
        key
    });
    (from, to)
}

fn committed(state: &dyn Read, after: Option<SegmentId>, limit: usize) -> StoreResult<Items> {
    let mut items = Items::new();
    let range = range(Tag::Segment, after.map(schema::segment));
    state.records(range, |key, s: Segment| {
        let id = schema::segment_of(key)?;
        // The check of the namespace tells of one that is another's.
        if schema::is_named(&s.info, id) {
            let (segment, live_bytes) = (Some(s.info), s.live_bytes);
            items.push((id, Item { segment, live_bytes, garbage: false }));
        }
        Ok(items.len() < limit)
    })?;
    Ok(items)
}

fn garbage(state: &dyn Read, after: Option<SegmentId>, limit: usize) -> StoreResult<Items> {
    let mut items = Items::new();
    let range = range(Tag::Garbage, after.map(schema::garbage));
    state.records(range, |key, info: v1::SegmentInfo| {
        let id = schema::segment_of(key)?;
        if schema::is_named(&info, id) {
            items.push((id, Item { segment: Some(info), live_bytes: 0, garbage: true }));
        }
        Ok(items.len() < limit)
    })?;
    Ok(items)
}

fn live_sessions(state: &dyn Read) -> StoreResult<Vec<u64>> {
    let mut sessions = Vec::new();
    let (from, to) = schema::all(Tag::Session);
    state.scan(&from, &to, &mut |key, _| {
        sessions.push(schema::number_at(key, schema::HEAD)?);
        Ok(true)
    })?;
    Ok(sessions)
}
