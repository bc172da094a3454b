//! What lies in a seat of a placement group.

use crate::state::{Damaged, StateMachine};
use weft_proto::{PgId, Result, SegmentId};
use weft_segments::Segment;

/// Segments of a group that are looked at in one step.
const PAGE: usize = 4096;

/// Segments that have a chunk in a seat, each with its shard there.
pub(super) struct Page {
    pub found: Vec<(Segment, u8)>,
    /// Segments of which it is not known.
    pub damaged: Vec<Damaged>,
    /// There may be more after this.
    pub next: Option<SegmentId>,
}

/// Some of what lies in this seat; with `garbage`, what is to be deleted, too.
pub(super) fn page(
    state: &StateMachine,
    (pg, seat): (u32, u32),
    garbage: bool,
    after: Option<SegmentId>,
) -> Result<Page> {
    let page = state.group_segments(PgId(pg), garbage, after, PAGE)?;
    let mut found = Vec::new();
    for info in page.segments {
        let segment = Segment::try_from(info)?;
        let at = (0u8..).zip(&segment.seats).find(|(_, at)| u32::from(**at) == seat);
        if let Some((shard, _)) = at
            && segment.geometry.shard_len(shard) > 0
        {
            found.push((segment, shard));
        }
    }
    Ok(Page { found, damaged: page.damaged, next: page.next })
}

/// How many chunks lie in this seat; `None` if nothing is in the whole group.
pub(super) fn chunks(state: &StateMachine, at: (u32, u32)) -> Result<Option<u64>> {
    let any = state.group_segments(PgId(at.0), false, None, 1)?;
    if any.segments.is_empty() && any.damaged.is_empty() && any.next.is_none() {
        return Ok(None);
    }
    let (mut count, mut after) = (0, None);
    loop {
        let Page { found, next, .. } = page(state, at, false, after)?;
        count += found.len() as u64;
        if next.is_none() {
            return Ok(Some(count));
        }
        after = next;
    }
}
