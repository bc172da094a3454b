//! Hours of load and faults on one cluster, with an account of what each process takes: what grows
//! for ever ends in a night call.
//!
//! It goes in rounds. In each, all workloads work in a folder of their own under faults that no
//! process dies of, beside a [`churn`] of files that come and go; what was answered is judged, all
//! is removed, and when garbage is collected and a check finds nothing, it is looked at what each
//! process has then ([`account`]).

mod account;
mod churn;

use crate::check::check;
use crate::cluster::{Cluster, Config, Daemon};
use crate::history::{Recorder, write_edn};
use crate::nemesis::Nemesis;
use crate::run::{Faults, Plan, notable, round, with_workers};
use crate::workload;
use account::{Account, Sample};
use anyhow::{Context, Result, bail, ensure};
use churn::Churned;
use std::env;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long and how hard it is.
#[derive(Clone, Debug)]
pub struct Soak {
    pub seed: u64,
    pub clients: u8,
    /// Until then new rounds begin.
    pub time: Duration,
    /// How long faults strike in a round.
    pub round: Duration,
}

/// What metadata servers cache: so little that it is full when it is begun to be judged what grows.
const METADATA_CACHE: u64 = 16 << 20;

/// Faults that everybody outlives.
const NEMESES: [Nemesis; 5] =
    [Nemesis::Pause, Nemesis::Cut, Nemesis::CutOneWay, Nemesis::Lossy, Nemesis::Drain];

/// Does all rounds; tells what each has done. Fails if something is wrong, or grows.
pub fn soak(soak: &Soak) -> Result<String> {
    let metadata_cache = Some(METADATA_CACHE);
    let config = Config { clients: soak.clients, metadata_cache, ..Config::default() };
    let mut cluster = Cluster::start(&config)?;
    rounds(soak, &mut cluster).with_context(|| {
        // It may take hours to see the like again.
        let (logs, kept) =
            (cluster.logs(), env::temp_dir().join(format!("weft-soak-{}.log", soak.seed)));
        let kept = match fs::write(&kept, &logs) {
            Ok(()) => kept.display().to_string(),
            Err(error) => format!("{} is not written: {error}", kept.display()),
        };
        format!("seed {}; logs in {kept}, the last of them:\n{}", soak.seed, notable(&logs))
    })
}

fn rounds(soak: &Soak, cluster: &mut Cluster) -> Result<String> {
    let begun = Instant::now();
    let mut account = Account::default();
    let (mut all, mut churned) = (Faults::new(), Churned::default());
    for number in 0.. {
        let seed = soak.seed.wrapping_add(number);
        let (faults, files) = one_round(soak, seed, cluster)
            .with_context(|| format!("round {number}; until then:\n{}", account.report()))?;
        faults.into_iter().for_each(|(kind, n)| *all.entry(kind).or_default() += n);
        churned.add(files);
        cluster.check()?;
        ensure!(!cluster.logs().contains("panicked at"), "a process panicked");
        let hours = begun.elapsed().as_secs_f64() / 3600.0;
        for (name, sample) in samples(cluster)? {
            account.note(&name, hours, sample);
        }
        eprintln!("{:7.1} s, round {number}: {churned}; {}", hours * 3600.0, account.newest());
        if begun.elapsed() > soak.time {
            break;
        }
    }
    let report = account.report();
    let told = format!("{report}\nfaults {all:?}; {churned}");
    ensure!(churned.is_plenty(), "{told}\nfiles that come and go have mostly met errors");
    ensure!(account.is_judged(), "{told}\ntoo few rounds to tell what grows: take more time");
    let grown = account.grown();
    ensure!(grown.is_empty(), "{told}\nwhat grows: {grown:#?}");
    Ok(told)
}

/// A round in a folder of its own, which is gone after it.
fn one_round(soak: &Soak, seed: u64, cluster: &mut Cluster) -> Result<(Faults, Churned)> {
    let plan = Plan {
        seed,
        clients: soak.clients,
        workloads: workload::ALL.iter().collect(),
        nemeses: NEMESES.to_vec(),
        time: soak.round,
        faults: 1,
        planted: None,
        history: None,
    };
    let folders: Vec<PathBuf> =
        cluster.mounts.iter().map(|mount| mount.join(format!("round-{seed}"))).collect();
    fs::create_dir(&folders[0])?;
    let recorder = Recorder::default();
    let churns = churn::start(&folders, seed)?;
    let worked = with_workers(&plan, &folders, &recorder, |workers| {
        round(&plan, cluster, &recorder, workers)
    });
    let churned = churns.end();
    let (events, mut problems) = recorder.finish();
    // What is wrong first: it may be why something else did not go on.
    let churned = churned?;
    problems.extend(check(&events));
    if !problems.is_empty() {
        let broke = worked.err().map(|error| format!("; {error:#}")).unwrap_or_default();
        // It may take hours to see the like again.
        let kept = env::temp_dir().join(format!("weft-soak-{seed}.edn"));
        write_edn(&events, File::create(&kept)?)?;
        let kept = kept.display();
        bail!("{:#?}{broke}; history in {kept}", &problems[..problems.len().min(10)]);
    }
    let faults = worked?;
    fs::remove_dir_all(&folders[0]).context("remove what a round has made")?;
    Ok((faults, churned))
}

/// What each process has now.
fn samples(cluster: &Cluster) -> Result<Vec<(String, Sample)>> {
    let all = cluster.metadata.iter().chain(&cluster.storage).chain(&cluster.clients);
    let sample = |daemon: &Daemon| {
        let pid = daemon.pid().with_context(|| format!("{} does not run", daemon.name))?;
        let sample = Sample::of(pid, &cluster.dir().join(&daemon.name));
        Ok((daemon.name.clone(), sample.with_context(|| daemon.name.clone())?))
    };
    all.map(sample).collect()
}
