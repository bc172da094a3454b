//! Who takes part: metadata servers, storage daemons, clients.

use super::calls::RETRY_INTERVAL;
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use weft_client::{Filesystem, Options};
use weft_metadata::{Clock, Config, Env, Member, run_in};
use weft_net::sim;
use weft_proto::NodeId;

pub const SERVERS: [&str; 3] = ["m1", "m2", "m3"];
/// The server that takes the place of one of them, perhaps.
pub const NEW_SERVER: &str = "m4";
pub const NEW_SERVER_ID: u64 = 4;
pub const CLIENTS: [&str; 3] = ["c1", "c2", "c3"];
pub const DAEMONS: [&str; 4] = ["s1", "s2", "s3", "s4"];
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

/// Clocks on which something depends: of servers and of clients.
pub const CLOCKS: usize = SERVERS.len() + CLIENTS.len();

thread_local! {
    /// By how many nanoseconds the clock of each host is wrong.
    static WRONG: [Cell<i64>; CLOCKS] = const { [const { Cell::new(0) }; CLOCKS] };
}

/// What the clock of a host says, in nanoseconds since 1970.
fn wall<const CLOCK: usize>() -> i64 {
    turmoil::since_epoch().map_or(0, |t| t.as_nanos() as i64) + WRONG.with(|by| by[CLOCK].get())
}

pub const CLIENT_CLOCKS: [fn() -> i64; CLIENTS.len()] = [wall::<3>, wall::<4>, wall::<5>];

/// From now on a clock is wrong by so much.
pub fn set_clock(clock: usize, wrong_ns: i64) {
    WRONG.with(|by| by[clock].set(wrong_ns));
}

thread_local! {
    /// Servers on which time is fast.
    static FAST: [Cell<bool>; CLOCKS] = const { [const { Cell::new(false) }; CLOCKS] };
}

/// How fast that is: from 2.5 to 7.5 %, as a tick of the simulation takes some of what it gains.
/// Leases bear ten.
const GAIN_INTERVAL: Duration = Duration::from_millis(400);
const GAIN: Duration = Duration::from_millis(30);

/// From now on time passes faster on a server, also the monotonic one, or as elsewhere.
pub fn set_fast(clock: usize, fast: bool) {
    FAST.with(|all| all[clock].set(fast));
}

async fn gain(clock: usize) {
    loop {
        tokio::time::sleep(GAIN_INTERVAL).await;
        if FAST.with(|all| all[clock].get()) {
            tokio::time::advance(GAIN).await;
        }
    }
}

/// The wall clock of a metadata server.
struct ServerClock(fn() -> i64);

impl Clock for ServerClock {
    fn now_ns(&self) -> i64 {
        self.0()
    }
}

/// One metadata server with one of the clocks, until it is crashed.
pub async fn serve(config: Config, clock: usize, seed: u64) -> turmoil::Result {
    let (_stop, stopped) = watch::channel(false);
    let wall = Arc::new(ServerClock([wall::<0>, wall::<1>, wall::<2>][clock]));
    let env = Env { clock: wall, seed: seed ^ config.id.0 << 48, threads: false };
    tokio::select! {
        biased;
        ended = run_in(config, sim::transport(), env, stopped) => Ok(ended?),
        () = gain(clock) => Ok(()),
    }
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
