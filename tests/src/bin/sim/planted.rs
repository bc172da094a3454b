//! Looks for bugs that were planted on purpose, one at a time.

use super::seeds::{Ended, Seeds};
use anyhow::{Context, Result, anyhow, ensure};
use std::io::Write;
use std::time::Duration;
use weft_proto::planted::Bug;

/// How long one is looked for.
const LIMIT: Duration = Duration::from_secs(300);

/// What is lost by these is made anew before anybody can notice here, so that tests of the rule
/// itself find them.
const ELSEWHERE: &[(Bug, &str)] = &[(
    Bug::SeatGivenAwayTakes,
    "metadata/tests/state: a_seat_is_given_away_in_steps_and_the_group_takes_nothing_new",
)];

/// Which are looked for.
#[derive(Clone)]
pub struct Wanted(Vec<Bug>);

impl Wanted {
    /// The one that there is.
    pub fn one(&self) -> Result<Bug> {
        let one = <[Bug; 1]>::try_from(&self.0[..]).ok().map(|[bug]| bug);
        one.context("one bug at a time")
    }
}

pub fn wanted(name: &str) -> Result<Wanted, String> {
    match name {
        "all" => Ok(Wanted(Bug::ALL.to_vec())),
        names => names.split(',').map(str::parse).collect::<Result<_, _>>().map(Wanted),
    }
}

/// Runs seeds with each bug until one fails. An error names those that were not found.
pub fn find(wanted: &Wanted, mut seeds: Seeds) -> Result<()> {
    seeds.limit = seeds.limit.or(Some(LIMIT));
    let mut missed = Vec::new();
    for &bug in &wanted.0 {
        if let Some((_, test)) = ELSEWHERE.iter().find(|(other, _)| *other == bug) {
            println!("{bug:?}: found by another test ({test}): {}", bug.what());
            continue;
        }
        seeds.planted = Some(bug);
        let mut found = None;
        let all = seeds.run(|seed, ended| {
            if let Ended::Wrong(why) = ended {
                found.get_or_insert((seed, why));
            }
        })?;
        let took = format!("{} seeds, {:.0} s", all.seeds, all.took);
        match found {
            Some((seed, why)) => {
                ensure_sound(seed, &seeds)?;
                println!("{bug:?}: found ({took}) by seed {seed}: {}", short(&why))
            }
            None => {
                println!("{bug:?}: NOT FOUND ({took}): {}", bug.what());
                missed.push(bug);
            }
        }
        std::io::stdout().flush()?;
    }
    ensure!(missed.is_empty(), "{} of {} were not found: {missed:?}", missed.len(), wanted.0.len());
    Ok(())
}

/// A seed that fails without a bug shows nothing but that.
fn ensure_sound(seed: u64, seeds: &Seeds) -> Result<()> {
    let mut well = Ok(());
    let alone = Seeds { first: seed, count: Some(1), limit: None, planted: None, ..seeds.clone() };
    alone.run(|_, ended| {
        if let Ended::Wrong(why) = ended {
            well = Err(anyhow!("seed {seed} fails without a bug: {why}"));
        }
    })?;
    well
}

/// What was wrong, without the faults before and the calls behind it.
fn short(why: &str) -> String {
    let why = why.split("Stack backtrace").next().unwrap_or(why);
    let behind = |mark| why.rsplit_once(mark).map(|(_, what)| what);
    let what = behind("Caused by:").or_else(|| behind("]: ")).unwrap_or(why);
    let words: Vec<_> = what.split_whitespace().take(40).collect();
    words.join(" ")
}
