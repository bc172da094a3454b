//! Targets that do not serve, what is missing for that, and room.

use super::problem::{Problem, Severity, bounded, count, list};
use std::collections::{BTreeMap, HashMap, HashSet};
use weft_proto::v1::{StatusReply, TargetInfo, TargetStat, TargetState};

/// A target that is fuller than this, in percent, is told of before it is full.
const NEARLY_FULL: u64 = 85;
/// A daemon that has said something of its target since then lives.
const SAID_LATELY_MS: u64 = 10_000;

/// What was told of each target.
type Stats<'a> = HashMap<u32, &'a TargetStat>;

pub(super) fn problems(reply: &StatusReply) -> Vec<Problem> {
    let stats: Stats<'_> = reply.targets.iter().map(|stat| (stat.target, stat)).collect();
    let mut all = groups(reply);
    all.extend(bounded(down(reply, &stats), "daemons with targets that do not serve"));
    all.extend(repair(reply));
    all.extend(room(reply, &stats));
    all
}

fn targets(reply: &StatusReply) -> impl Iterator<Item = &TargetInfo> {
    reply.map.iter().flat_map(|map| &map.targets)
}

/// Placement groups that have lost all their parity, or more.
fn groups(reply: &StatusReply) -> Vec<Problem> {
    let (lost, bare) = (reply.lost_groups, reply.bare_groups);
    let mut all = Vec::new();
    if lost > 0 {
        all.push(Problem::new(
            Severity::Critical,
            "groups_lost",
            format!("{} lack more targets than they have parity", count(lost, "placement group")),
            "files in them cannot be read or written until some of those targets are back",
            "bring the targets back that do not serve (below); weft pool domains",
        ));
    }
    if bare > 0 {
        all.push(Problem::new(
            Severity::Critical,
            "groups_bare",
            format!("{} have no redundancy left", count(bare, "placement group")),
            "reads and writes work; the next target that is lost takes files with it",
            "bring the targets back that do not serve (below), or weft target out ID to have \
             what they held made elsewhere now",
        ));
    }
    all
}

/// Targets that are down, by daemon.
fn down(reply: &StatusReply, stats: &Stats<'_>) -> Vec<Problem> {
    let mut daemons: BTreeMap<(&str, &str), Vec<&TargetInfo>> = BTreeMap::new();
    for target in targets(reply).filter(|t| t.state() == TargetState::Down) {
        daemons.entry((&target.daemon, &target.address)).or_default().push(target);
    }
    let serving = targets(reply).filter(|t| t.state() == TargetState::Up);
    let serving: HashSet<&str> = serving.map(|t| &t.daemon[..]).collect();
    let missing = reply.repair.as_ref().map_or(0, |r| r.missing_chunks);
    let consequence = format!(
        "what it holds is read from other targets, and lacks redundancy ({} missing in all); \
         after target_out_ms it is made at others",
        count(missing, "chunk")
    );
    let problem = |((daemon, address), down): ((&str, &str), Vec<&TargetInfo>)| {
        let ids: Vec<u32> = down.iter().map(|t| t.id).collect();
        let refused = |t: &&TargetInfo| {
            stats.get(&t.id).is_some_and(|s| s.refused && s.heard_ms < SAID_LATELY_MS)
        };
        let give_up = format!("if it is lost for good: weft target out {}", down[0].id);
        let (text, command) = if serving.contains(daemon) || down.iter().all(refused) {
            let (named, path) = (named(&ids), &down[0].path);
            (
                format!(
                    "{named} of storage daemon {daemon} ({address}) does not serve: the drive \
                     fails or is away ({path})"
                ),
                format!("dmesg, smartctl -a on that machine; {give_up}"),
            )
        } else {
            let silent = down.iter().filter_map(|t| stats.get(&t.id)).map(|s| s.heard_ms / 1000);
            let since = silent.max().filter(|s| *s > 0);
            let since = since.map_or_else(String::new, |s| format!(" for {}", span(s)));
            let named = named(&ids);
            (
                format!("storage daemon {daemon} ({address}) is silent{since}: {named} down"),
                format!(
                    "systemctl restart weft-storaged on that machine, journalctl -u \
                     weft-storaged; {give_up}"
                ),
            )
        };
        Problem::new(Severity::Warning, "target_down", text, &consequence, &command)
    };
    daemons.into_iter().map(problem).collect()
}

fn named(ids: &[u32]) -> String {
    format!("{} {}", if ids.len() == 1 { "target" } else { "targets" }, list(ids))
}

fn span(s: u64) -> String {
    match s {
        0..120 => format!("{s} s"),
        120..7200 => format!("{} min", s / 60),
        _ => format!("{} h", s / 3600),
    }
}

/// What is being made, and what cannot be.
fn repair(reply: &StatusReply) -> Vec<Problem> {
    let Some(repair) = &reply.repair else { return Vec::new() };
    let mut all = Vec::new();
    if repair.damaged_records > 0 {
        let segments = count(repair.damaged_records, "segment");
        all.push(Problem::new(
            Severity::Warning,
            "records_damaged",
            format!("what is recorded of {segments} makes no sense"),
            "they are neither repaired nor moved",
            "weft fsck",
        ));
    }
    if repair.stuck_chunks > 0 {
        // The last is of damaged records, if there are any.
        let others = repair.problems.len().saturating_sub(usize::from(repair.damaged_records > 0));
        let why = repair.problems.first().filter(|_| others > 0);
        let why = why.map(|p| format!(": {p}")).unwrap_or_default();
        all.push(Problem::new(
            Severity::Critical,
            "repair_stuck",
            format!("{} have no target to be made at{why}", count(repair.stuck_chunks, "chunk")),
            "their files stay without redundancy",
            "weft target add on a machine with room, or bring back what is down",
        ));
    }
    let out = targets(reply).any(|t| t.state() == TargetState::Out);
    let left = repair.missing_chunks.saturating_sub(repair.stuck_chunks);
    if left > 0 {
        let eta = repair.missing_chunks.checked_div(repair.chunks_per_s);
        let (severity, text) = match (eta, out) {
            (Some(s), _) => (
                Severity::Note,
                format!(
                    "{} are being made anew: {}/s, {} left",
                    count(left, "chunk"),
                    repair.chunks_per_s,
                    span(s)
                ),
            ),
            (None, true) => (
                Severity::Warning,
                format!("{} are missing, and none was made of late", count(left, "chunk")),
            ),
            // It waits for the target to come back.
            (None, false) => return all,
        };
        let consequence = "until then their files have less redundancy";
        all.push(Problem::new(severity, "repair", text, consequence, "weft status"));
    }
    all
}

/// Targets that are full, or soon are.
fn room(reply: &StatusReply, stats: &Stats<'_>) -> Vec<Problem> {
    let live = || targets(reply).filter(|t| t.state() == TargetState::Up);
    let ids = |of: &dyn Fn(&TargetInfo) -> bool| -> Vec<u32> {
        live().filter(|t| of(t)).map(|t| t.id).collect()
    };
    let percent = |t: &TargetInfo| {
        let stat = stats.get(&t.id).map_or_else(TargetStat::default, |s| **s);
        let used = u128::from(stat.used_bytes) * 100;
        (used / u128::from(stat.capacity_bytes.max(1))) as u64
    };
    let no_index = ids(&|t| stats.get(&t.id).is_some_and(|stat| stat.index_full));
    let full = ids(&|t| t.full);
    let nearly = ids(&|t| !t.full && percent(t) >= NEARLY_FULL);
    let mut all = Vec::new();
    if !full.is_empty() {
        let every = full.len() == live().count();
        let (severity, consequence) = match every {
            true => (Severity::Critical, "writes fail (ENOSPC); reading and removing go on"),
            false => (Severity::Warning, "new data goes to the others, which fill up faster"),
        };
        let what =
            if every { "all targets are full".into() } else { format!("{} full", named(&full)) };
        let command = "weft quota report shows who holds what; weft target add makes room";
        all.push(Problem::new(severity, "target_full", what, consequence, command));
    }
    if !no_index.is_empty() {
        let text = format!("the index of {} has no room left on its disk", named(&no_index));
        let consequence = "no new data goes there, whatever room the drive itself has";
        let command = "df on that machine, for the disk of the index; make room there";
        all.push(Problem::new(Severity::Warning, "index_full", text, consequence, command));
    }
    if !nearly.is_empty() {
        let text = format!("{} over {NEARLY_FULL} % full", named(&nearly));
        let consequence = "who writes there is slowed down before there is no space";
        let command = "weft quota report shows who holds what; weft target add makes room";
        all.push(Problem::new(Severity::Warning, "target_nearly_full", text, consequence, command));
    }
    all
}
