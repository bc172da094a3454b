//! What goes over TCP although RDMA was asked for.

use super::problem::{Problem, Severity, bounded, count};
use weft_proto::v1::{DaemonStat, Fallback, SessionStat, StatusReply};

pub(super) fn problems(reply: &StatusReply) -> Vec<Problem> {
    let mut all = bounded(unserved(reply), "storage daemons that do not serve RDMA");
    all.extend(bounded(unreached(reply), "clients that go over TCP"));
    all
}

const CONSEQUENCE: &str = "it works over TCP, which takes more CPU time on both sides";

/// Daemons that were told to serve RDMA and do not.
fn unserved(reply: &StatusReply) -> Vec<Problem> {
    let told = |daemon: &DaemonStat| {
        let why = &daemon.network.as_ref()?.fallbacks.first()?.why;
        Some(Problem::new(
            Severity::Warning,
            "rdma_not_served",
            format!("storage daemon {} does not serve RDMA: {why}", daemon.daemon),
            CONSEQUENCE,
            "weft doctor --role storage on that machine; then start the daemon anew",
        ))
    };
    reply.daemons.iter().filter_map(told).collect()
}

/// Mounts and programs that do not reach servers over RDMA.
fn unreached(reply: &StatusReply) -> Vec<Problem> {
    let told = |session: &SessionStat| {
        let fallbacks = &session.network.as_ref()?.fallbacks;
        let Fallback { server, why } = fallbacks.first()?;
        let others = match fallbacks.len() - 1 {
            0 => String::new(),
            n => format!(", and {} too", count(n as u64, "other")),
        };
        let client = &session.client;
        Some(Problem::new(
            Severity::Warning,
            "rdma_fallback",
            format!("{client} does not reach {server} over RDMA: {why}{others}"),
            CONSEQUENCE,
            "weft doctor on that machine, and deploy/rdma.md, part 4",
        ))
    };
    reply.sessions.iter().filter_map(told).collect()
}
