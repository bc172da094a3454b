//! The simulated cluster under fixed seeds and a fresh one; a failure names its seed.

use anyhow::{Result, ensure};
use std::process::Command;

/// What a seed does, and that it ends well.
fn run(seed: u64) -> Result<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_sim")).arg(seed.to_string()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "seed {seed}: {said}");
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn fixed_seeds_and_a_fresh_one() -> Result<()> {
    for seed in [1, 2, 3, rand::random()] {
        let summary = run(seed)?;
        println!("{summary}");
        let before = |word: &str| {
            let (before, _) = summary.split_once(word)?;
            before.rsplit([' ', ',']).next()?.parse::<u64>().ok()
        };
        let answered = before(" calls answered").unwrap_or(0);
        ensure!(answered >= 100, "seed {seed} did little: {summary}");
        ensure!(before(" faults: ").unwrap_or(0) > 0, "seed {seed} met no faults: {summary}");
    }
    Ok(())
}

/// Those that hardly any seed misses; `make planted` looks for all.
#[test]
fn planted_bugs_are_found() -> Result<()> {
    let easy = "EmptyVoterVotes,DoubleGrant,LockTwice,TruncateKeepsData,RenameLosesInode";
    let output = Command::new(env!("CARGO_BIN_EXE_sim"))
        .args(["--planted", easy, "--minutes", "2", "--jobs", "2"])
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    println!("{said}");
    Ok(())
}

/// What was called and answered, and when to the nanosecond.
#[test]
fn a_seed_decides_all() -> Result<()> {
    let first = run(4)?;
    ensure!(run(4)? == first, "{first}");
    // And it is the trace of this seed, not of any.
    let trace = |summary: &str| {
        let (_, trace) = summary.split_once("trace ")?;
        trace.split(',').next().map(str::to_owned)
    };
    let (trace_of_it, of_another) = (trace(&first), trace(&run(5)?));
    ensure!(trace_of_it.is_some() && of_another.is_some() && trace_of_it != of_another, "{first}");
    Ok(())
}
