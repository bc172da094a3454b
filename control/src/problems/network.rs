//! What goes over TCP although RDMA was asked for.

use super::problem::{Problem, Severity, bounded, count};
use weft_proto::v1::{DaemonStat, Fallback, NetworkStat, SessionStat, StatusReply};

pub(super) fn problems(reply: &StatusReply) -> Vec<Problem> {
    let mut all = bounded(unserved(reply), "storage daemons that do not serve RDMA");
    all.extend(bounded(unreached(reply), "clients that go over TCP"));
    all
}

const CONSEQUENCE: &str = "it works over TCP, which takes more CPU time on both sides";

/// Such as `s1:7200 over RDMA: no way to this host, and 3 others too`.
fn unreached_by(network: &NetworkStat, who: &str) -> Option<String> {
    let Fallback { server, why } = network.fallbacks.first()?;
    if server.is_empty() {
        return Some(format!("{who} does not use RDMA: {why}"));
    }
    let others = match network.fallback_count.saturating_sub(1) {
        0 => String::new(),
        n => format!(", and {} too", count(n, "other")),
    };
    Some(format!("{who} does not reach {server} over RDMA: {why}{others}"))
}

/// Daemons that were told to use RDMA and do not.
fn unserved(reply: &StatusReply) -> Vec<Problem> {
    let told = |daemon: &DaemonStat| {
        let who = format!("storage daemon {}", daemon.daemon);
        Some(Problem::new(
            Severity::Warning,
            "rdma_not_served",
            unreached_by(daemon.network.as_ref()?, &who)?,
            CONSEQUENCE,
            "weft doctor --role storage on that machine; then restart the daemon",
        ))
    };
    reply.daemons.iter().filter_map(told).collect()
}

/// Mounts and programs that do not reach servers over RDMA. Where they prove who they are there is
/// no RDMA, whatever they say.
fn unreached(reply: &StatusReply) -> Vec<Problem> {
    let told = |session: &SessionStat| {
        Some(Problem::new(
            Severity::Warning,
            "rdma_fallback",
            unreached_by(session.network.as_ref()?, &session.client)?,
            CONSEQUENCE,
            "weft doctor on that machine, and deploy/rdma.md, part 4",
        ))
    };
    let unproved = reply.sessions.iter().filter(|session| session.owner.is_empty());
    unproved.filter_map(told).collect()
}
