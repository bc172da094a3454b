//! `sim [SEED [COUNT]]`: runs the simulation for COUNT seeds from SEED on (1, from a random one).
//! `sim --minutes MINUTES [SEED]`: as many as there is time for; a seed that fails is told, and the
//! next one is run. Ends with the number of seeds, and how many a second.

use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};
use weft_tests::sim::run;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).peekable();
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
        println!("seed {seed}: {:?}", run(seed)?);
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "how long seeds take is a matter of real time")]
fn run_for(time: Duration, first: u64) -> Result<()> {
    let (start, mut seeds, mut simulated, mut failed) = (Instant::now(), 0, 0, Vec::new());
    while start.elapsed() < time {
        let seed = first.wrapping_add(seeds);
        match run(seed) {
            Ok(summary) => simulated += summary.simulated_ms,
            Err(error) => {
                println!("{error:#}");
                failed.push(seed);
            }
        }
        seeds += 1;
        if seeds.is_multiple_of(10) {
            println!("{seeds} seeds from {first} on, {} failed", failed.len());
        }
    }
    let took = start.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds from {first} on in {took:.0} s: {:.2} a second, {:.0} simulated seconds \
         each",
        seeds as f64 / took,
        simulated as f64 / 1000.0 / seeds.max(1) as f64
    );
    if !failed.is_empty() {
        bail!("{} seeds failed: {failed:?}", failed.len());
    }
    Ok(())
}
