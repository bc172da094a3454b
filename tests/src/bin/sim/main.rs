//! Runs the simulation: one seed, many, or until a planted bug is found. Each seed has a process of
//! its own, in which the seed decides all that is random: the order of a `HashMap`, and in which
//! tokio wakes those that wait, too.
//!
//! With `WEFT_LOG` set to a filter (`info,turmoil=trace`), standard error says what happens.

#![allow(clippy::disallowed_methods, reason = "how long seeds take is a matter of real time")]

mod disk;
mod less;
mod planted;
mod seeds;

use anyhow::{Result, anyhow, ensure};
use clap::Parser;
use nix::sys::signal::Signal;
use rand::{RngCore, SeedableRng, rngs::SmallRng};
use seeds::{Ended, Seeds};
use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;
use weft_proto::planted::{Bug, plant};
use weft_tests::sim::{Less, Summary, run};

/// Simulates whole clusters under faults
#[derive(Parser)]
struct Args {
    /// The first seed; a random one if none is given
    seed: Option<u64>,
    /// So many seeds from the first on
    #[arg(long, value_name = "N", conflicts_with = "minutes")]
    count: Option<u64>,
    /// As many as there is time for
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// So many at the same time; as many as there are cores if not given
    #[arg(long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
    /// With a bug planted on purpose, until it is found; `all`, or several with commas between
    #[arg(long, value_name = "BUG", value_parser = planted::wanted)]
    planted: Option<planted::Wanted>,
    /// Leaves out of the seed, which fails, what it fails without
    #[arg(long, requires = "seed", conflicts_with_all = ["count", "minutes"])]
    shrink: bool,
    /// Only these faults of the seed strike, by their numbers from 0 on, or `none`
    #[arg(long, requires = "seed", value_name = "FAULTS", value_parser = less::faults)]
    faults: Option<less::Faults>,
    /// How many calls each client makes
    #[arg(long, requires = "seed", value_name = "CALLS", value_delimiter = ',')]
    calls: Vec<u64>,
    /// In this very process, in an empty folder
    #[arg(long, hide = true, requires = "seed", value_name = "FOLDER")]
    one: Option<PathBuf>,
}

/// What the process draws from instead of the kernel.
static SEED: OnceLock<u64> = OnceLock::new();

thread_local! {
    /// How often this thread has drawn: what others draw meanwhile does not matter.
    static DRAWN: Cell<u64> = const { Cell::new(0) };
}

/// The kernel's randomness, as the standard library and others ask for it.
#[unsafe(no_mangle)]
extern "C" fn getrandom(buffer: *mut c_void, len: usize, flags: c_uint) -> isize {
    let Some(seed) = SEED.get() else {
        // SAFETY: the caller's buffer, for what it is.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, len, flags) } as isize;
    };
    let drawn = DRAWN.replace(DRAWN.get() + 1);
    // SAFETY: the caller gives `len` bytes that may be written.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), len) };
    SmallRng::seed_from_u64(seed.wrapping_add(drawn.rotate_left(32))).fill_bytes(bytes);
    len as isize
}

fn main() -> Result<()> {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(rand::random);
    let cores = std::thread::available_parallelism()?;
    let limit = args.minutes.map(|minutes| Duration::from_secs(60 * minutes));
    let mut seeds = Seeds {
        first: seed,
        count: args.count.or(limit.is_none().then_some(1)),
        limit,
        jobs: args.jobs.unwrap_or(cores),
        planted: None,
        less: less::asked(args.faults, args.calls)?,
        until_failure: false,
    };
    match (args.one, args.planted) {
        (Some(folder), None) => alone(seed, &folder, None, &seeds.less),
        (Some(folder), Some(wanted)) => alone(seed, &folder, Some(wanted.one()?), &seeds.less),
        (None, wanted) if args.shrink => {
            seeds.planted = wanted.map(|wanted| wanted.one()).transpose()?;
            less::shrink(&seeds)
        }
        (None, Some(wanted)) => {
            (seeds.count, seeds.until_failure) = (args.count, true);
            planted::find(&wanted, seeds)
        }
        (None, None) => run_all(&seeds),
    }
}

/// Runs seeds, and tells of each; those that fail are told at the end once more.
fn run_all(seeds: &Seeds) -> Result<()> {
    let (mut failed, mut did) = (Vec::new(), Summary::default());
    let all = seeds.run(|seed, ended| match ended {
        Ended::Well(summary) => {
            println!("seed {seed}: {summary}");
            did.answered += summary.answered;
            did.unknown += summary.unknown;
            did.simulated_ms += summary.simulated_ms;
            did.faults.extend(summary.faults);
        }
        Ended::Wrong(why) => {
            println!("seed {seed} fails: {why}");
            failed.push(seed);
        }
    })?;
    eprintln!(
        "{} seeds in {:.0} s: {:.2} a second; {} h simulated, {} faults, {} calls answered and \
         checked, {} not answered",
        all.seeds,
        all.took,
        all.rate(),
        did.simulated_ms / 3_600_000,
        did.faults.len(),
        did.answered,
        did.unknown,
    );
    ensure!(failed.is_empty(), "{} seeds failed: {failed:?}", failed.len());
    Ok(())
}

/// Runs a seed, which decides all from now on.
fn alone(seed: u64, folder: &Path, bug: Option<Bug>, less: &Less) -> Result<()> {
    // Whoever started it keeps its time.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // Before anything is drawn.
    SEED.get_or_init(|| seed);
    if let Some(bug) = bug {
        plant(bug).map_err(|why| anyhow!(why))?;
    }
    if let Ok(filter) = std::env::var("WEFT_LOG") {
        let log = tracing_subscriber::fmt().without_time().with_ansi(false);
        log.with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    disk::watch(folder)?;
    // On a thread that has drawn nothing, whether there is a log or not.
    let (folder, less) = (folder.to_owned(), less.clone());
    let ran = std::thread::spawn(move || run(seed, &less, &folder, &disk::Here)).join();
    let summary = ran.map_err(|_| anyhow!("seed {seed}: a panic"))??;
    println!("{}", serde_json::to_string(&summary)?);
    Ok(())
}
