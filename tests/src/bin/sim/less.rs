//! A failing seed with fewer faults and fewer calls, which fails still: what is left is what to
//! look at.

use super::seeds::{Ended, Seeds, TOO_LATE};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use weft_tests::sim::{CALLS_PER_CLIENT, CLIENTS, Less};

/// No fault strikes.
const NONE: &str = "none";
/// No run has more faults.
const MOST_FAULTS: usize = 128;

/// Options of this program that leave the same out.
pub fn arguments(less: &Less) -> Vec<String> {
    let list = |numbers: Vec<String>| numbers.join(",");
    let mut arguments = Vec::new();
    if let Some(faults) = &less.faults {
        let faults = list(faults.iter().map(usize::to_string).collect());
        arguments.extend(["--faults".into(), if faults.is_empty() { NONE.into() } else { faults }]);
    }
    if less.calls.iter().any(Option::is_some) {
        let calls = less.calls.iter().map(|c| c.unwrap_or(CALLS_PER_CLIENT).to_string());
        arguments.extend(["--calls".into(), list(calls.collect())]);
    }
    arguments
}

/// Some of the faults, as [`arguments`] has them.
pub fn faults(list: &str) -> Result<Faults> {
    match list {
        NONE => Ok(Faults::default()),
        list => list.split(',').map(|fault| Ok(fault.parse()?)).collect::<Result<_>>().map(Faults),
    }
}

#[derive(Clone, Default)]
pub struct Faults(pub BTreeSet<usize>);

/// What options leave out.
pub fn asked(faults: Option<Faults>, calls: Vec<u64>) -> Result<Less> {
    let mut less = Less { faults: faults.map(|faults| faults.0), ..Less::default() };
    ensure!(calls.len() <= CLIENTS.len(), "--calls: there are {} clients", CLIENTS.len());
    for (of, calls) in less.calls.iter_mut().zip(calls) {
        *of = Some(calls);
    }
    Ok(less)
}

/// Leaves out of a failing seed what it fails without, faults first (Zeller and Hildebrandt's delta
/// debugging, of which only the steps to fewer are taken), and tells what is left.
pub fn shrink(seeds: &Seeds) -> Result<()> {
    let mut shrinking = Shrinking { seeds: seeds.clone(), why: String::new(), runs: 0 };
    let mut less = seeds.less.clone();
    ensure!(shrinking.fails(&less)?, "seed {} does not fail", seeds.first);
    let mut faults = less.faults.take().unwrap_or_else(|| (0..MOST_FAULTS).collect());
    let mut size = MOST_FAULTS;
    while size > 0 {
        let mut first = 0;
        while first < faults.len() {
            let some: BTreeSet<_> = faults.iter().skip(first).take(size).copied().collect();
            less.faults = Some(&faults - &some);
            match (shrinking.fails(&less)?, &less.faults) {
                (true, Some(fewer)) => faults.clone_from(fewer),
                _ => first += size,
            }
        }
        size /= 2;
    }
    less.faults = Some(faults);
    for client in 0..CLIENTS.len() {
        let (mut too_few, mut enough) = (None, less.calls[client].unwrap_or(CALLS_PER_CLIENT));
        loop {
            let calls = too_few.map_or(0, |few: u64| few + (enough - few) / 2);
            if calls >= enough || too_few == Some(calls) {
                break;
            }
            let mut fewer = less.clone();
            fewer.calls[client] = Some(calls);
            match shrinking.fails(&fewer)? {
                true => (less, enough) = (fewer, calls),
                false => too_few = Some(calls),
            }
        }
    }
    // With what it says then.
    ensure!(shrinking.fails(&less)?, "seed {} does not fail each time", seeds.first);
    let mut arguments = arguments(&less);
    arguments.extend(seeds.planted.into_iter().flat_map(|bug| {
        let name = format!("{bug:?}");
        ["--planted".into(), name]
    }));
    let (arguments, why) = (arguments.join(" "), shrinking.why);
    println!(
        "seed {} fails still, after {} runs, with {arguments}: {why}",
        seeds.first, shrinking.runs
    );
    Ok(())
}

fn is_late(why: &str) -> bool {
    why.starts_with(TOO_LATE)
}

struct Shrinking {
    seeds: Seeds,
    /// What the last run that failed said.
    why: String,
    runs: u64,
}

impl Shrinking {
    fn fails(&mut self, less: &Less) -> Result<bool> {
        self.runs += 1;
        let alone = Seeds { count: Some(1), limit: None, less: less.clone(), ..self.seeds.clone() };
        let mut ended = None;
        alone.run(|_, how| ended = Some(how))?;
        match ended.context("a seed that was not run")? {
            Ended::Well(_) => Ok(false),
            // What takes too long is another matter, unless that is it from the first on.
            Ended::Wrong(why) if self.runs > 1 && is_late(&why) != is_late(&self.why) => Ok(false),
            Ended::Wrong(why) => {
                self.why = why;
                Ok(true)
            }
        }
    }
}
