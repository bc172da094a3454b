//! How Raft is set up, how its log lines reach ours, and the log worker's function.

use crate::config::Config;
use crate::folder::LOG;
use crate::raftlog::{Append, LogDb, LogStorage};
use crate::state::StateMachine;
use std::sync::Arc;
use tokio::sync::mpsc;
use weft_proto::{NodeId, Result};

/// Most bytes of entries that wait to be committed; more are refused until some are.
const MAX_UNCOMMITTED: u64 = 64 << 20;
/// Size of one append message, and how many may be under way to a follower.
const MAX_MESSAGE: u64 = 512 << 10;
const MAX_INFLIGHT: usize = 256;

/// A change of the log on its way to the disk.
pub struct LogJob {
    /// The ready to report; 0: none. The end of the write is reported in any case.
    pub number: u64,
    pub append: Append,
}

/// Opens the log as far as the state has applied it.
pub fn open_log(config: &Config, state: &StateMachine) -> Result<LogStorage> {
    let mut log = LogStorage::open(&config.data_dir.join(LOG), state.applied())?;
    // It says with whom it begins; who belongs to the group since is what was applied.
    if let Some(members) = state.membership()? {
        log.set_conf_state(members.conf_state());
    }
    Ok(log)
}

pub fn raft_config(config: &Config, applied: u64) -> raft::Config {
    raft::Config {
        id: config.id.0,
        election_tick: config.election_ticks(),
        heartbeat_tick: 1,
        applied,
        max_size_per_msg: MAX_MESSAGE,
        max_inflight_msgs: MAX_INFLIGHT,
        check_quorum: true,
        pre_vote: true,
        max_uncommitted_size: MAX_UNCOMMITTED,
        max_committed_size_per_ready: 4 << 20,
        // Batching may join entries to an empty append that says another index before them, which
        // the follower then acknowledges under wrong indexes. The links join messages as well.
        batch_append: false,
        // Followers learn of a commit with the next append or heartbeat; nobody reads from them.
        skip_bcast_commit: true,
        ..Default::default()
    }
}

/// The log worker's function: all waiting changes in one synced write.
pub fn log_writer(
    log: Arc<LogDb>,
    done: mpsc::UnboundedSender<Result<u64>>,
) -> impl FnMut(Vec<LogJob>) + Send + 'static {
    let mut failed = false;
    move |jobs| {
        if failed {
            return;
        }
        let (numbers, changes): (Vec<u64>, Vec<Append>) =
            jobs.into_iter().map(|j| (j.number, j.append)).unzip();
        match log.write(&changes) {
            Ok(()) => {
                for number in numbers {
                    // The event loop may have ended.
                    let _ = done.send(Ok(number));
                }
            }
            Err(e) => {
                failed = true;
                let _ = done.send(Err(e));
            }
        }
    }
}

/// Raft's log lines, through ours.
pub fn logger(id: NodeId) -> slog::Logger {
    slog::Logger::root(Forward { id }, slog::o!())
}

struct Forward {
    id: NodeId,
}

impl slog::Drain for Forward {
    type Ok = ();
    type Err = slog::Never;

    fn log(
        &self,
        record: &slog::Record<'_>,
        _: &slog::OwnedKVList,
    ) -> std::result::Result<(), slog::Never> {
        let id = self.id.0;
        match record.level() {
            slog::Level::Critical | slog::Level::Error => {
                tracing::error!(id, "raft: {}", record.msg())
            }
            slog::Level::Warning => tracing::warn!(id, "raft: {}", record.msg()),
            _ => tracing::debug!(id, "raft: {}", record.msg()),
        }
        Ok(())
    }
}
