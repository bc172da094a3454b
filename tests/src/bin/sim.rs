//! `sim [SEED [COUNT]]`: runs the simulation for COUNT seeds from SEED on (1, from a random one).

use anyhow::{Context, Result};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u64>().context("a number"));
    let seed = args.next().transpose()?.unwrap_or_else(rand::random);
    let count = args.next().transpose()?.unwrap_or(1);
    for seed in (0..count).map(|i| seed.wrapping_add(i)) {
        println!("seed {seed}: {:?}", weft_tests::sim::run(seed)?);
    }
    Ok(())
}
