//! Storage daemons that are slow themselves, whatever their drives do.

use super::problem::{Problem, Severity};
use weft_proto::v1::StatusReply;

/// A daemon that gets to run so late on average is told of, if it is so many times later than the
/// one in the middle: on a machine that all share, all are late.
const LATE_MS: u64 = 100;
const LATE_TIMES: u64 = 5;

pub(super) fn problems(reply: &StatusReply) -> Vec<Problem> {
    let mut all: Vec<u64> = reply.clocks.iter().map(|c| c.late_ms).collect();
    all.sort_unstable();
    // Of two, the one that is less late is what is usual.
    let usual = all.get(all.len().saturating_sub(1) / 2).copied().unwrap_or_default();
    let is_late = |late: u64| late >= LATE_MS.max(usual.saturating_mul(LATE_TIMES));
    let late = reply.clocks.iter().filter(|c| all.len() > 2 && is_late(c.late_ms));
    let told = late.map(|c| {
        let (daemon, late) = (&c.daemon, c.late_ms);
        Problem::new(
            Severity::Warning,
            "daemon_late",
            format!(
                "storage daemon {daemon} is slow: it gets to run {late} ms late on average, \
                 others {usual} ms"
            ),
            "whoever waits for it waits longer; reads go round it after a while",
            "top and vmstat 1 on that machine: who has its processors, or its memory?",
        )
    });
    told.collect()
}
