//! One run: a cluster, clients that work on it, faults meanwhile, and the judgement of what they
//! recorded.

use crate::check::check;
use crate::cluster::{Cluster, Config};
use crate::history::{Call, Event, Kind, Recorder, write_edn};
use crate::nemesis::{Nemesis, draw};
use crate::workload::{Shared, Worker, Workload};
use anyhow::{Context, Result, anyhow, bail, ensure};
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
/// Only what is stuck takes so long, with a session that is over, and a lock of whoever held it,
/// included.
const PATIENCE: Duration = Duration::from_secs(300);

/// How long workers may take to end, or to look at all, once nothing is wrong any more.
const END_TIMEOUT: Duration = Duration::from_secs(300);

/// How often each was brought about.
pub(crate) type Faults = BTreeMap<Nemesis, u32>;

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
    pub faults: Faults,
    /// Calls that were answered and that were not, by workload.
    pub calls: BTreeMap<&'static str, [u64; 2]>,
    /// With what those ended that were not.
    pub errors: BTreeMap<String, u64>,
}

impl Summary {
    /// What happened in another run, too.
    pub fn add(&mut self, other: Self) {
        other.faults.into_iter().for_each(|(kind, n)| *self.faults.entry(kind).or_default() += n);
        other.errors.into_iter().for_each(|(what, n)| *self.errors.entry(what).or_default() += n);
        for (workload, [answered, unknown]) in other.calls {
            let all = self.calls.entry(workload).or_default();
            *all = [all[0] + answered, all[1] + unknown];
        }
    }
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
        write!(f, "; errors")?;
        for (error, n) in &self.errors {
            write!(f, " {n} {error:?}")?;
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
        ..Config::default()
    })?;
    let recorder = Recorder::default();
    let worked = work(plan, &mut cluster, &recorder);
    let ((events, mut problems), logs) = (recorder.finish(), cluster.logs());
    if let Some(dir) = &plan.history {
        fs::create_dir_all(dir)?;
        write_edn(&events, File::create(dir.join(format!("{}.edn", plan.seed)))?)?;
    }
    let told = || format!("seed {}; logs:\n{}", plan.seed, notable(&logs));
    problems.extend(check(&events));
    if !problems.is_empty() {
        let first = &problems[..problems.len().min(10)];
        let broke = worked.as_ref().err().map(|error| format!("; {error:#}"));
        return Err(Wrong { problems: problems.len() })
            .with_context(|| format!("{first:#?}{}\n{}", broke.unwrap_or_default(), told()));
    }
    let faults = worked.with_context(told)?;
    ensure!(!logs.contains("panicked at"), "a process panicked; {}", told());
    cluster.check().with_context(told)?;
    Ok(summarize(plan, &events, faults))
}

/// The history is wrong.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("{problems} problems in what was answered")]
pub struct Wrong {
    pub problems: usize,
}

/// All workloads under faults, and a look at what is left of it.
fn work(plan: &Plan, cluster: &mut Cluster, recorder: &Recorder) -> Result<Faults> {
    let mounts = cluster.mounts.clone();
    with_workers(plan, &mounts, recorder, |workers| {
        let faults = round(plan, cluster, recorder, workers)?;
        cluster.mount_anew()?;
        look(cluster, workers, |worker| worker.last()).context("mounted anew")?;
        cluster.lose_storage(&mut SmallRng::seed_from_u64(plan.seed))?;
        cluster.mount_anew()?;
        look(cluster, workers, |worker| worker.last()).context("with storage daemons dead")?;
        cluster.heal()?;
        Ok(faults)
    })
}

/// Makes a worker of each workload for each client, which works in this folder of its mount: one
/// that all see.
pub(crate) fn with_workers<T>(
    plan: &Plan,
    folders: &[PathBuf],
    recorder: &Recorder,
    go: impl FnOnce(&mut [Worker<'_>]) -> Result<T>,
) -> Result<T> {
    for workload in &plan.workloads {
        fs::create_dir(folders[0].join(workload.name))?;
    }
    let shared: Vec<_> = plan.workloads.iter().map(|_| Shared::default()).collect();
    let answered: Vec<_> = (0..folders.len() * shared.len()).map(|_| AtomicU64::new(0)).collect();
    let mut workers = Vec::new();
    for (client, folder) in (0u32..).zip(folders) {
        for (workload, shared) in plan.workloads.iter().zip(&shared) {
            let number = workers.len();
            workers.push(Worker {
                workload: **workload,
                client,
                clients: u32::from(plan.clients),
                process: number as u32,
                mount: folder.clone(),
                rng: SmallRng::seed_from_u64(plan.seed ^ (number as u64 + 1) << 32),
                shared,
                recorder,
                answered: &answered[number],
                unsure: Default::default(),
                failed: false,
                log: Default::default(),
                pager: Default::default(),
            });
        }
    }
    go(&mut workers)
}

/// All workers work while faults strike, and then look at what is there.
pub(crate) fn round(
    plan: &Plan,
    cluster: &mut Cluster,
    recorder: &Recorder,
    workers: &mut [Worker<'_>],
) -> Result<Faults> {
    let stop = AtomicBool::new(false);
    let on = |worker: &mut Worker<'_>| {
        while !stop.load(Ordering::Relaxed) {
            worker.step();
        }
        Ok(())
    };
    let answered: Vec<_> = workers.iter().map(|worker| worker.answered).collect();
    let faults = each(cluster, workers, on, |cluster| {
        // However it ends.
        let _stop = Stop(&stop);
        faults(plan, cluster, recorder, &answered)
    })?;
    // What waits in a mount is told, or given up, before all is looked at.
    look(cluster, workers, |worker| Ok(File::open(&worker.mount)?.sync_all()?))?;
    look(cluster, workers, |worker| worker.last()).context("at the end")?;
    Ok(faults)
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn look(
    cluster: &mut Cluster,
    workers: &mut [Worker<'_>],
    act: impl Fn(&mut Worker<'_>) -> Result<()> + Sync,
) -> Result<()> {
    each(cluster, workers, act, |_| Ok(()))
}

/// Each worker does something, in a thread of its own, and meanwhile something is done to the
/// cluster. Who does not end in time after that is ended by killing the mounts, which is an error.
fn each<T>(
    cluster: &mut Cluster,
    workers: &mut [Worker<'_>],
    act: impl Fn(&mut Worker<'_>) -> Result<()> + Sync,
    meanwhile: impl FnOnce(&mut Cluster) -> Result<T>,
) -> Result<T> {
    let alone = Barrier::new(workers.len() + 1);
    std::thread::scope(|s| {
        let threads = workers.iter_mut().map(|worker| {
            let (act, alone): (_, &Barrier) = (&act, &alone);
            s.spawn(move || {
                // What brings faults about starts programs. Those would close copies of the files
                // that are open here before they begin, and a close waits for a cluster that is
                // cut off.
                let own_files = nix::sched::unshare(CloneFlags::CLONE_FILES);
                alone.wait();
                own_files?;
                let done = act(&mut *worker);
                // Nobody else could.
                worker.close();
                done
            })
        });
        let threads: Vec<_> = threads.collect();
        alone.wait();
        let done = meanwhile(cluster);
        let all_end = || threads.iter().all(|thread| thread.is_finished()).then_some(());
        // Where something has failed, what they wait for may never come.
        let patience = if done.is_ok() { END_TIMEOUT } else { Duration::ZERO };
        let ended = eventually(patience, "all workers end", all_end);
        if ended.is_err() {
            cluster.kill_clients();
        }
        let worked: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        let done = done?;
        ended?;
        for worked in worked {
            worked.map_err(|_| anyhow!("a worker panicked"))??;
        }
        Ok(done)
    })
}

/// Brings faults about, and undoes each before the next; all clients go on with everything before
/// and after.
fn faults(
    plan: &Plan,
    cluster: &mut Cluster,
    recorder: &Recorder,
    answered: &[&AtomicU64],
) -> Result<Faults> {
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
    if let Some(event) = recorder.unknown() {
        bail!("{event} before the first fault");
    }
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

fn summarize(plan: &Plan, events: &[Event], faults: Faults) -> Summary {
    let mut calls = BTreeMap::<_, [u64; 2]>::new();
    let names = plan.workloads.iter().map(|workload| workload.name);
    calls.extend(names.map(|name| (name, [0, 0])));
    let mut errors = BTreeMap::<_, u64>::new();
    for event in events {
        let name = match &event.call {
            Call::Append { .. } | Call::Read { .. } => "append",
            Call::Write { key, .. }
            | Call::Get { key }
            | Call::Swap { key, .. }
            | Call::Increment { key } => key.kind,
        };
        let Some(count) = calls.get_mut(name) else { continue };
        match &event.kind {
            Kind::Invoke => {}
            Kind::Ok(_) | Kind::Fail => count[0] += 1,
            Kind::Info(error) => {
                count[1] += 1;
                *errors.entry(error.clone()).or_default() += 1;
            }
        }
    }
    Summary { faults, calls, errors }
}

pub(crate) fn notable(logs: &str) -> String {
    let is_notable =
        |l: &&str| ["WARN", "ERROR", "panicked", "weft: "].iter().any(|w| l.contains(w));
    let lines: Vec<&str> = logs.lines().filter(is_notable).collect();
    lines[lines.len().saturating_sub(100)..].join("\n")
}
