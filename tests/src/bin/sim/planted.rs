//! Looks for bugs that were planted on purpose, one at a time.

use super::seeds::{Ended, Seeds};
use anyhow::{Result, ensure};
use std::io::Write;
use std::time::Duration;
use weft_proto::planted::Bug;

/// How long one is looked for.
const LIMIT: Duration = Duration::from_secs(300);

/// Which are looked for.
#[derive(Clone)]
pub struct Wanted(Vec<Bug>);

impl Wanted {
    /// The one, if it is one.
    pub fn one(&self) -> Option<Bug> {
        <[Bug; 1]>::try_from(&self.0[..]).ok().map(|[bug]| bug)
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

/// What was wrong, without the faults before and the calls behind it.
fn short(why: &str) -> String {
    let what = why.rsplit_once("]: ").map_or(why, |(_, what)| what);
    let words: Vec<_> = what.split_whitespace().take(40).collect();
    words.join(" ")
}
