//! The simulated cluster under fixed seeds and a fresh one; a failure names its seed.

use anyhow::{Context, Result, ensure};
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
        .args(["--planted", easy, "--minutes", "5", "--jobs", "2"])
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

/// Nothing needs to go wrong, nor all to be called, to find this bug. Most seeds meet it.
#[test]
fn a_failing_seed_is_made_short() -> Result<()> {
    let sim = |seed: &str, arguments: &[&str]| -> Result<String> {
        let output = Command::new(env!("CARGO_BIN_EXE_sim"))
            .args([seed, "--planted", "LockTwice", "--jobs", "1"])
            .args(arguments)
            .output()?;
        Ok(String::from_utf8(output.stdout)?)
    };
    let mut failing = None;
    for seed in ["1", "2", "3", "4", "5", "6", "7", "8", "9"] {
        let said = sim(seed, &["--shrink"])?;
        if said.contains(" fails still, ") {
            failing = Some((seed, said));
            break;
        }
    }
    let (seed, said) = failing.context("no seed fails")?;
    let left = said.split_once(" --faults none --calls ").map(|(_, calls)| calls);
    let calls = left.and_then(|left| left.split_once(" --planted LockTwice: "));
    let calls = calls.context(said.clone())?.0;
    let all: u64 = calls.split(',').map(str::parse::<u64>).sum::<Result<_, _>>()?;
    // Two clients of three are enough, with 200 calls each at most.
    ensure!((2..=400).contains(&all), "{said}");
    // And that is how it fails again.
    let again = sim(seed, &["--faults", "none", "--calls", calls, "--minutes", "1"])?;
    ensure!(again.starts_with("LockTwice: found (1 seeds"), "{again}");
    Ok(())
}
