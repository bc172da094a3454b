//! What `weft trace` tells.

use super::look::{Looks, in_order, segment_of};
use crate::target::state_name;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use v1::extent::Source;
use weft_client::{ChunkLook, FileTrace};
use weft_proto::{SegmentId, v1};
use weft_segments::{Map, Segment};

/// Segments that are listed without being told to list all.
const LISTED: usize = 64;

#[derive(Serialize)]
pub struct Report {
    pub file: String,
    pub inode: u64,
    pub size: u64,
    pub layout: LayoutRow,
    pub extents: usize,
    /// Of the content, bytes that live in metadata, are holes, or are lost for good.
    pub inline_bytes: u64,
    pub hole_bytes: u64,
    pub lost_bytes: u64,
    /// What may still be lost of the segment that is worst off: shards. Negative: so many have to
    /// come back before it can be read. Null: the file has no segments.
    pub may_lose: Option<i64>,
    /// The same, for people.
    pub redundancy: String,
    /// Commands that help.
    pub next: Vec<String>,
    pub segments: Vec<SegmentRow>,
    /// Segments that are not listed; those that lack something come first.
    pub segments_left_out: usize,
    pub groups: Vec<GroupRow>,
    /// Chunks that were not asked for: of them it is only known whether their targets serve.
    pub chunks_not_asked: usize,
    /// All of each chunk that was asked for was read and compared.
    pub verified: bool,
    /// There are more extents than were looked at.
    pub truncated: bool,
}

#[derive(Serialize)]
pub struct LayoutRow {
    pub profile: String,
    pub unit: u32,
    pub segment: u64,
    pub inline: u32,
}

#[derive(Serialize)]
pub struct SegmentRow {
    pub id: String,
    /// Where the file first shows it, and how many bytes of it.
    pub file_off: u64,
    pub file_bytes: u64,
    pub bytes: u64,
    pub profile: String,
    pub unit: u32,
    pub group: u32,
    pub missing: usize,
    pub may_lose: i64,
    pub redundancy: String,
    pub shards: Vec<ShardRow>,
}

#[derive(Serialize)]
pub struct ShardRow {
    pub shard: u8,
    /// data, parity or copy
    pub kind: &'static str,
    pub target: Option<u32>,
    /// up, down, out; with full and draining.
    pub state: String,
    pub daemon: String,
    pub domain: String,
    pub address: String,
    /// The target that the shard is being moved to.
    pub moves_to: Option<u32>,
    pub bytes: u64,
    /// there, verified, missing, damaged, silent, away (the target does not serve), unasked, empty
    pub chunk: &'static str,
    /// What its target says of it.
    pub why: Option<String>,
}

/// The segments of the file in one placement group.
#[derive(Serialize, Default)]
pub struct GroupRow {
    pub group: u32,
    pub segments: usize,
    pub bytes: u64,
    /// In the order of the seats.
    pub targets: Vec<u32>,
    /// Of these, those that do not serve.
    pub away: Vec<u32>,
    /// Of the segment that is worst off.
    pub may_lose: Option<i64>,
}

impl Report {
    /// Nothing lacks anything, as far as it was looked at.
    pub fn is_whole(&self) -> bool {
        self.lost_bytes == 0 && self.next.is_empty()
    }
}

pub fn report(
    file: String,
    cluster: &str,
    traced: &FileTrace,
    map: &v1::ClusterMap,
    looks: &Looks,
    all: bool,
) -> Report {
    let maps =
        Maps { infos: map.targets.iter().map(|t| (t.id, t)).collect(), map: Map::new(map.clone()) };
    let shown = shown(traced);
    let mut groups: BTreeMap<u32, GroupRow> = BTreeMap::new();
    let mut rows = Vec::new();
    for id in in_order(traced) {
        let Some(segment) = traced.segments.get(&id) else { continue };
        let row = maps.row(segment, shown.get(&id).copied().unwrap_or_default(), looks);
        maps.count(segment, &row, &mut groups);
        rows.push(row);
    }
    let may_lose = rows.iter().map(|row| row.may_lose).min();
    let redundancy = of_all(&rows);
    // Those that lack something first, each in the order of the file.
    rows.sort_by_key(|row| row.missing == 0);
    let listed = if all { rows.len() } else { rows.len().min(LISTED) };
    let left_out = rows.len() - listed;
    let next = next(cluster, &rows, lost(traced));
    rows.truncate(listed);
    let layout = traced.layout;
    Report {
        file,
        inode: traced.attr.ino.0,
        size: traced.attr.size,
        layout: LayoutRow {
            profile: layout.profile.to_string(),
            unit: layout.unit,
            segment: layout.segment_len,
            inline: layout.inline_limit,
        },
        extents: traced.extents.len(),
        inline_bytes: inline(traced),
        hole_bytes: if traced.truncated { 0 } else { holes(traced) },
        lost_bytes: lost(traced),
        may_lose,
        redundancy,
        next,
        segments: rows,
        segments_left_out: left_out,
        groups: groups.into_values().collect(),
        chunks_not_asked: looks.left_out,
        verified: looks.whole,
        truncated: traced.truncated,
    }
}

/// Where the file first shows each segment, and how many bytes of it.
fn shown(traced: &FileTrace) -> HashMap<SegmentId, (u64, u64)> {
    let mut shown = HashMap::new();
    for extent in &traced.extents {
        if let Some(id) = segment_of(extent) {
            shown.entry(id).or_insert((extent.file_off, 0)).1 += extent.len;
        }
    }
    shown
}

fn inline(traced: &FileTrace) -> u64 {
    let of = |e: &&v1::Extent| matches!(e.source, Some(Source::Inline(_)));
    traced.extents.iter().filter(of).map(|e| e.len).sum()
}

fn lost(traced: &FileTrace) -> u64 {
    traced.extents.iter().filter(|e| e.source.is_none()).map(|e| e.len).sum()
}

fn holes(traced: &FileTrace) -> u64 {
    let size = traced.attr.size;
    let within =
        |e: &v1::Extent| e.file_off.saturating_add(e.len).min(size).saturating_sub(e.file_off);
    size.saturating_sub(traced.extents.iter().map(within).sum())
}

struct Maps<'a> {
    infos: HashMap<u32, &'a v1::TargetInfo>,
    map: Map,
}

impl Maps<'_> {
    fn row(&self, segment: &Segment, shown: (u64, u64), looks: &Looks) -> SegmentRow {
        let profile = segment.geometry.profile;
        let shards: Vec<_> =
            (0..profile.width()).map(|shard| self.shard(segment, shard, looks)).collect();
        let lacks = |s: &&ShardRow| matches!(s.chunk, "missing" | "damaged" | "silent" | "away");
        let missing = shards.iter().filter(lacks).count();
        SegmentRow {
            id: segment.id.to_string(),
            file_off: shown.0,
            file_bytes: shown.1,
            bytes: segment.geometry.length,
            profile: profile.to_string(),
            unit: segment.geometry.unit,
            group: segment.pg.0,
            missing,
            may_lose: i64::from(profile.m()) - missing as i64,
            redundancy: words(missing, profile.width().into(), profile.m().into()),
            shards,
        }
    }

    fn shard(&self, segment: &Segment, shard: u8, looks: &Looks) -> ShardRow {
        let seat = segment.seats.get(usize::from(shard)).copied().unwrap_or(u8::MAX);
        let target = self.map.seat(segment.pg, seat);
        let found = looks.found.get(&(segment.id, shard));
        // A chunk that has moved already is where the seat goes to.
        let at = found.map(|f| f.at).or(target.map(|t| t.id));
        let info = at.and_then(|at| self.infos.get(&at.0).copied());
        let bytes = segment.geometry.shard_len(shard);
        let (chunk, why) = match (found.map(|f| &f.look), target) {
            _ if bytes == 0 => ("empty", None),
            (Some(ChunkLook::Good), _) if looks.whole => ("verified", None),
            (Some(ChunkLook::Good), _) => ("there", None),
            (Some(ChunkLook::Missing), _) => ("missing", None),
            (Some(ChunkLook::Damaged(why)), _) => ("damaged", Some(why.clone())),
            (Some(ChunkLook::Silent(why)), _) => ("silent", Some(why.clone())),
            (None, Some(target)) if target.up => ("unasked", None),
            (None, Some(_)) => ("away", None),
            (None, None) => ("away", Some("its placement group is not in the map".into())),
        };
        let profile = segment.geometry.profile;
        ShardRow {
            shard,
            kind: match () {
                () if profile.k() == 1 => "copy",
                () if shard < profile.k() => "data",
                () => "parity",
            },
            target: at.map(|at| at.0),
            state: info.map_or_else(|| "unknown".into(), state),
            daemon: info.map(|i| i.daemon.clone()).unwrap_or_default(),
            domain: info.map(|i| i.domain.clone()).unwrap_or_default(),
            address: info.map(|i| i.address.clone()).unwrap_or_default(),
            moves_to: self.map.heir(segment.pg, seat).map(|t| t.id.0),
            bytes,
            chunk,
            why,
        }
    }

    fn count(&self, segment: &Segment, row: &SegmentRow, groups: &mut BTreeMap<u32, GroupRow>) {
        let group = groups.entry(row.group).or_insert_with(|| {
            let seats = (0..u8::MAX).map_while(|seat| self.map.seat(segment.pg, seat));
            let targets: Vec<_> = seats.collect();
            let ids = |of: &dyn Fn(bool) -> bool| -> Vec<u32> {
                targets.iter().filter(|t| of(t.up)).map(|t| t.id.0).collect()
            };
            let (all, away) = (ids(&|_| true), ids(&|up| !up));
            GroupRow { group: row.group, targets: all, away, ..GroupRow::default() }
        });
        group.segments += 1;
        group.bytes += row.file_bytes;
        group.may_lose = Some(group.may_lose.map_or(row.may_lose, |m| m.min(row.may_lose)));
    }
}

fn state(info: &v1::TargetInfo) -> String {
    let mut words = vec![state_name(info.state())];
    words.extend(info.full.then_some("full"));
    words.extend(info.draining.then_some("draining"));
    words.join(", ")
}

/// What the loss of some shards means.
pub fn words(missing: usize, width: usize, parity: usize) -> String {
    let lack = |what: &str| format!("{missing} of {width} shards missing: {what}");
    match (missing, parity) {
        (0, 0) => "all there, without redundancy: no shard may be lost".into(),
        (0, _) => format!("whole: any {parity} of {width} shards may be lost"),
        (n, m) if n > m => lack(&format!("cannot be read until {} of them are back", n - m)),
        (n, m) if n == m => lack("reads work, one more loss does not"),
        (n, m) => lack(&format!("reads work, {} more may be lost", m - n)),
    }
}

/// What may be lost of the segment that is worst off; one that lacks something tells more than one
/// that never had redundancy.
fn of_all(rows: &[SegmentRow]) -> String {
    let lacking = || rows.iter().filter(|row| row.missing > 0);
    let worst = lacking().min_by_key(|row| row.may_lose);
    let Some(worst) = worst.or(rows.iter().min_by_key(|row| row.may_lose)) else {
        return "no content on targets".into();
    };
    let like = lacking().filter(|row| row.may_lose == worst.may_lose).count();
    match (lacking().count(), rows.len()) {
        (0, _) | (_, 1) => worst.redundancy.clone(),
        (lack, all) => format!(
            "{lack} of {all} segments lack shards; {like} of them as the worst: {}",
            worst.redundancy
        ),
    }
}

fn next(cluster: &str, rows: &[SegmentRow], lost: u64) -> Vec<String> {
    let any = |of: &[&str]| {
        rows.iter().flat_map(|row| &row.shards).any(|shard| of.contains(&shard.chunk))
    };
    let mut next = Vec::new();
    if any(&["away", "silent"]) {
        next.push(format!("weft status --cluster {cluster}"));
    }
    if any(&["missing", "damaged"]) || lost > 0 {
        next.push(format!("weft fsck --repair --cluster {cluster}"));
    }
    next
}

#[cfg(test)]
mod tests;
