//! Who takes part: metadata servers, storage daemons, clients.

use super::calls::RETRY_INTERVAL;
use super::clocks::{SERVER_CLOCKS, at_speed_of};
use super::disks::Disks;
use super::names::SERVERS;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use weft_client::{Filesystem, Options};
use weft_metadata::{Clock, Config, Env, Member, run_in};
use weft_net::sim;
use weft_proto::NodeId;

pub const PORT: u16 = 7000;

pub fn addresses() -> Vec<String> {
    SERVERS.iter().map(|server| format!("{server}:{PORT}")).collect()
}

/// Of one of the servers that begin the group, or of one that joins it.
pub fn config(id: u64, name: &str, dir: &Path) -> Config {
    let others = (1..).zip(SERVERS).filter(|(other, _)| *other != id);
    let peers = others
        .chain([(id, name)])
        .map(|(id, name)| Member { id: NodeId(id), address: format!("{name}:{PORT}") })
        .collect();
    // A short log, so that a server that was away needs a snapshot.
    Config {
        log_entries: 32,
        profile: "2+1".into(),
        // How full this machine is, is not for the seed to know.
        reserve_bytes: 0,
        // Short, so that targets are given up, and data is moved, in the middle of it.
        target_out_ms: 15_000,
        rebalance_after_ms: 2000,
        // And files are put together again while they are in use.
        compact_after_ms: 3000,
        ..Config::new(NodeId(id), format!("0.0.0.0:{PORT}"), peers, dir.join(name))
    }
}

/// The wall clock of a metadata server.
struct ServerClock(fn() -> i64);

impl Clock for ServerClock {
    fn now_ns(&self) -> i64 {
        self.0()
    }
}

/// One metadata server with one of the clocks, until it is crashed. Whoever has lost its power does
/// nothing any more.
pub async fn serve(
    config: Config,
    clock: usize,
    seed: u64,
    disks: &'static dyn Disks,
) -> turmoil::Result {
    let (_stop, stopped) = watch::channel(false);
    let wall = Arc::new(ServerClock(SERVER_CLOCKS[clock]));
    let env = Env { clock: wall, seed: seed ^ config.id.0 << 48, threads: false };
    let folder = config.data_dir.clone();
    let ended = at_speed_of(clock, run_in(config, sim::transport(), env, stopped)).await;
    if disks.is_off(&folder) {
        std::future::pending::<()>().await;
    }
    Ok(ended?)
}

pub async fn connect(name: &str, seed: u64, clock: fn() -> i64) -> turmoil::Result<Filesystem> {
    let options = Options {
        client_name: name.into(),
        clock,
        op_deadline: Duration::from_secs(20),
        seed: Some(seed),
        ..Options::new(addresses(), sim::transport())
    };
    loop {
        if let Ok(fs) = Filesystem::connect(options.clone()).await {
            return Ok(fs);
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}
