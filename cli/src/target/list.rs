//! `weft target list`: the drives of a cluster.

use crate::control::{ClusterArgs, leader_status};
use crate::output::{OutputArgs, Table};
use crate::size::Size;
use anyhow::Result;
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};
use weft_proto::Uuid;
use weft_proto::map::WEIGHT_OF_ONE;
use weft_proto::v1::{StatusReply, TargetScrub, TargetStat, TargetState};

/// List all targets with state, use and error counts
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Serialize)]
pub struct TargetRow {
    pub id: u32,
    pub uuid: String,
    /// up, down or out
    pub state: &'static str,
    pub daemon: String,
    pub address: String,
    pub domain: String,
    pub path: String,
    pub capacity_bytes: u64,
    pub full: bool,
    /// An admin gave it up.
    pub held_out: bool,
    /// Its data goes to others.
    pub draining: bool,
    /// What it is to hold, beside what its capacity says.
    pub weight: f64,
    /// Null while the leader has not heard of it, as of a target that was down when it became
    /// leader.
    #[serde(flatten)]
    pub counters: Counters,
}

/// What the last heartbeat said.
#[derive(Serialize, Default)]
pub struct Counters {
    pub used_bytes: Option<u64>,
    pub chunks: Option<u64>,
    pub read_errors: Option<u64>,
    pub write_errors: Option<u64>,
    pub checksum_errors: Option<u64>,
    pub commits: Option<u64>,
    /// How long the drive has not answered its oldest request.
    pub stalled_ms: Option<u64>,
    /// When everything that it holds had been read and compared the last time, seconds since 1970;
    /// 0: never. And how far it has come since, in bytes, in how many seconds.
    pub scrubbed_s: Option<u64>,
    pub scrub_bytes: Option<u64>,
    pub scrub_elapsed_s: Option<u64>,
    /// Until it is through, as fast as so far; null: that cannot be told yet.
    pub scrub_eta_s: Option<u64>,
}

impl From<&TargetStat> for Counters {
    fn from(stat: &TargetStat) -> Self {
        Self {
            used_bytes: Some(stat.used_bytes),
            chunks: Some(stat.chunks),
            read_errors: Some(stat.read_errors),
            write_errors: Some(stat.write_errors),
            checksum_errors: Some(stat.checksum_errors),
            commits: Some(stat.commits),
            stalled_ms: Some(stat.stalled_ms),
            scrubbed_s: stat.scrub.map(|scrub| scrub.last_s),
            scrub_bytes: stat.scrub.map(|scrub| scrub.done_bytes),
            scrub_elapsed_s: stat.scrub.map(|scrub| scrub.elapsed_s),
            scrub_eta_s: stat.scrub.and_then(|scrub| scrub_eta(&scrub, stat.used_bytes)),
        }
    }
}

pub async fn run(args: Args) -> Result<()> {
    let reply = leader_status(&args.cluster.cluster).await?;
    args.output.print(&rows(&reply), |rows| text(rows))
}

/// Name of a state, as printed everywhere.
pub fn state_name(state: TargetState) -> &'static str {
    match state {
        TargetState::Unknown => "unknown",
        TargetState::Up => "up",
        TargetState::Down => "down",
        TargetState::Out => "out",
    }
}

/// The targets of the map joined with what their last heartbeats said.
pub fn rows(reply: &StatusReply) -> Vec<TargetRow> {
    let targets = reply.map.iter().flat_map(|m| &m.targets);
    targets
        .map(|t| {
            let stat = reply.targets.iter().find(|s| s.target == t.id);
            TargetRow {
                id: t.id,
                uuid: Uuid::from_slice(&t.uuid).unwrap_or_default().to_string(),
                state: state_name(t.state()),
                daemon: t.daemon.clone(),
                address: t.address.clone(),
                domain: t.domain.clone(),
                path: t.path.clone(),
                capacity_bytes: t.capacity_bytes,
                full: t.full,
                held_out: t.held_out,
                draining: t.draining,
                weight: f64::from(t.weight_in_thousandths()) / f64::from(WEIGHT_OF_ONE),
                counters: stat.map(Counters::from).unwrap_or_default(),
            }
        })
        .collect()
}

/// What nobody has said is not shown as if it were zero.
pub fn known(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "?".to_owned(), |value| value.to_string())
}

/// How long ago something was.
fn ago(then_s: u64, now_s: u64) -> String {
    match then_s {
        0 => "never".into(),
        then_s => format!("{} ago", span(now_s.saturating_sub(then_s))),
    }
}

/// So many seconds, roughly.
fn span(s: u64) -> String {
    match s {
        0..120 => format!("{s} s"),
        120..7200 => format!("{} min", s / 60),
        7200..172_800 => format!("{} h", s / 3600),
        _ => format!("{} d", s / 86_400),
    }
}

/// How long the rest of what a target holds takes, if it goes on as it went so far.
fn scrub_eta(scrub: &TargetScrub, used: u64) -> Option<u64> {
    let left = u128::from(used.saturating_sub(scrub.done_bytes));
    let eta =
        left * u128::from(scrub.elapsed_s) / u128::from(Some(scrub.done_bytes).filter(|&d| d > 0)?);
    u64::try_from(eta).ok()
}

fn scrubbed(c: &Counters) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let last = known(c.scrubbed_s.map(|then| ago(then, now)));
    match (c.scrub_bytes, c.used_bytes) {
        (Some(done @ 1..), Some(used)) => {
            let percent = (u128::from(done) * 100 / u128::from(used.max(1))).min(100);
            let left = c.scrub_eta_s.map(|s| format!(", {} left", span(s))).unwrap_or_default();
            format!("{last}, {percent} % since{left}")
        }
        _ => last,
    }
}

pub fn text(rows: &[TargetRow]) -> String {
    let mut table = Table::new(&[
        "ID", "STATE", "DAEMON", "ADDRESS", "DOMAIN", "USED", "CAPACITY", "CHUNKS", "ERRORS",
        "SCRUBBED", "PATH",
    ]);
    for t in rows {
        let c = &t.counters;
        let errors = [c.read_errors, c.write_errors, c.checksum_errors].map(known);
        table.row([
            t.id.to_string(),
            format!(
                "{}{}{}{}",
                t.state,
                if t.full { ", full" } else { "" },
                if t.draining { ", draining" } else { "" },
                if t.weight == 1.0 { String::new() } else { format!(", weight {}", t.weight) }
            ),
            t.daemon.clone(),
            t.address.clone(),
            t.domain.clone(),
            known(c.used_bytes.map(Size)),
            Size(t.capacity_bytes).to_string(),
            known(c.chunks),
            format!("{} r, {} w, {} sum", errors[0], errors[1], errors[2]),
            scrubbed(c),
            t.path.clone(),
        ]);
    }
    table.render("  ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_proto::v1::{ClusterMap, TargetInfo};

    /// A new leader has heard nothing of a target that was down before: it may be full.
    #[test]
    fn a_target_that_nobody_has_heard_of_is_not_empty() {
        let info = |id| TargetInfo { id, ..Default::default() };
        let map = Some(ClusterMap { targets: vec![info(1), info(2)], ..Default::default() });
        let heard = TargetStat { target: 1, used_bytes: 1 << 20, chunks: 7, ..Default::default() };
        let rows = rows(&StatusReply { map, targets: vec![heard], ..Default::default() });
        let json = serde_json::to_value(&rows).unwrap();
        assert_eq!((&json[0]["used_bytes"], &json[0]["chunks"]), (&(1 << 20).into(), &7.into()));
        let fields = ["used_bytes", "chunks", "read_errors", "commits", "stalled_ms", "scrubbed_s"];
        for field in fields {
            assert!(json[1][field].is_null() && json[1].get(field).is_some(), "{field}: {json}");
        }
        let text = text(&rows);
        assert!(text.contains("1.0 MiB") && text.contains("? r, ? w, ? sum"), "{text}");
    }

    #[test]
    fn how_far_a_scrub_has_come_is_shown() {
        let shown = |scrubbed_s, done, used| {
            let (scrub_bytes, used_bytes) = (Some(done), Some(used));
            scrubbed(&Counters { scrubbed_s, scrub_bytes, used_bytes, ..Counters::default() })
        };
        assert_eq!(shown(Some(0), 0, 0), "never");
        assert_eq!(shown(Some(0), 30, 120), "never, 25 % since");
        assert_eq!(shown(None, 0, 0), "?");
        let ages = [(5, "5 s"), (300, "5 min"), (7200, "2 h"), (14 * 86_400, "14 d")];
        for (age, text) in ages {
            assert_eq!(ago(1_000_000_000, 1_000_000_000 + age), format!("{text} ago"));
        }
    }
}
