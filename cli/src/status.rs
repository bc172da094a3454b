//! `weft status`: the whole cluster at a glance.

use crate::control::{ClusterArgs, leader_of, statuses};
use crate::output::{OutputArgs, Table};
use crate::pool::{self, PoolRow};
use crate::size::Size;
use crate::target::{self, TargetRow};
use anyhow::Result;
use serde::Serialize;
use std::process::ExitCode;
use weft_control::{Problem, Severity, headline, health, problems};
use weft_proto::Uuid;
use weft_proto::v1::{DaemonStat, Fallback, NetworkStat, RepairStat, StatusReply};

/// Show the state of a cluster: first what is wrong, what follows from it, and the command that
/// helps
///
/// `!!` marks what is critical: something cannot be read or written, or with the next failure it
/// cannot.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Report {
    /// Null while no leader answers; then only `metadata` is known.
    cluster: Option<String>,
    epoch: Option<u64>,
    metadata: Vec<ServerRow>,
    targets: Vec<TargetRow>,
    pools: Vec<PoolRow>,
    sessions: Vec<SessionRow>,
    storage_daemons: Vec<DaemonRow>,
    garbage_segments: u64,
    #[serde(flatten)]
    compaction: CompactionRow,
    /// `ok`: everything is up and whole. `degraded`: something is down or damaged, or takes
    /// nothing, or data lacks redundancy. `unknown`: no leader answers.
    health: &'static str,
    /// What is wrong, the worst first, with what follows from it and the command that helps.
    problems: Vec<Problem>,
    /// Null while no leader answers.
    repair: Option<RepairRow>,
    /// What a change of the metadata servers waits for; null: nothing is to change.
    membership: Option<String>,
}

/// The leader counts so many files, and no more.
const MAX_COUNTED: u64 = 100_000;

/// Files that lie in pieces, or show little of what their segments hold.
#[derive(Serialize, Default)]
struct CompactionRow {
    /// Files that may be put together again, counted up to a bound.
    scattered_files: u64,
    /// Of files that were, since the server that leads started.
    compacted_bytes: u64,
    /// Of late.
    compacted_bytes_per_s: u64,
    compacted_files_per_hour: u64,
    /// Seconds that it takes as it went of late, if none of the files has to wait. 0: nothing is
    /// left; null: no file was done of late, or there are too many to be counted.
    compaction_eta_s: Option<u64>,
}

impl From<&StatusReply> for CompactionRow {
    fn from(reply: &StatusReply) -> Self {
        let (files, per_hour) = (reply.scattered_files, reply.compacted_files_per_hour);
        let eta = |per_hour| (u128::from(files) * 3600).div_ceil(u128::from(per_hour));
        let compaction_eta_s = match (files, per_hour) {
            // Whoever leads only just has counted nothing yet.
            (0, _) => reply.repair.as_ref().map(|_| 0),
            (_, 0) | (MAX_COUNTED.., _) => None,
            (_, per_hour) => Some(u64::try_from(eta(per_hour)).unwrap_or(u64::MAX)),
        };
        Self {
            scattered_files: files,
            compacted_bytes: reply.compacted_bytes,
            compacted_bytes_per_s: reply.compacted_bytes_per_s,
            compacted_files_per_hour: per_hour,
            compaction_eta_s,
        }
    }
}

/// What is left to be made at other targets.
#[derive(Serialize)]
struct RepairRow {
    /// Chunks of targets that are down or given up: their segments lack redundancy.
    missing_chunks: u64,
    /// Chunks of targets that are being drained, or hold more than their share.
    moving_chunks: u64,
    /// Of the missing ones, those for which there is no target to be made at now.
    stuck_chunks: u64,
    /// Seconds that it takes as it goes now; null: it does not go on. 0: nothing is left.
    eta_s: Option<u64>,
    chunks_per_s: u64,
    /// Since the leader leads.
    made_chunks: u64,
    read_bytes: u64,
    written_bytes: u64,
    /// What keeps it.
    problems: Vec<String>,
}

impl From<&RepairStat> for RepairRow {
    fn from(stat: &RepairStat) -> Self {
        let left = stat.missing_chunks + stat.moving_chunks;
        let eta_s = match (left, stat.chunks_per_s) {
            (0, _) => Some(0),
            (_, 0) => None,
            (left, rate) => Some(left.div_ceil(rate)),
        };
        Self {
            missing_chunks: stat.missing_chunks,
            moving_chunks: stat.moving_chunks,
            stuck_chunks: stat.stuck_chunks,
            eta_s,
            chunks_per_s: stat.chunks_per_s,
            made_chunks: stat.made_chunks,
            read_bytes: stat.read_bytes,
            written_bytes: stat.written_bytes,
            problems: stat.problems.clone(),
        }
    }
}

#[derive(Serialize)]
struct ServerRow {
    id: u64,
    address: String,
    state: &'static str,
    term: u64,
    commit_index: u64,
    applied_index: u64,
    version: String,
    /// Left on the disk of its data folder; 0: not known.
    free_bytes: u64,
    /// That is less than is to stay free: the cluster takes nothing new.
    low_on_room: bool,
    error: Option<String>,
}

#[derive(Serialize)]
struct SessionRow {
    id: u64,
    client: String,
    idle_ms: u64,
    /// Open inodes that the leader was told of: not those under a lease of the session.
    opens: u64,
    /// Open inodes, as the session last said; null until it has.
    open_files: Option<u64>,
    /// What its connections to servers go over, as it last said.
    network: Option<NetworkRow>,
}

/// A storage daemon, by what it says of itself.
#[derive(Serialize)]
struct DaemonRow {
    daemon: String,
    /// What connections from others go over.
    network: Option<NetworkRow>,
}

/// Connections of a process.
#[derive(Serialize)]
struct NetworkRow {
    tcp: u64,
    tls: u64,
    rdma: u64,
    /// What goes over TCP although RDMA was asked for, and why; the first of it.
    fallbacks: Vec<FallbackRow>,
    /// How much that is in all.
    fallback_count: u64,
}

#[derive(Serialize)]
struct FallbackRow {
    /// Null: this process has no RDMA, or others do not reach it so.
    server: Option<String>,
    why: String,
}

impl From<&NetworkStat> for NetworkRow {
    fn from(stat: &NetworkStat) -> Self {
        let row = |fallback: &Fallback| FallbackRow {
            server: Some(fallback.server.clone()).filter(|server| !server.is_empty()),
            why: fallback.why.clone(),
        };
        let fallbacks = stat.fallbacks.iter().map(row).collect();
        let fallback_count = stat.fallback_count;
        Self { tcp: stat.tcp, tls: stat.tls, rdma: stat.rdma, fallbacks, fallback_count }
    }
}

impl NetworkRow {
    /// Such as `rdma 6, tcp 2`.
    fn text(&self) -> String {
        let all = [("rdma", self.rdma), ("tls", self.tls), ("tcp", self.tcp)];
        let used = all.iter().filter(|(_, connections)| *connections > 0);
        used.map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ")
    }
}

/// Exit code 0 if the cluster has a leader, else 1.
pub async fn run(args: Args) -> Result<ExitCode> {
    let mut answers = statuses(&args.cluster.cluster).await;
    let leader = leader_of(&answers).await;
    // Who belongs to the group the leader says; those that were named are only a way to it.
    let members = leader.iter().flat_map(|r| &r.map).flat_map(|map| &map.members);
    let members: Vec<String> = members.map(|m| m.address.clone()).collect();
    let same = |a: &[String], b: &[String]| a.iter().all(|x| b.contains(x)) && a.len() == b.len();
    if !members.is_empty() && !same(&members, &args.cluster.cluster) {
        answers = statuses(&members).await;
    }
    let metadata = answers.iter().map(|(address, answer)| server_row(address, answer)).collect();
    let reply = leader.as_ref().ok();
    let problems = problems(reply, Some(&answers));
    let report = Report {
        cluster: reply.and_then(cluster_of),
        epoch: reply.and_then(|r| Some(r.map.as_ref()?.epoch)),
        metadata,
        targets: reply.map(target::rows).unwrap_or_default(),
        pools: reply.map(pool::rows).unwrap_or_default(),
        sessions: reply.map(session_rows).unwrap_or_default(),
        storage_daemons: reply.map(daemon_rows).unwrap_or_default(),
        garbage_segments: reply.map_or(0, |r| r.garbage_segments),
        compaction: reply.map(CompactionRow::from).unwrap_or_default(),
        health: health(reply, &problems),
        problems,
        repair: reply.and_then(|r| r.repair.as_ref()).map(RepairRow::from),
        membership: reply.map(|r| r.membership.clone()).filter(|waits| !waits.is_empty()),
    };
    args.output.print(&report, text)?;
    match leader {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error.into()),
    }
}

fn cluster_of(reply: &StatusReply) -> Option<String> {
    Uuid::from_slice(&reply.map.as_ref()?.cluster).map(|id| id.to_string())
}

fn server_row(address: &str, answer: &weft_proto::Result<StatusReply>) -> ServerRow {
    let reply = answer.as_ref().ok().cloned().unwrap_or_default();
    let state = match answer {
        Err(_) => "unreachable",
        Ok(r) if r.leader == 0 => "no leader",
        Ok(r) if r.leader == r.id => "leader",
        Ok(_) => "follower",
    };
    ServerRow {
        id: reply.id,
        address: address.to_owned(),
        state,
        term: reply.term,
        commit_index: reply.commit_index,
        applied_index: reply.applied_index,
        version: reply.version,
        free_bytes: reply.free_bytes,
        low_on_room: reply.low_on_room,
        error: answer.as_ref().err().map(ToString::to_string),
    }
}

fn session_rows(reply: &StatusReply) -> Vec<SessionRow> {
    let row = |s: &weft_proto::v1::SessionStat| SessionRow {
        id: s.session,
        client: s.client.clone(),
        idle_ms: s.idle_ms,
        opens: s.opens,
        open_files: s.open_files,
        network: s.network.as_ref().map(NetworkRow::from),
    };
    reply.sessions.iter().map(row).collect()
}

fn daemon_rows(reply: &StatusReply) -> Vec<DaemonRow> {
    let row = |d: &DaemonStat| DaemonRow {
        daemon: d.daemon.clone(),
        network: d.network.as_ref().map(NetworkRow::from),
    };
    reply.daemons.iter().map(row).collect()
}

/// Bytes used and there in all, and whether not all that is used is known: of targets that were
/// given up nothing is to be had.
fn raw(targets: &[TargetRow]) -> (u64, u64, bool) {
    targets.iter().filter(|t| t.state != "out").fold((0, 0, false), |(used, all, silent), t| {
        let of_it = t.counters.used_bytes;
        (used + of_it.unwrap_or(0), all + t.capacity_bytes, silent || of_it.is_none())
    })
}

fn text(report: &Report) -> String {
    let mut out = match (&report.cluster, report.epoch) {
        (Some(id), Some(epoch)) => {
            let health = headline(report.health, &report.problems);
            format!("cluster {id}, map epoch {epoch}, health {health}\n")
        }
        _ => "cluster unknown: no leader answers\n".to_owned(),
    };
    out += &problems_text(&report.problems);
    let mut servers =
        Table::new(&["ID", "ADDRESS", "STATE", "TERM", "COMMIT", "APPLIED", "VERSION"]);
    for s in &report.metadata {
        let id = if s.error.is_some() { "-".to_owned() } else { s.id.to_string() };
        let numbers = [s.term, s.commit_index, s.applied_index].map(|n| n.to_string());
        let [term, commit, applied] = numbers;
        servers.row([
            id,
            s.address.clone(),
            s.state.into(),
            term,
            commit,
            applied,
            s.version.clone(),
        ]);
    }
    out += &format!("\nmetadata servers\n{}", servers.render("  "));
    for error in report.metadata.iter().filter_map(|s| s.error.as_ref()) {
        out += &format!("  {error}\n");
    }
    for s in report.metadata.iter().filter(|s| s.low_on_room) {
        out += &format!(
            "  the disk of {} has {} left, less than its reserve: nothing new is taken\n",
            s.address,
            Size(s.free_bytes)
        );
    }
    if let Some(waits) = &report.membership {
        out += &format!("  the group is to change; waiting: {waits}\n");
    }
    if report.cluster.is_none() {
        return out;
    }
    let (used, capacity, silent) = raw(&report.targets);
    let up = report.targets.iter().filter(|t| t.state == "up").count();
    out += &format!(
        "\ntargets: {up} of {} up, {}{} of {} raw used\n{}",
        report.targets.len(),
        if silent { "at least " } else { "" },
        Size(used),
        Size(capacity),
        target::text(&report.targets)
    );
    if let Some(repair) = &report.repair {
        out += &repair_text(repair);
    }
    out += &format!("\npools\n{}", pool::text(&report.pools));
    // Who has nothing but TCP need not be told so.
    let daemons = || report.storage_daemons.iter().filter_map(|d| Some((d, d.network.as_ref()?)));
    if daemons().any(|(_, network)| network.rdma > 0 || !network.fallbacks.is_empty()) {
        let mut table = Table::new(&["DAEMON", "CONNECTIONS"]);
        daemons().for_each(|(d, network)| table.row([d.daemon.clone(), network.text()]));
        out += &format!("\nstorage daemons\n{}", table.render("  "));
    }
    let mut sessions = Table::new(&["SESSION", "CLIENT", "IDLE", "OPEN FILES", "NETWORK"]);
    for s in &report.sessions {
        sessions.row([
            s.id.to_string(),
            s.client.clone(),
            format!("{:.1} s", s.idle_ms as f64 / 1e3),
            target::known(s.open_files),
            s.network.as_ref().map_or_else(|| "-".into(), NetworkRow::text),
        ]);
    }
    out += &format!("\nsessions: {}\n{}", report.sessions.len(), sessions.render("  "));
    out + &waiting_text(report)
}

/// What is wrong, before all else.
fn problems_text(problems: &[Problem]) -> String {
    // Names come from outside.
    let plain = |text: &str| text.replace(char::is_control, "?");
    let mut out = String::new();
    for problem in problems {
        let mark = match problem.severity {
            Severity::Critical => "!!",
            Severity::Warning => "! ",
            Severity::Note => "  ",
        };
        out += &format!("\n{mark} {}\n", plain(&problem.text));
        out += &format!("     {}\n", plain(&problem.consequence));
        if !problem.command.is_empty() {
            out += &format!("     > {}\n", plain(&problem.command));
        }
    }
    out
}

fn waiting_text(report: &Report) -> String {
    let mut out = String::new();
    let CompactionRow { scattered_files, compacted_bytes_per_s, .. } = report.compaction;
    if scattered_files > 0 {
        let compacted = Size(report.compaction.compacted_bytes);
        let mut done = format!("{compacted} were");
        if compacted_bytes_per_s > 0 {
            done += &format!(", {}/s", Size(compacted_bytes_per_s));
        }
        if let Some(seconds) = report.compaction.compaction_eta_s {
            done += &format!(", {seconds} s left");
        }
        out += &format!("\n{scattered_files} files may be put together again ({done})\n");
    }
    if report.garbage_segments > 0 {
        out += &format!("\n{} segments wait for deletion\n", report.garbage_segments);
    }
    out
}

fn repair_text(repair: &RepairRow) -> String {
    let RepairRow { missing_chunks, moving_chunks, stuck_chunks, .. } = repair;
    if missing_chunks + moving_chunks == 0 {
        return "\nrepair: nothing is left to be done\n".to_owned();
    }
    let eta = match repair.eta_s {
        Some(seconds) => format!("{} chunks/s, {seconds} s left", repair.chunks_per_s),
        None => "does not go on now".to_owned(),
    };
    let mut out = format!("\nrepair: {missing_chunks} chunks missing");
    if *moving_chunks > 0 {
        out += &format!(", {moving_chunks} moving");
    }
    out += &format!("; {eta}\n");
    if *stuck_chunks > 0 {
        out += &format!(
            "  {stuck_chunks} of them have no target to be made at: add targets (weft target add)\n"
        );
    }
    for problem in &repair.problems {
        out += &format!("  {problem}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_proto::v1::{ClusterMap, TargetInfo, TargetStat, TargetState};

    #[test]
    fn a_target_that_was_given_up_is_no_room() {
        let target = |id, state: TargetState| TargetInfo {
            id,
            state: state.into(),
            capacity_bytes: 100,
            ..Default::default()
        };
        let mut targets = vec![target(1, TargetState::Up), target(2, TargetState::Out)];
        let raw_of = |targets: &[TargetInfo]| {
            let stat = |target| TargetStat { target, used_bytes: 30, ..Default::default() };
            raw(&target::rows(&StatusReply {
                map: Some(ClusterMap { targets: targets.to_vec(), ..Default::default() }),
                targets: vec![stat(1)],
                ..Default::default()
            }))
        };
        assert_eq!(raw_of(&targets), (30, 100, false));
        targets.push(target(3, TargetState::Down));
        assert_eq!(raw_of(&targets), (30, 200, true));
    }
}
