//! The simulated cluster under fixed seeds and a fresh one; a failure names its seed.

use anyhow::Result;
use weft_tests::sim::run;

#[test]
fn fixed_seeds_and_a_fresh_one() -> Result<()> {
    for seed in [1, 2, 3, rand::random()] {
        println!("seed {seed}: {:?}", run(seed)?);
    }
    Ok(())
}
