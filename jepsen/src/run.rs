//! One run: a cluster, clients that work on it, faults meanwhile, and the judgement of what they
//! recorded.

use crate::check::check;
use crate::cluster::{Cluster, Config};
use crate::history::{Call, Event, Kind, Recorder, write_edn};
use crate::nemesis::{Nemesis, draw};
use crate::workload::{Shared, Worker, Workload};
use anyhow::{Context, Result, bail, ensure};
use nix::sched::CloneFlags;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weft_tests::eventually;

/// Calls that each worker must be answered before a fault and after it.
const CALLS: u64 = 3;
/// How long that may take: a session that is over, and a lock of whoever held it, included.
const PATIENCE: Duration = Duration::from_secs(90);

/// How long and how hard a run is.
#[derive(Clone)]
pub struct Plan {
    pub seed: u64,
    pub clients: u8,
    pub workloads: Vec<&'static Workload>,
    /// Faults are drawn of these.
    pub nemeses: Vec<Nemesis>,
    /// Faults are brought about until then, and so many at least, one or two at a time.
    pub time: Duration,
    pub faults: u32,
    /// A bug that everybody has.
    pub planted: Option<String>,
    /// The folder where the history goes, if anywhere.
    pub history: Option<PathBuf>,
}

/// What happened in a run that found nothing wrong.
#[derive(Clone, Default, Debug)]
pub struct Summary {
    pub faults: BTreeMap<Nemesis, u32>,
    /// Calls that were answered and that were not, by workload.
    pub calls: BTreeMap<&'static str, [u64; 2]>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faults")?;
        for (kind, n) in &self.faults {
            write!(f, " {kind:?} {n}")?;
        }
        write!(f, "; calls answered (and not)")?;
        for (workload, [answered, unknown]) in &self.calls {
            write!(f, " {workload} {answered} ({unknown})")?;
        }
        Ok(())
    }
}

/// Runs the plan; fails if the history is wrong or the cluster does not come back clean.
pub fn run(plan: &Plan) -> Result<Summary> {
    let mut cluster = Cluster::start(&Config {
        clients: plan.clients,
        disks: plan.nemeses.iter().any(|nemesis| nemesis.needs_disks()),
        clocks: plan.nemeses.contains(&Nemesis::Clock),
        planted: plan.planted.clone(),
    })?;
    let run = work(plan, &mut cluster);
    let logs = cluster.logs();
    let told = || format!("seed {}; logs:\n{}", plan.seed, notable(&logs));
    let (events, faults) = run.with_context(told)?;
    if let Some(dir) = &plan.history {
        fs::create_dir_all(dir)?;
        write_edn(&events, File::create(dir.join(format!("{}.edn", plan.seed)))?)?;
    }
    let problems = check(&events);
    ensure!(
        problems.is_empty(),
        "{} problems, the first: {:#?}\n{}",
        problems.len(),
        &problems[..problems.len().min(10)],
        told()
    );
    ensure!(!logs.contains("panicked at"), "a process panicked; {}", told());
    cluster.check().with_context(told)?;
    Ok(summarize(plan, &events, faults))
}

fn work(plan: &Plan, cluster: &mut Cluster) -> Result<(Vec<Event>, BTreeMap<Nemesis, u32>)> {
    for workload in &plan.workloads {
        fs::create_dir(cluster.mounts[0].join(workload.name))?;
    }
    let (recorder, stop) = (Recorder::default(), AtomicBool::new(false));
    let shared: Vec<_> = plan.workloads.iter().map(|_| Shared::default()).collect();
    let mounts = cluster.mounts.clone();
    let threads = mounts.len() * shared.len();
    let answered: Vec<_> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    let alone = Barrier::new(threads + 1);
    let mut workers = Vec::new();
    for (client, mount) in (0u32..).zip(&mounts) {
        for (workload, shared) in plan.workloads.iter().zip(&shared) {
            let number = workers.len();
            workers.push(Worker {
                workload: **workload,
                client,
                clients: u32::from(plan.clients),
                process: number as u32,
                mount: mount.clone(),
                rng: SmallRng::seed_from_u64(plan.seed ^ (number as u64 + 1) << 32),
                shared,
                recorder: &recorder,
                answered: &answered[number],
                unsure: Default::default(),
                failed: false,
                log: Default::default(),
                pager: Default::default(),
            });
        }
    }
    let done = std::thread::scope(|s| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                let (stop, alone) = (&stop, &alone);
                s.spawn(move || {
                    // What brings faults about starts programs. Those would close copies of the
                    // files that are open here before they begin, and a close waits for a cluster
                    // that is cut off.
                    let own_files = nix::sched::unshare(CloneFlags::CLONE_FILES);
                    alone.wait();
                    own_files.expect("a thread can have its files to itself");
                    while !stop.load(Ordering::Relaxed) {
                        worker.step();
                    }
                    worker.close();
                    worker
                })
            })
            .collect();
        alone.wait();
        let done = faults(plan, cluster, &answered);
        stop.store(true, Ordering::Relaxed);
        if done.is_err() {
            // What they wait for may never come.
            cluster.kill_clients();
        }
        let mut workers: Vec<_> =
            threads.into_iter().map(|w| w.join().expect("workers do not panic")).collect();
        let faults = done?;
        // What waits in a mount is told, or given up, before all is looked at.
        mounts.iter().try_for_each(|mount| File::open(mount)?.sync_all())?;
        workers.iter_mut().try_for_each(Worker::last)?;
        anyhow::Ok(faults)
    });
    let faults = done?;
    Ok((recorder.finish(), faults))
}

/// Brings faults about, and undoes each before the next; all clients go on with everything before
/// and after.
fn faults(
    plan: &Plan,
    cluster: &mut Cluster,
    answered: &[AtomicU64],
) -> Result<BTreeMap<Nemesis, u32>> {
    let mut rng = SmallRng::seed_from_u64(plan.seed);
    let now = || answered.iter().map(|n| n.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let all_go_on = |when: &str| {
        let before = now();
        let slow = |now: &[u64]| {
            let pairs = before.iter().zip(now).enumerate();
            pairs.filter(|(_, (b, n))| **n < **b + CALLS).map(|(i, _)| i).collect::<Vec<_>>()
        };
        let waited = eventually(PATIENCE, "all go on", || slow(&now()).is_empty().then_some(()));
        waited.with_context(|| {
            let who = slow(&now()).into_iter().map(|i| {
                let workload = plan.workloads[i % plan.workloads.len()].name;
                format!("{workload} on client {}", i / plan.workloads.len())
            });
            format!("{when}: not answered: {}", who.collect::<Vec<_>>().join(", "))
        })
    };
    let (begun, mut done) = (Instant::now(), BTreeMap::new());
    all_go_on("before the first fault")?;
    let mut count = 0;
    while !plan.nemeses.is_empty() && (count < plan.faults || begun.elapsed() < plan.time) {
        let mut under_way = Vec::new();
        for _ in 0..rng.random_range(1..=2) {
            let Some(fault) = draw(&mut rng, &plan.nemeses, cluster, &under_way) else { continue };
            eprintln!("{:7.1} s {fault:?}", begun.elapsed().as_secs_f64());
            fault.inject(cluster, &mut rng).with_context(|| format!("{fault:?}"))?;
            *done.entry(fault.nemesis()).or_default() += 1;
            count += 1;
            under_way.push(fault);
        }
        // Some outlast a session.
        let long = rng.random_ratio(1, 4);
        let lasts = if long { 10_000..15_000 } else { 300..4000 };
        std::thread::sleep(Duration::from_millis(rng.random_range(lasts)));
        if let Some(fault) = cluster.died() {
            bail!("{fault} ended by itself during {under_way:?}");
        }
        cluster.heal().with_context(|| format!("after {under_way:?}"))?;
        all_go_on(&format!("after {under_way:?}"))?;
        if let Some(fault) = cluster.died() {
            bail!("{fault} ended by itself after {under_way:?}");
        }
    }
    Ok(done)
}

fn summarize(plan: &Plan, events: &[Event], faults: BTreeMap<Nemesis, u32>) -> Summary {
    let mut calls = BTreeMap::<_, [u64; 2]>::new();
    let names = plan.workloads.iter().map(|workload| workload.name);
    calls.extend(names.map(|name| (name, [0, 0])));
    for event in events {
        let name = match &event.call {
            Call::Append { .. } | Call::Read { .. } => "append",
            Call::Write { key, .. }
            | Call::Get { key }
            | Call::Swap { key, .. }
            | Call::Increment { key } => key.kind,
        };
        let Some(count) = calls.get_mut(name) else { continue };
        match event.kind {
            Kind::Invoke => {}
            Kind::Ok(_) | Kind::Fail => count[0] += 1,
            Kind::Info(_) => count[1] += 1,
        }
    }
    Summary { faults, calls }
}

fn notable(logs: &str) -> String {
    let is_notable =
        |l: &&str| ["WARN", "ERROR", "panicked", "weft: "].iter().any(|w| l.contains(w));
    let lines: Vec<&str> = logs.lines().filter(is_notable).collect();
    lines[lines.len().saturating_sub(100)..].join("\n")
}
