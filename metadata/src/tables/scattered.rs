//! The list of files of which some may be worth being written again, as whole segments
//! ([`crate::compaction`]): what a commit made of a segment says so.

use crate::schema::{self, Group, Inode, Segment};
use crate::store::{Read, StoreError, StoreResult};
use weft_proto::{Layout, Profile, v1};

/// A piece as long as this part of a segment is good, if its segment is.
pub(crate) const LONG: u64 = 4;

/// A fifth of the segment or more is not shown by any file.
pub(crate) fn is_sparse(segment: &Segment) -> bool {
    segment.live_bytes.saturating_mul(5) <= segment.info.length.saturating_mul(4)
}

/// How many shards a segment has.
pub(crate) fn width(info: &v1::SegmentInfo) -> StoreResult<u8> {
    let profile = info.profile.map(Profile::try_from).transpose();
    let bad = |e| StoreError::corrupt(format!("profile of segment {:?}: {e}", info.id));
    Ok(profile.map_err(bad)?.map_or(0, Profile::width))
}

/// The segment has fewer shards than one of its length is to have on so many targets.
pub(crate) fn is_narrow(
    info: &v1::SegmentInfo,
    layout: &Layout,
    seats: usize,
) -> StoreResult<bool> {
    let fit = layout.profile.fit(info.length, layout.unit, seats);
    let width = width(info)?;
    Ok(fit.is_some_and(|fit| width < fit.width()))
}

/// Targets of the placement group that a segment names, those that are away among them.
fn group_seats(state: &dyn Read, pg: u32) -> StoreResult<usize> {
    let group: Option<Group> = state.load(&schema::group(pg))?;
    Ok(group.map_or(0, |group| group.info.targets.len()))
}

/// Whether a commit that made this of a segment gives cause to look at the file.
pub(crate) fn suspects(
    state: &dyn Read,
    file: &Inode,
    segment: &Segment,
    is_new: bool,
) -> StoreResult<bool> {
    if file.attr.nlink == 0 {
        return Ok(false);
    }
    if !is_new {
        return Ok(is_sparse(segment));
    }
    let Some(layout) = file.checked_layout()? else { return Ok(false) };
    let length = segment.info.length;
    let is_piece = length < layout.segment_len / LONG && length < file.allocated;
    let seats = group_seats(state, segment.info.pg)?;
    Ok(is_piece || is_narrow(&segment.info, &layout, seats)?)
}
