//! What Prometheus reads of a metadata server: what it has done, and, of the leader, how the
//! cluster is. `docs/metrics.md` lists all of it, with what to do.

use crate::console;
use crate::control::ControlService;
use prometheus::HistogramVec;
use std::collections::BTreeSet;
use std::sync::LazyLock;
use weft_control::{Answer, Page, Pages, Reader, Values, metrics};
use weft_net::Address;
use weft_proto::v1;
use weft_proto::v1::TargetState;

/// How long requests of clients take, with all that they wait for.
pub static OPERATIONS: LazyLock<HistogramVec> = LazyLock::new(|| {
    let help = "How long requests about the namespace take, with what they wait for.";
    weft_net::metrics::latencies("weft_metadata_operation_seconds", help, "operation")
});

#[async_trait::async_trait]
impl Pages for ControlService {
    async fn page(&self, path: &str) -> Option<Page> {
        if path != "/metrics" {
            return None;
        }
        let status = self.status_now().await;
        let status = status.inspect_err(|error| tracing::error!("no metrics: {error}")).ok()?;
        Some(metrics(values(&status)))
    }

    fn is_called(&self, host: &str) -> bool {
        let map = self.node().map();
        map.members.iter().any(|member| {
            member.address.parse::<Address>().is_ok_and(|a| a.host().eq_ignore_ascii_case(host))
        })
    }

    async fn answer(&self, path: &str, reader: Reader) -> Option<Answer> {
        match console::asked(path) {
            Some(asked) => console::answer(self, asked, reader).await,
            None => self.page(path).await.map(Answer::Page),
        }
    }
}

fn flag(set: bool) -> f64 {
    f64::from(u8::from(set))
}

fn values(status: &v1::StatusReply) -> Values {
    let mut all = Values::default();
    let leads = status.leader == status.id;
    let is = status.version.clone();
    all.each("weft_build_info", "The version of this process.", "version", [(is, 1.0)]);
    all.one("weft_raft_leader", "Whether this server leads.", flag(leads));
    all.one("weft_raft_has_leader", "Whether it knows who leads.", flag(status.leader != 0));
    all.one("weft_raft_term", "The term, which grows with each election.", status.term as f64);
    let help = "The last entry that a majority has.";
    all.one("weft_raft_commit_index", help, status.commit_index as f64);
    let help = "The last entry that is in the state of this server.";
    all.one("weft_raft_applied_index", help, status.applied_index as f64);
    let help = "Bytes left on the disk of this server's data folder.";
    all.one("weft_metadata_free_bytes", help, status.free_bytes as f64);
    let help = "Whether that is too little: the cluster takes nothing new.";
    all.one("weft_metadata_low_on_room", help, flag(status.low_on_room));
    let help = "Whether this server is behind, and cannot fetch the state.";
    all.one("weft_metadata_cannot_fetch", help, flag(!status.cannot_fetch.is_empty()));
    let help = "Whether it could not read or copy a part of its log or its state.";
    all.one("weft_metadata_damaged", help, flag(!status.damaged.is_empty()));
    let help = "The clock of this server, in seconds since 1970.";
    all.one("weft_clock_seconds", help, status.clock_ns as f64 / 1e9);
    if leads {
        of_the_cluster(&mut all, status);
    }
    all
}

/// What only the leader knows.
fn of_the_cluster(all: &mut Values, status: &v1::StatusReply) {
    let members = &status.members;
    let behind = |m: &v1::MemberStat| status.commit_index.saturating_sub(m.matched_index);
    let of = |m: &v1::MemberStat, value| (m.id.to_string(), value);
    let help = "Entries that another metadata server is behind the leader.";
    let lag = members.iter().map(|m| of(m, behind(m) as f64));
    all.each("weft_raft_member_lag_entries", help, "member", lag);
    let help = "Whether another metadata server answers the leader.";
    let active = members.iter().map(|m| of(m, flag(m.active)));
    all.each("weft_raft_member_active", help, "member", active);
    let help = "How far the clock of a storage daemon is before the leader's.";
    let ahead = status.daemons.iter().map(|c| (c.daemon.clone(), c.ahead_s as f64));
    all.each("weft_daemon_clock_ahead_seconds", help, "daemon", ahead);
    let help = "How late a storage daemon gets to run, of late, on average.";
    let late = status.daemons.iter().filter_map(|c| Some((c, c.late_ms?)));
    let late = late.map(|(c, ms)| (c.daemon.clone(), ms as f64 / 1e3));
    all.each("weft_daemon_late_seconds", help, "daemon", late);
    all.one(
        "weft_sessions",
        "Mounts and programs that are connected.",
        status.sessions.len() as f64,
    );
    let open: u64 = status.sessions.iter().map(|s| s.open_files.unwrap_or(s.opens)).sum();
    all.one("weft_open_files", "Files that they have open.", open as f64);
    let help = "Segments that wait for their chunks to be deleted, counted up to a bound.";
    all.one("weft_garbage_segments", help, status.garbage_segments as f64);
    let help = "Files that may be worth being put together again.";
    all.one("weft_scattered_files", help, status.scattered_files as f64);
    targets(all, status);
    if let Some(repair) = &status.repair {
        let help = "Chunks that are to be made at other targets, of what is down or out.";
        all.one("weft_missing_chunks", help, repair.missing_chunks as f64);
        let help = "Chunks that move, of what is drained or holds more than its share.";
        all.one("weft_moving_chunks", help, repair.moving_chunks as f64);
        let help = "Missing chunks for which there is no target now.";
        all.one("weft_stuck_chunks", help, repair.stuck_chunks as f64);
        let help = "Segments that repair passes over, as what is recorded of them makes no sense.";
        all.one("weft_damaged_records", help, repair.damaged_records as f64);
        let help = "Chunks that were made anew since this leader leads.";
        all.one("weft_made_chunks", help, repair.made_chunks as f64);
    }
}

fn targets(all: &mut Values, status: &v1::StatusReply) {
    let infos = status.map.iter().flat_map(|map| &map.targets);
    let mut states = [0u64; 4];
    for info in infos {
        if let Some(count) = states.get_mut(info.state as usize) {
            *count += 1;
        }
    }
    let named = [(TargetState::Up, "up"), (TargetState::Down, "down"), (TargetState::Out, "out")];
    let states = named.map(|(state, name)| {
        let count = states.get(state as usize).copied().unwrap_or_default();
        (name.to_owned(), count as f64)
    });
    all.each("weft_targets", "Targets in each state.", "state", states);
    // What was given up counts no more, and is not known to have gone.
    let infos = status.map.iter().flat_map(|map| &map.targets);
    let out = infos.filter(|info| info.state == TargetState::Out as i32).map(|info| info.id);
    let out: BTreeSet<u32> = out.collect();
    let stats = || status.targets.iter().filter(|stat| !out.contains(&stat.target));
    let of = |t: &v1::TargetStat, value: u64| (t.target.to_string(), value as f64);
    let help = "Bytes that a target can hold, as it last said.";
    let capacity = stats().map(|t| of(t, t.capacity_bytes));
    all.each("weft_cluster_target_capacity_bytes", help, "target", capacity);
    let help = "Bytes that it holds.";
    let used = stats().map(|t| of(t, t.used_bytes));
    all.each("weft_cluster_target_used_bytes", help, "target", used);
}
