//! What is accepted is believed for ever: whether extents and segments of a commit are what they
//! should be.

use crate::operation::{Context, Fault, refuse};
use crate::schema::{self, Group, Inode, Segment};
use crate::store::Read;
use crate::tables::content::{self, MAX_FILE, end};
use std::collections::{BTreeMap, BTreeSet};
use v1::extent::Source;
use weft_proto::planted::{self, Bug};
use weft_proto::{ErrorKind, Layout, Profile, SegmentId, v1};

/// Most extents in one commit.
const MAX_EXTENTS: usize = 16_384;

/// Extents must be in order, apart, not empty, and within the longest file.
pub(super) fn check_ranges(extents: &[v1::Extent], base: u64, min_size: u64) -> Result<(), Fault> {
    if extents.len() > MAX_EXTENTS {
        return refuse(
            ErrorKind::Invalid,
            format!("{} extents in one commit, over {MAX_EXTENTS}", extents.len()),
        );
    }
    let mut at = 0;
    for e in extents {
        let fits = e.file_off.checked_add(e.len).and_then(|end| end.checked_add(base));
        if e.len == 0 || e.file_off < at {
            return refuse(
                ErrorKind::Invalid,
                format!("extent at {} is empty, out of order or overlaps another", e.file_off),
            );
        }
        if fits.is_none_or(|end| end > MAX_FILE) {
            return refuse(
                ErrorKind::TooLarge,
                format!("extent at {} ends beyond the longest file, {MAX_FILE}", e.file_off),
            );
        }
        at = end(e);
    }
    if min_size > MAX_FILE {
        return refuse(
            ErrorKind::TooLarge,
            format!("{min_size} bytes are over the longest file, {MAX_FILE}"),
        );
    }
    Ok(())
}

pub(in crate::ops) type Segments<'a> = BTreeMap<SegmentId, &'a v1::SegmentInfo>;

/// New segments must be the session's own, unknown so far, well formed, and on a known placement
/// group. A retired group may be named: it was retired while the data was under way. If it was also
/// dropped meanwhile, or seats of it were given away, the data must be written again: nobody would
/// find the chunks.
pub(in crate::ops) fn check_new_segments<'a>(
    state: &dyn Read,
    infos: &'a [v1::SegmentInfo],
    cx: &Context,
) -> Result<Segments<'a>, Fault> {
    let mut new = Segments::new();
    for info in infos {
        let id = info.segment_id()?;
        info.geometry()?;
        if id.session != cx.session {
            return refuse(
                ErrorKind::Invalid,
                format!("segment {id} was not written by session {}", cx.session),
            );
        }
        if state.get(&schema::segment(id))?.is_some() || state.get(&schema::garbage(id))?.is_some()
        {
            return refuse(ErrorKind::Invalid, format!("segment {id} was committed before"));
        }
        let Some(group) = state.load::<Group>(&schema::group(info.pg))? else {
            return match info.pg < state.counters()?.next_pg {
                true => refuse(
                    ErrorKind::Misplaced,
                    format!("placement group {} of segment {id} is no more", info.pg),
                ),
                false => refuse(
                    ErrorKind::Invalid,
                    format!("segment {id} names placement group {}, which does not exist", info.pg),
                ),
            };
        };
        if group.sealed && !planted::is(Bug::SeatGivenAwayTakes) {
            return refuse(
                ErrorKind::Misplaced,
                format!("seats of placement group {} of segment {id} are given away", info.pg),
            );
        }
        let seats = group.info.targets.len();
        if info.seats.iter().any(|&seat| usize::from(seat) >= seats) {
            return refuse(
                ErrorKind::Invalid,
                format!("segment {id} has a seat beyond the {seats} of group {}", info.pg),
            );
        }
        if new.insert(id, info).is_some() {
            return refuse(ErrorKind::Invalid, format!("segment {id} is listed twice"));
        }
    }
    Ok(new)
}

/// Every extent has its bytes, or lies within a segment that is new or known and redundant enough;
/// every new segment is used.
pub(super) fn check_sources(
    state: &dyn Read,
    extents: &[v1::Extent],
    new: &Segments<'_>,
    layout: &Layout,
) -> Result<(), Fault> {
    let mut checked: BTreeMap<SegmentId, u64> = BTreeMap::new();
    let mut used = BTreeSet::new();
    for e in extents {
        let part = match &e.source {
            Some(Source::Segment(part)) => part,
            Some(Source::Inline(bytes)) if bytes.len() as u64 == e.len => continue,
            Some(Source::Inline(bytes)) => {
                return refuse(
                    ErrorKind::Invalid,
                    format!("inline extent of {} bytes carries {}", e.len, bytes.len()),
                );
            }
            None => return refuse(ErrorKind::Protocol, "extent without a source"),
        };
        let Some(id) = part.id.map(SegmentId::from) else {
            return refuse(ErrorKind::Protocol, "extent of a segment without an id");
        };
        let length = match checked.get(&id) {
            Some(&length) => length,
            None => {
                let length = segment_length(state, id, new, layout)?;
                checked.insert(id, length);
                length
            }
        };
        if part.off.checked_add(e.len).is_none_or(|end| end > length) {
            return refuse(
                ErrorKind::Invalid,
                format!("extent at {} ends beyond the {length} bytes of segment {id}", e.file_off),
            );
        }
        used.insert(id);
    }
    match new.keys().find(|id| !used.contains(id)) {
        Some(id) => refuse(ErrorKind::Invalid, format!("no extent uses the new segment {id}")),
        None => Ok(()),
    }
}

/// The length of a segment that a file of this layout may use.
fn segment_length(
    state: &dyn Read,
    id: SegmentId,
    new: &Segments<'_>,
    layout: &Layout,
) -> Result<u64, Fault> {
    let known;
    let (info, is_new) = match new.get(&id) {
        Some(&info) => (info, true),
        None => match state.load::<Segment>(&schema::segment(id))? {
            Some(segment) => {
                known = segment.info;
                (&known, false)
            }
            None => {
                return refuse(
                    ErrorKind::Stale,
                    format!("segment {id} is not known (any more): read the extents again"),
                );
            }
        },
    };
    let profile: Profile = info.geometry()?.profile;
    if profile.m() < layout.profile.m() {
        // Shared data of a weaker layout must be copied instead.
        let kind = if is_new { ErrorKind::Invalid } else { ErrorKind::CrossDevice };
        return refuse(
            kind,
            format!(
                "segment {id} is {profile}, the layout of the file asks for {}",
                layout.profile
            ),
        );
    }
    Ok(info.length)
}

/// The file's inline bytes must stay within its layout's limit.
pub(super) fn check_inline(
    state: &dyn Read,
    file: &Inode,
    extents: &[v1::Extent],
    base: u64,
    layout: &Layout,
) -> Result<(), Fault> {
    let limit = u64::from(layout.inline_limit);
    let is_inline = |e: &&v1::Extent| matches!(e.source, Some(Source::Inline(_)));
    let added: u64 = extents.iter().filter(is_inline).map(|e| e.len).sum();
    let had = file.attr.inline_bytes;
    if added == 0 || had.saturating_add(added) <= limit {
        return Ok(());
    }
    let mut replaced = 0;
    if had > 0 && added <= limit {
        for e in extents {
            replaced += content::inline_within(state, file, base + e.file_off, base + end(e))?;
        }
    }
    let after = had.saturating_add(added).saturating_sub(replaced);
    if after > limit {
        return refuse(
            ErrorKind::InlineFull,
            format!("{after} inline bytes would be over the {limit} of file {}", file.ino()),
        );
    }
    Ok(())
}
