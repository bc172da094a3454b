//! Drives that fail some requests, hang, or are slower than the others.

use super::problem::{Problem, Severity, bounded, count};
use std::collections::BTreeMap;
use weft_proto::v1::{StatusReply, TargetInfo, TargetLoad, TargetStat, TargetState};

/// A drive that has not answered its oldest request for so long hangs.
const HANGS_MS: u64 = 2000;
/// A drive is slow if it takes so many times what the others take, and at least so long.
const SLOW_TIMES: u64 = 5;
const SLOW_US: u64 = 50_000;
/// Requests a second of which the mean says something.
const MIN_RATE: u64 = 4;
/// Damaged blocks are made anew; more than these are a sign.
const CHECKSUMS: u64 = 10;

pub(super) fn problems(reply: &StatusReply) -> Vec<Problem> {
    let known: BTreeMap<u32, &TargetInfo> =
        reply.map.iter().flat_map(|map| &map.targets).map(|t| (t.id, t)).collect();
    let up = |s: &&TargetStat| {
        known.get(&s.target).is_some_and(|t| t.state() == TargetState::Up) && !s.refused
    };
    let stats: Vec<&TargetStat> = reply.targets.iter().filter(up).collect();
    let of = |s: &TargetStat| known.get(&s.target).map_or_else(String::new, |t| name(t));
    let mut all = bounded(hanging(&stats, &of), "drives that hang");
    all.extend(bounded(erring(&stats, &of), "drives with errors"));
    all.extend(bounded(slow(&stats, &of), "drives that are slow"));
    all
}

fn name(t: &TargetInfo) -> String {
    format!("the drive of target {} ({} at {}, {})", t.id, t.daemon, t.address, t.path)
}

fn hanging(stats: &[&TargetStat], of: &dyn Fn(&TargetStat) -> String) -> Vec<Problem> {
    let hangs = stats.iter().filter(|s| s.stalled_ms >= HANGS_MS);
    let problem = |s: &&TargetStat| {
        Problem::new(
            Severity::Warning,
            "drive_hangs",
            format!("{} has not answered for {} s", of(s), s.stalled_ms / 1000),
            "its requests go round it: reads are rebuilt, writes go to others",
            "dmesg and, behind a fabric, nvme list-subsys on that machine",
        )
    };
    hangs.map(problem).collect()
}

fn erring(stats: &[&TargetStat], of: &dyn Fn(&TargetStat) -> String) -> Vec<Problem> {
    let mut all = Vec::new();
    for s in stats {
        let failed = s.read_errors.saturating_add(s.write_errors);
        let replace = format!("weft target drain {} empties it; then replace the drive", s.target);
        if failed > 0 {
            let text = format!(
                "{} has failed {} and {}",
                of(s),
                count(s.read_errors, "read"),
                count(s.write_errors, "write")
            );
            let consequence = "what it cannot read is made of the others; it may be lost soon";
            all.push(Problem::new(Severity::Warning, "drive_errors", text, consequence, &replace));
        }
        if s.checksum_errors > 0 {
            let many = s.checksum_errors > CHECKSUMS;
            let severity = if many { Severity::Warning } else { Severity::Note };
            let text = format!(
                "{} has given {} that did not match",
                of(s),
                count(s.checksum_errors, "block")
            );
            let consequence = "they are made anew of the others; nobody was given them";
            let command = if many { &replace[..] } else { "" };
            all.push(Problem::new(severity, "checksum_errors", text, consequence, command));
        }
    }
    all
}

/// How often a drive does something, and how long that takes.
type RateAndTime = fn(&TargetLoad) -> (u64, u64);

/// Drives that take many times what the drive in the middle takes.
fn slow(stats: &[&TargetStat], of: &dyn Fn(&TargetStat) -> String) -> Vec<Problem> {
    let mut all = Vec::new();
    let kinds: [(&str, RateAndTime); 2] =
        [("reads", |l| (l.reads_per_s, l.read_us)), ("writes", |l| (l.writes_per_s, l.write_us))];
    for (what, take) in kinds {
        let busy = stats.iter().filter_map(|s| Some((*s, take(s.load.as_ref()?))));
        let busy: Vec<_> = busy.filter(|(_, (rate, _))| *rate >= MIN_RATE).collect();
        let mut times: Vec<u64> = busy.iter().map(|(_, (_, us))| *us).collect();
        times.sort_unstable();
        // Of two, the faster one is what is usual.
        let Some(&usual) = times.get(times.len().saturating_sub(1) / 2) else { continue };
        if times.len() < 3 {
            continue;
        }
        for (s, (_, us)) in busy {
            if us < SLOW_US || us < usual.saturating_mul(SLOW_TIMES) {
                continue;
            }
            all.push(Problem::new(
                Severity::Warning,
                "drive_slow",
                format!(
                    "{} is slow: {what} take {} ms on average, elsewhere {:.1} ms",
                    of(s),
                    us / 1000,
                    usual as f64 / 1e3
                ),
                "whoever waits for it waits longer; reads go round it after a while",
                "iostat -x and smartctl -a on that machine; weft target drain empties it",
            ));
        }
    }
    all
}
