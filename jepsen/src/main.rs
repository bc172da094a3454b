//! `weft-jepsen [SEED [FAULTS [HISTORY.edn]]]`: a longer run of the append workload.

use anyhow::{Context, Result};
use weft_jepsen::workload::{Plan, run};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let seed = match args.next() {
        Some(seed) => seed.parse().context("SEED is a number")?,
        None => rand::random(),
    };
    let faults = args.next().map_or(Ok(50), |n| n.parse()).context("FAULTS is a number")?;
    run(&Plan { seed, clients: 3, faults, calls: 50, history: args.next().map(Into::into) })
}
