//! A simulated cluster: the real metadata group and the real client library in one process, on a
//! simulated network, in simulated time, under one seed, with faults.
//!
//! Several clients write and read registers, append to a file, make names, and change folders in
//! turns ([`turns`]), while servers and daemons crash and restart, lose their power or their disks,
//! err when they read, rot, hang, are full or away for longer than any deadline, links drop
//! everything, hosts are cut off, clients too, and those are killed and begin anew ([`faults`]). An
//! admin empties targets, gives them up, takes them back and weighs them, has another server lead,
//! and one take the place of another ([`admin`]). A caller gives up in the middle of a call now and
//! then, as a future that is dropped does. A register is an extended attribute; the mode of a file,
//! which is known under a lease; or the content of a file that stays open, small or in segments on
//! targets, which is buffered under a lease and synced now and then. Then, with all faults over:
//! - every register's history is linearizable (I6), where a write to content that was not synced
//!   before its client lost its session, or was told of a failure, may be lost, but does not come
//!   back over what others have written; what registers are at the end is read once more, and can
//!   be read (I2, I3);
//! - what was appended is there once if that was acknowledged, and at most once if not (I4);
//! - a name that was made once is never refused as existing (I4), and is there at the end if that
//!   was acknowledged;
//! - in the folders is what the one order of all turns says; no two have held a lock, and locks of
//!   the dead can be had;
//! - every chunk on a target belongs to somebody, and none is missing (I7), and the namespace is
//!   consistent with itself: `fsck` finds nothing.
//!
//! `make sim` runs many seeds and tells how many a second; `make planted` looks for bugs that are
//! planted on purpose (docs/correctness.md). The seed decides faults, delays, timeouts, what the
//! clients do and the order in which tasks wake; a failing seed runs again, call by call the same,
//! with `cargo run --release -p weft-tests --bin sim -- SEED`. So nothing here may look at the wall
//! clock, or wait for a thread without standing still.

mod admin;
mod calls;
mod clients;
mod clocks;
mod disks;
mod drive;
mod faults;
mod folders;
mod history;
mod hosts;
mod judge;
pub mod linear;
mod names;
mod power;
mod storage;
mod turns;
mod wrong_clocks;

use admin::admin;
use anyhow::{Context, Result, ensure};
pub use clients::CALLS_PER_CLIENT;
use clients::client;
use clocks::at_speed_of;
pub use disks::{Disks, Left};
use faults::{Script, World};
use history::Shared;
use hosts::{PORT, addresses, config, serve};
use judge::judge;
use linear::is_linearizable;
pub use names::CLIENTS;
use names::{DAEMONS, SERVERS};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::{Duration, SystemTime};
use storage::Host;
use tempfile::TempDir;

/// When a simulated cluster begins, after 1970.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);

/// Milliseconds from one look at the hosts to the next: long ones are quick to simulate, short ones
/// show more orders of what happens.
const TICKS: [u64; 3] = [5, 10, 20];

/// What a run did.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    pub answered: u64,
    pub unknown: u64,
    pub faults: Vec<String>,
    pub simulated_ms: u64,
    /// Of all that clients called and were answered, and when: two runs of one seed have the same.
    pub trace: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answered, unknown, faults, simulated_ms, trace } = self;
        let seconds = *simulated_ms as f64 / 1000.0;
        write!(f, "{answered} calls answered, {unknown} not, in {seconds:.1} s, ")?;
        write!(f, "trace {trace:016x}, {} faults: {}", faults.len(), faults.join("; "))
    }
}

/// A folder for a run, in memory where that is possible: syncs cost nothing there.
pub fn folder() -> Result<TempDir> {
    Ok(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?)
}

/// What a run leaves out of what its seed decides. All else that the seed draws stays the same,
/// but what comes of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Less {
    /// Only these faults strike, by their place among all, from 0 on; the others do nothing.
    /// `None`: all strike.
    pub faults: Option<BTreeSet<usize>>,
    /// Calls of each client, where they are fewer than usual.
    pub calls: [Option<u64>; CLIENTS.len()],
}

impl Less {
    fn strikes(&self, fault: usize) -> bool {
        self.faults.as_ref().is_none_or(|faults| faults.contains(&fault))
    }
}

/// Runs one seed in an empty folder; an error says what was wrong.
pub fn run(seed: u64, less: &Less, dir: &Path, disks: &'static dyn Disks) -> Result<Summary> {
    let history = Shared::default();
    let mut random = SmallRng::seed_from_u64(seed);
    weft_net::buggify::choose(random.random());
    let tick = Duration::from_millis(TICKS[random.random_range(0..TICKS.len())]);
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .epoch(SystemTime::UNIX_EPOCH + EPOCH)
        .enable_random_order()
        .tick_duration(tick)
        .simulation_duration(Duration::from_secs(3600))
        .min_message_latency(Duration::from_micros(100))
        .max_message_latency(Duration::from_millis(20))
        .tcp_capacity(4096)
        .build();
    for (clock, name) in SERVERS.into_iter().enumerate() {
        let config = config(clock as u64 + 1, name, dir);
        disks.watch(&config.data_dir);
        weft_metadata::bootstrap(&config)?;
        sim.host(name, move || serve(config.clone(), clock, seed, disks));
    }
    let servers = addresses();
    let storage: Vec<_> = DAEMONS
        .into_iter()
        .map(|name| Host::new(name, PORT, servers.clone(), dir, random.random()))
        .collect();
    for host in &storage {
        let host = host.clone();
        sim.host(host.name(), move || host.clone().serve());
    }
    for ((number, name), calls) in (1..).zip(CLIENTS).zip(less.calls) {
        let calls = calls.map_or(CALLS_PER_CLIENT, |calls| calls.min(CALLS_PER_CLIENT));
        let history = history.clone();
        let clock = SERVERS.len() + number as usize - 1;
        sim.host(name, move || at_speed_of(clock, client(number, seed, calls, history.clone())));
    }
    let of_admin = history.clone();
    sim.host("admin", move || admin(of_admin.clone()));
    sim.client("judge", judge(seed, history.clone(), storage.clone()));
    let mut world = World::new(storage, dir, disks, seed, random);
    let mut faults = Vec::new();
    let mut trace = DefaultHasher::new();
    let driven = drive((&mut sim, tick), &mut world, less, &history, &mut faults, &mut trace);
    let faults: Vec<String> = faults
        .into_iter()
        .enumerate()
        .map(|(number, what)| match less.strikes(number) {
            true => what,
            false => format!("left out: {what}"),
        })
        .collect();
    driven.with_context(|| {
        format!("seed {seed}: {} calls answered; {faults:#?}", history.borrow().answered)
    })?;
    let history = history.borrow();
    let told = format!("seed {seed}, with {faults:#?}");
    ensure!(history.broken.is_empty(), "{told}: {:#?}", history.broken);
    for (register, calls) in history.registers.iter().enumerate() {
        ensure!(is_linearizable(calls), "{told}: register {register}: {calls:#?}");
    }
    // Each call with its beginning and its end, in nanoseconds.
    format!("{:?}", history.registers).hash(&mut trace);
    (&history.made, &history.appended, &faults).hash(&mut trace);
    Ok(Summary {
        trace: trace.finish(),
        answered: history.answered,
        unknown: history.unknown,
        faults,
        simulated_ms: sim.elapsed().as_millis() as u64,
    })
}

/// Steps the simulation until all clients are done, with a fault now and then.
fn drive(
    (sim, tick): (&mut turmoil::Sim<'_>, Duration),
    world: &mut World,
    less: &Less,
    history: &Shared,
    faults: &mut Vec<String>,
    trace: &mut DefaultHasher,
) -> Result<()> {
    let mut seen = (0, 0);
    let mut script: Option<Script> = None;
    let mut next = Duration::from_secs(2);
    loop {
        clocks::begin_tick(sim.elapsed() + tick);
        if sim.step().map_err(|e| anyhow::anyhow!("{e}"))? {
            return Ok(());
        }
        let now = sim.elapsed();
        let ended = (history.borrow().answered, history.borrow().unknown);
        if ended != seen {
            seen = ended;
            (now, ended).hash(trace);
        }
        let all_done = history.borrow().is_over();
        if let Some(going) = &mut script {
            if all_done {
                going.hurry(now);
            }
            if going.next <= now && going.go_on(sim, world, history)? {
                script = None;
                next = now + world.pause();
            }
        } else if next <= now && !all_done {
            let (what, mut drawn) = world.draw(now);
            drawn.does_nothing = !less.strikes(faults.len());
            faults.push(what);
            script = Some(drawn);
        }
    }
}
