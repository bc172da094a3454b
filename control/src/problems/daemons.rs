//! Storage daemons that are slow themselves, whatever their drives do.

use super::problem::{Problem, Severity, bounded};
use weft_proto::v1::StatusReply;

/// A daemon that gets to run so late on average is told of, if it is so many times later than the
/// one in the middle: on a machine that all share, all are late.
const LATE_MS: u64 = 100;
const LATE_TIMES: u64 = 5;

pub(super) fn problems(reply: &StatusReply) -> Vec<Problem> {
    let told = || reply.daemons.iter().filter_map(|c| Some((&c.daemon, c.late_ms?)));
    let mut all: Vec<u64> = told().map(|(_, late)| late).collect();
    all.sort_unstable();
    // Of two, which is usual is not known.
    if all.len() < 3 {
        return Vec::new();
    }
    let usual = all[(all.len() - 1) / 2];
    let is_late = |late: u64| late >= LATE_MS.max(usual.saturating_mul(LATE_TIMES));
    let problem = |(daemon, late)| {
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
    };
    bounded(told().filter(|(_, late)| is_late(*late)).map(problem).collect(), "that are slow")
}
