//! Runs workloads under faults, again and again under fresh seeds, until the time is over.

// Real processes live in real time.
#![allow(clippy::disallowed_methods)]

use anyhow::{Context, Result, ensure};
use clap::Parser;
use rand::seq::SliceRandom;
use rand::{SeedableRng, rngs::SmallRng};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weft_jepsen::nemesis::Nemesis;
use weft_jepsen::run::{Plan, Summary, run};
use weft_jepsen::workload::{self, Workload};

/// Works on a real cluster through real mounts while faults strike it, and judges what was answered
#[derive(Parser)]
struct Args {
    /// The first seed; each run takes the next
    #[arg(long)]
    seed: Option<u64>,
    /// How long new faults are brought about, over all runs
    #[arg(long, default_value_t = 5)]
    minutes: u64,
    /// How long in one run, before all is looked at
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Mounts, each of which does all workloads
    #[arg(long, default_value_t = 3)]
    clients: u8,
    /// Names of workloads: all, unless they are given
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<String>,
    /// Kinds of faults: all, together and one after the other, unless they are given
    #[arg(long, value_delimiter = ',')]
    nemeses: Vec<String>,
    /// A bug that all daemons and mounts have (docs/correctness.md)
    #[arg(long)]
    planted: Option<String>,
    /// A folder for the histories, as EDN
    #[arg(long)]
    history: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let named = |name: &String| {
        let found = workload::ALL.iter().find(|workload| workload.name == name);
        found.with_context(|| format!("no workload {name}; there are {:?}", names()))
    };
    let workloads: Vec<&Workload> = match args.workloads.is_empty() {
        true => workload::ALL.iter().collect(),
        false => args.workloads.iter().map(named).collect::<Result<_>>()?,
    };
    let named = |name: &String| {
        let found = Nemesis::ALL.iter().find(|n| format!("{n:?}").eq_ignore_ascii_case(name));
        found.copied().with_context(|| format!("no fault {name}; there are {:?}", Nemesis::ALL))
    };
    let given = args.nemeses.iter().map(named).collect::<Result<Vec<_>>>()?;
    let mut seed = args.seed.unwrap_or_else(rand::random);
    let rounds: Vec<Vec<Nemesis>> = match given.is_empty() {
        true => {
            let mut alone: Vec<_> = Nemesis::ALL.iter().map(|nemesis| vec![*nemesis]).collect();
            // Whoever has little time does not always see the same ones.
            alone.shuffle(&mut SmallRng::seed_from_u64(seed));
            [vec![Nemesis::ALL.to_vec()], alone].concat()
        }
        false => vec![given],
    };
    ensure!(args.clients > 0, "no clients");
    let begun = Instant::now();
    let mut all = Summary::default();
    for nemeses in rounds.iter().cycle() {
        let plan = Plan {
            seed,
            clients: args.clients,
            workloads: workloads.clone(),
            nemeses: nemeses.clone(),
            time: Duration::from_secs(args.seconds),
            faults: 1,
            planted: args.planted.clone(),
            history: args.history.clone(),
        };
        eprintln!("seed {seed}: {nemeses:?}");
        let summary = run(&plan)?;
        eprintln!("seed {seed}: {summary}");
        all.add(summary);
        seed = seed.wrapping_add(1);
        if begun.elapsed() > Duration::from_secs(60 * args.minutes) {
            break;
        }
    }
    println!("{:.0} s: {all}", begun.elapsed().as_secs_f64());
    Ok(())
}

fn names() -> Vec<&'static str> {
    workload::ALL.iter().map(|workload| workload.name).collect()
}
