//! Appends by several clients to shared and private files, under faults, and a final read of all.
//!
//! A record is one line of fixed length, written by one `write` to a descriptor opened with
//! O_APPEND; a call is a few records and an fsync. A client never repeats a record.

use crate::checker::check;
use crate::cluster::Cluster;
use crate::history::{Call, Event, FileNo, Kind, Record, Recorder, write_edn};
use crate::nemesis::Fault;
use anyhow::{Context, Result, bail, ensure};
use nix::sched::CloneFlags;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use weft_tests::eventually;

/// How long and how hard a run is.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub clients: u8,
    /// Faults, one after the other.
    pub faults: u32,
    /// Calls that must be answered, over all clients, before a fault, during it and after it.
    pub calls: u64,
    /// Where the history goes, if anywhere.
    pub history: Option<PathBuf>,
}

const SHARED: [FileNo; 2] = [FileNo(0), FileNo(1)];
const RECORD_LEN: usize = 100;

fn private(client: u32) -> FileNo {
    FileNo(100 + client)
}

fn place(mount: &Path, file: FileNo) -> PathBuf {
    mount.join(format!("log{}", file.0))
}

/// Runs the plan; fails if the history is wrong or the cluster does not come back clean.
pub fn run(plan: &Plan) -> Result<()> {
    eprintln!("seed {}", plan.seed);
    let mut cluster = Cluster::start(plan.clients)?;
    let recorder = Recorder::default();
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let mounts = cluster.mounts.clone();
    let alone = Barrier::new(mounts.len() + 1);
    std::thread::scope(|s| {
        let workers: Vec<_> = (0u32..)
            .zip(&mounts)
            .map(|(client, mount)| {
                let seed = plan.seed ^ u64::from(client + 1) << 32;
                let (recorder, stop, acknowledged) = (&recorder, &stop, &acknowledged);
                let alone = &alone;
                s.spawn(move || {
                    // What brings faults about starts programs. Those would close copies of the
                    // files that are open here before they begin, and a close waits for a cluster
                    // that is cut off.
                    let own_files = nix::sched::unshare(CloneFlags::CLONE_FILES);
                    alone.wait();
                    own_files.expect("a thread can have its files to itself");
                    append_until(client, mount, seed, recorder, stop, acknowledged);
                })
            })
            .collect();
        alone.wait();
        let done = faults(plan, &mut cluster, &acknowledged);
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().for_each(|w| w.join().expect("workers do not panic"));
        done
    })
    .with_context(|| format!("seed {}; logs:\n{}", plan.seed, notable(&cluster.logs())))?;
    judge(plan, &cluster, recorder)
}

fn faults(plan: &Plan, cluster: &mut Cluster, acknowledged: &AtomicU64) -> Result<()> {
    let mut rng = SmallRng::seed_from_u64(plan.seed);
    let more = |what: &str| {
        let until = acknowledged.load(Ordering::Relaxed) + plan.calls;
        eventually(Duration::from_secs(90), what, || {
            (acknowledged.load(Ordering::Relaxed) >= until).then_some(())
        })
    };
    more("calls answered before the first fault")?;
    for _ in 0..plan.faults {
        let fault = Fault::draw(&mut rng, usize::from(plan.clients));
        eprintln!("{fault:?}");
        fault.inject(cluster)?;
        more(&format!("calls answered during {fault:?}"))?;
        cluster.heal()?;
        more(&format!("calls answered after {fault:?}"))?;
    }
    Ok(())
}

/// One client: appends until told to stop. Errors are recorded and answered by opening again.
fn append_until(
    client: u32,
    mount: &Path,
    seed: u64,
    recorder: &Recorder,
    stop: &AtomicBool,
    acknowledged: &AtomicU64,
) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut open: [Option<File>; 3] = Default::default();
    let mut seq = 0;
    while !stop.load(Ordering::Relaxed) {
        let which = rng.random_range(0..open.len());
        let file = SHARED.get(which).copied().unwrap_or(private(client));
        let count = rng.random_range(1..=5);
        let records: Vec<Record> = (1..=count).map(|i| Record { client, seq: seq + i }).collect();
        seq += count;
        let call = Call::Append { file, records };
        recorder.record(client, call.clone(), Kind::Invoke);
        match append(&mut open[which], &place(mount, file), &call) {
            Ok(()) => {
                recorder.record(client, call, Kind::Ok(None));
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            Err(e) => {
                open[which] = None;
                recorder.record(client, call, Kind::Info(e.to_string()));
            }
        }
    }
}

fn append(open: &mut Option<File>, path: &Path, call: &Call) -> io::Result<()> {
    let Call::Append { records, .. } = call else { return Ok(()) };
    let file = match open {
        Some(file) => file,
        None => open.insert(OpenOptions::new().append(true).create(true).open(path)?),
    };
    for record in records {
        let line = line(*record);
        // One write a record: a short one would tear it.
        let n = file.write(&line)?;
        if n != line.len() {
            return Err(io::Error::other(format!("short write of {n} bytes")));
        }
    }
    file.sync_all()
}

fn line(record: Record) -> Vec<u8> {
    let mut line = format!("{} {} ", record.client, record.seq).into_bytes();
    line.resize(RECORD_LEN - 1, b'.');
    line.push(b'\n');
    line
}

/// Takes a file apart in records; anything else in it is a torn or invented record.
fn parse(content: &[u8]) -> Result<Vec<Record>> {
    content
        .chunks(RECORD_LEN)
        .map(|chunk| {
            let text = String::from_utf8_lossy(chunk);
            let mut words = text.split(' ');
            let mut number = || words.next().and_then(|w| w.parse::<u64>().ok());
            let record = number().zip(number()).map(|(c, seq)| Record { client: c as u32, seq });
            match record {
                Some(record) if line(record) == chunk => Ok(record),
                _ => bail!("not a record: {text:?}"),
            }
        })
        .collect()
}

/// Reads every file through every mount, checks the history, and runs fsck.
fn judge(plan: &Plan, cluster: &Cluster, recorder: Recorder) -> Result<()> {
    let reader = u32::from(plan.clients);
    let files = SHARED.into_iter().chain((0..reader).map(private));
    for (file, mount) in files.flat_map(|f| cluster.mounts.iter().map(move |m| (f, m))) {
        let call = Call::Read { file };
        recorder.record(reader, call.clone(), Kind::Invoke);
        let content = fs::read(place(mount, file)).or_else(|e| {
            if e.kind() == io::ErrorKind::NotFound { Ok(Vec::new()) } else { Err(e) }
        })?;
        let seen = parse(&content).with_context(|| format!("seed {}: log{}", plan.seed, file.0))?;
        recorder.record(reader, call, Kind::Ok(Some(seen)));
    }
    let events = recorder.finish();
    if let Some(path) = &plan.history {
        write_edn(&events, File::create(path)?)?;
    }
    let problems = check(&events);
    ensure!(
        problems.is_empty(),
        "seed {}: {} problems, the first: {:#?}\n{}",
        plan.seed,
        problems.len(),
        &problems[..problems.len().min(10)],
        notable(&cluster.logs())
    );
    summarize(&events);
    let mut last = String::new();
    eventually(Duration::from_secs(60), "a clean fsck", || {
        let args = ["fsck", "--cluster", cluster.members(), "--output", "json"];
        let (clean, report) = cluster.weft(&args).ok()?;
        last = report;
        clean.then_some(())
    })
    .with_context(|| format!("seed {}: last report: {last}", plan.seed))
}

fn summarize(events: &[Event]) {
    let count = |f: fn(&Event) -> bool| events.iter().filter(|e| f(e)).count();
    eprintln!(
        "{} appends acknowledged, {} unknown, {} reads: right",
        count(|e| matches!((&e.call, &e.kind), (Call::Append { .. }, Kind::Ok(_)))),
        count(|e| matches!(e.kind, Kind::Info(_))),
        count(|e| matches!((&e.call, &e.kind), (Call::Read { .. }, Kind::Ok(_)))),
    );
}

fn notable(logs: &str) -> String {
    let is_notable = |l: &&str| ["WARN", "ERROR", "panicked"].iter().any(|w| l.contains(w));
    let lines: Vec<&str> = logs.lines().filter(is_notable).collect();
    lines[lines.len().saturating_sub(100)..].join("\n")
}
