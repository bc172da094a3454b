//! `weft bench`: how fast a filesystem is, beside what the machine can do at all.
//!
//! Invariants: floors and workloads alternate within one run, so that both see the same machine;
//! what is read is checked against what was written; all files lie in folders of this run, which
//! are removed at the end, an interrupt included; one case that fails does not stop the others.

mod args;
mod batches;
mod cases;
mod context;
mod cpu;
mod floor;
mod gpu;
mod library;
mod machine;
mod report;
mod task;
mod workers;
mod workload;

use anyhow::{Context as _, Result, bail, ensure};
pub use args::Args;

use crate::output::{complain, say};
use cases::{Case, Needs};
use context::{Context, OwnDir, Sample};
use cpu::Cluster;
use floor::isal::Isal;
use indicatif::{ProgressBar, ProgressStyle};
use report::{Failure, Report, Settings};
use std::io::IsTerminal;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

pub async fn run(args: Args) -> Result<ExitCode> {
    // Set before anything starts, so that no signal leaves files behind.
    let mut signals = vec![SignalKind::terminate(), SignalKind::interrupt()];
    // Who has said nohup goes on when the terminal goes.
    signals.extend((!ignores(libc::SIGHUP)).then(SignalKind::hangup));
    for kind in signals {
        let mut caught = signal(kind).with_context(|| format!("cannot catch {kind:?}"))?;
        tokio::spawn(async move {
            caught.recv().await;
            task::interrupt();
        });
    }
    tokio::task::spawn_blocking(move || dispatch(&args)).await.context("the bench died")?
}

/// Whether this process was started so that the signal does nothing.
fn ignores(signal: i32) -> bool {
    // SAFETY: all zeros is a value of this plain structure.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is set, and the structure lives through the call, which fills it.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) };
    asked == 0 && now.sa_sigaction == libc::SIG_IGN
}

fn dispatch(args: &Args) -> Result<ExitCode> {
    if args.worker {
        workers::serve()?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.list {
        say(&list())?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = measure(args)?;
    args.output.print(&report, Report::text)?;
    Ok(if report.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn list() -> String {
    let mut out = String::new();
    for (title, cases) in [("Floors", cases::FLOORS), ("Workloads", cases::WORKLOADS)] {
        let mut table = crate::output::Table::new(&["CASE", "FIGURE", "WHAT"]);
        for case in cases {
            for row in case.rows {
                table.row([case.name, row.name, row.about]);
            }
        }
        out += &format!("{title}\n{}\n", table.render("  "));
    }
    out
}

fn measure(args: &Args) -> Result<Report> {
    args.transport.clone().set()?;
    let mut cluster = match &args.dir {
        Some(dir) => Cluster::of_dir(dir)
            .with_context(|| format!("cannot ask for the cluster in {}", dir.display()))?,
        None => Cluster::default(),
    };
    if !args.cluster.is_empty() {
        cluster.addresses.clone_from(&args.cluster);
    }
    let has = |needs| match needs {
        Needs::Nothing => true,
        Needs::Isal => Isal::load().is_some(),
        Needs::Mount => args.mount.is_some(),
        Needs::Cluster => !cluster.addresses.is_empty(),
        Needs::Gpu => args.gpu && !cluster.addresses.is_empty(),
    };
    let native = ["library", "native_random", "native_samples"].map(String::from);
    let of_gpu = ["gpu".to_owned()];
    let only = match (args.native, args.gpu) {
        (true, _) => &native[..],
        (_, true) => &of_gpu[..],
        _ => &args.only,
    };
    let (floors, workloads) = cases::select(only, has)?;
    if only.is_empty() && !has(Needs::Isal) {
        complain("weft: nothing is compared with ISA-L: libisal.so.2 is not here (libisal2)");
    }
    let mount = args.mount.as_deref().map(OwnDir::create).transpose()?;
    let parent = args.scratch.clone().or_else(|| args.dir.clone());
    let parent = parent.unwrap_or_else(std::env::temp_dir);
    let scratch = OwnDir::create(&parent)?;
    let machine = machine::describe(args.mount.as_deref(), &parent);
    let context = Context::new(args, mount, scratch, cluster);
    let (samples, failed) = rounds(&context, args.repeat, &floors, &workloads)?;

    let floors = report::figures(&floors, &samples, &[]);
    let workloads = report::figures(&workloads, &samples, &floors);
    let settings = Settings {
        size_bytes: context.size,
        operations: context.operations,
        files: context.files,
        repeat: args.repeat,
        limit_seconds: context.limit.as_secs(),
        cold: context.cold_means(),
    };
    Ok(Report { machine, settings, floors, workloads, failed })
}

/// Runs every case once a round. A case that fails is not tried again.
fn rounds(
    context: &Context,
    repeat: u32,
    floors: &[&'static Case],
    workloads: &[&'static Case],
) -> Result<(Vec<Sample>, Vec<Failure>)> {
    let cases: Vec<&'static Case> = floors.iter().chain(workloads).copied().collect();
    ensure!(!cases.is_empty(), "nothing to measure");
    let bar = progress(u64::from(repeat) * cases.len() as u64);
    let (mut samples, mut failed) = (Vec::new(), Vec::<Failure>::new());
    for _ in 0..repeat {
        context.next_round();
        for case in &cases {
            if failed.iter().any(|f| f.name == case.name) {
                continue;
            }
            bar.set_message(case.name);
            match (case.run)(context) {
                _ if task::interrupted() => bail!("interrupted"),
                Ok(more) => samples.extend(more),
                Err(error) => {
                    failed.push(Failure { name: case.name, error: format!("{error:#}") });
                }
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok((samples, failed))
}

/// On a terminal only; standard output stays clean for the answer.
fn progress(steps: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests;
