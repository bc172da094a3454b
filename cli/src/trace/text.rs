//! The report for people.

use super::report::{Report, SegmentRow};
use crate::output::{Table, plain};
use crate::size::Size;

/// Segments that are shown shard by shard without being told to show all.
const SHOWN: usize = 8;

pub fn text(report: &Report, all: bool) -> String {
    let mut out = format!(
        "{}: inode {}, {}, {} extents\n",
        plain(&report.file),
        report.inode,
        Size(report.size),
        report.extents
    );
    out += &format!(
        "new data is laid out as {}, unit {}, segments up to {}, inline up to {}\n",
        report.layout.profile,
        Size(report.layout.unit.into()),
        Size(report.layout.segment),
        Size(report.layout.inline.into())
    );
    for (bytes, what) in [
        (report.inline_bytes, "in metadata, on each metadata server"),
        (report.hole_bytes, "of holes"),
        (report.lost_bytes, "LOST for good: reads of them fail"),
    ] {
        if bytes > 0 {
            out += &format!("{} {what}\n", Size(bytes));
        }
    }
    out += &format!("\n{}\n", report.redundancy);
    for command in &report.next {
        out += &format!("  next: {command}\n");
    }
    let shown = if all { report.segments.len() } else { report.segments.len().min(SHOWN) };
    for row in report.segments.iter().take(shown) {
        out += &segment(row);
    }
    let left = report.segments.len() - shown + report.segments_left_out;
    if left > 0 {
        out += &format!("\n{left} more segments are in the summary only; --all lists them\n");
    }
    if !report.groups.is_empty() && (left > 0 || report.groups.len() > 1) {
        out += &format!("\nby placement group\n{}", groups(report));
    }
    if report.chunks_not_asked > 0 {
        out += &format!(
            "\n{} chunks were not asked for, of targets that serve; --all asks for them\n",
            report.chunks_not_asked
        );
    }
    if report.truncated {
        out += "\nthe file has more extents than are looked at\n";
    }
    out
}

fn segment(row: &SegmentRow) -> String {
    let mut out = format!(
        "\nsegment {}: {} from {} of the file on, {} in all, {}, placement group {}\n  {}\n",
        row.id,
        Size(row.file_bytes),
        Size(row.file_off),
        Size(row.bytes),
        row.profile,
        row.group,
        row.redundancy
    );
    let mut table =
        Table::new(&["SHARD", "KIND", "TARGET", "STATE", "DAEMON", "DOMAIN", "BYTES", "CHUNK"]);
    for shard in &row.shards {
        let moves = shard.moves_to.filter(|to| Some(*to) != shard.target);
        table.row([
            shard.shard.to_string(),
            shard.kind.into(),
            shard.target.map_or_else(|| "-".into(), |id| id.to_string()),
            match moves {
                Some(to) => format!("{}, moves to {to}", shard.state),
                None => shard.state.clone(),
            },
            shard.daemon.clone(),
            shard.domain.clone(),
            Size(shard.bytes).to_string(),
            match shard.chunk {
                "away" => "away: the target does not serve".into(),
                "silent" => "silent: the target does not say".into(),
                chunk => chunk.to_owned(),
            },
        ]);
    }
    out += &table.render("  ");
    for shard in &row.shards {
        if let Some(why) = &shard.why {
            out += &format!("  shard {}: {}\n", shard.shard, plain(why));
        }
    }
    out
}

fn groups(report: &Report) -> String {
    let mut table = Table::new(&["GROUP", "SEGMENTS", "BYTES", "TARGETS", "AWAY", "MAY LOSE"]);
    let list = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    for group in &report.groups {
        table.row([
            group.group.to_string(),
            group.segments.to_string(),
            Size(group.bytes).to_string(),
            list(&group.targets),
            if group.away.is_empty() { "-".into() } else { list(&group.away) },
            match group.may_lose {
                Some(lost) if lost < 0 => format!("{} too many are lost", -lost),
                Some(left) => format!("{left} more"),
                None => "-".into(),
            },
        ]);
    }
    table.render("  ")
}
