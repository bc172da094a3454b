//! `sim [SEED [COUNT]]`: runs the simulation for COUNT seeds from SEED on (1, from a random one).
//! `sim --minutes MINUTES [SEED]`: as many as there is time for; a seed that fails is told, and the
//! next one is run. Ends with the number of seeds, and how many a second. With `WEFT_LOG` set to a
//! filter (`info,turmoil=trace`), standard error says what happens.
//!
//! Each seed has a process of its own (`sim --one SEED`), in which the seed decides all that is
//! random: the order of a `HashMap`, and in which tokio wakes those that wait, too.

use anyhow::{Context, Result, bail, ensure};
use rand::{RngCore, SeedableRng, rngs::SmallRng};
use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use weft_tests::sim::run;

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
    let mut args = std::env::args().skip(1).peekable();
    if args.next_if(|arg| arg == "--one").is_some() {
        let seed = args.next().context("--one SEED")?.parse()?;
        return alone(seed);
    }
    let for_time = args.next_if(|arg| arg == "--minutes").is_some();
    let mut args = args.map(|arg| arg.parse::<u64>().with_context(|| format!("{arg}: a number")));
    if for_time {
        let minutes = args.next().transpose()?.context("--minutes MINUTES")?;
        let seed = args.next().transpose()?.unwrap_or_else(rand::random);
        return run_for(Duration::from_secs(60 * minutes), seed);
    }
    let seed = args.next().transpose()?.unwrap_or_else(rand::random);
    let count = args.next().transpose()?.unwrap_or(1);
    for seed in (0..count).map(|i| seed.wrapping_add(i)) {
        print!("{}", run_alone(seed)?);
    }
    Ok(())
}

/// Runs a seed, which decides all from now on.
fn alone(seed: u64) -> Result<()> {
    // Before anything is drawn.
    SEED.get_or_init(|| seed);
    if let Ok(filter) = std::env::var("WEFT_LOG") {
        let log = tracing_subscriber::fmt().without_time().with_ansi(false);
        log.with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    // On a thread that has drawn nothing, whether there is a log or not.
    let summary = std::thread::spawn(move || run(seed)).join().expect("no panic")?;
    println!("seed {seed}: {summary:?}");
    Ok(())
}

/// Runs a seed in a process of its own; answers what that says.
fn run_alone(seed: u64) -> Result<String> {
    let mut alone = Command::new(std::env::current_exe()?);
    alone.args(["--one", &seed.to_string()]).stderr(Stdio::inherit());
    let output = alone.output()?;
    ensure!(output.status.success(), "seed {seed} fails: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

#[expect(clippy::disallowed_methods, reason = "how long seeds take is a matter of real time")]
fn run_for(time: Duration, first: u64) -> Result<()> {
    let (start, mut seeds, mut failed) = (Instant::now(), 0, Vec::new());
    while start.elapsed() < time {
        let seed = first.wrapping_add(seeds);
        if let Err(error) = run_alone(seed) {
            println!("{error:#}");
            failed.push(seed);
        }
        seeds += 1;
        if seeds.is_multiple_of(10) {
            println!("{seeds} seeds from {first} on, {} failed", failed.len());
        }
    }
    let took = start.elapsed().as_secs_f64();
    println!("{seeds} seeds from {first} on in {took:.0} s: {:.2} a second", seeds as f64 / took);
    if !failed.is_empty() {
        bail!("{} seeds failed: {failed:?}", failed.len());
    }
    Ok(())
}
