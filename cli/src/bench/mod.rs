//! `weft bench`: how fast a filesystem is, beside what the machine can do at all.
//!
//! Invariants: floors and workloads alternate within one run, so that both see the same machine;
//! what is read is checked against what was written; all files lie in folders of this run, which
//! are removed at the end, an interrupt included; one case that fails does not stop the others.

mod cases;
mod context;
mod cpu;
mod floor;
mod library;
mod machine;
mod report;
mod task;
mod workers;
mod workload;

use crate::output::OutputArgs;
use crate::size::Size;
use anyhow::{Context as _, Result, bail, ensure};
use cases::{Case, Needs};
use context::{Context, OwnDir, Sample};
use cpu::Cluster;
use indicatif::{ProgressBar, ProgressStyle};
use report::{Failure, Report, Settings};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// Measure a mount and the client library beside the floors of this machine
///
/// Writes and reads real files in a folder of its own, and measures in the same run what the
/// disk, the network, memory and an empty FUSE server do, so that the ratio means something.
/// Without --mount only the floors are measured.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft bench --dir /tmp/weft --mount /tmp/mnt
  weft bench --mount /mnt/weft --cluster 10.0.0.1:7000 --size 8GiB --output json
  weft bench --mount /some/other/filesystem --only sequential,small")]
pub struct Args {
    /// The filesystem to measure: a mount, or any folder
    #[arg(long, value_name = "MNT")]
    mount: Option<PathBuf>,
    /// Metadata servers, host:port separated by commas; enables the library cases
    #[arg(long, env = "WEFT_CLUSTER", value_delimiter = ',', value_name = "ADDR,..")]
    cluster: Vec<String>,
    /// Folder of a weft dev cluster: its processes' CPU time is counted, and its disk is the floor
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Folder on the disk that the floors measure [default: --dir, or the temporary folder]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Size of large files
    #[arg(long, default_value = "1GiB", value_name = "SIZE")]
    size: Size,
    /// Operations in each case that counts operations
    #[arg(long, default_value_t = 2000, value_name = "N")]
    ops: u64,
    /// Small files of each of four processes
    #[arg(long, default_value_t = 500, value_name = "N")]
    files: u64,
    /// Rounds; the medians are shown
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Longest that one measurement may take, in seconds; it then counts what was done
    #[arg(long, default_value_t = 20, value_name = "SECONDS")]
    limit: u64,
    /// Only these cases or figures, separated by commas, with the floors that they stand on
    #[arg(long, value_delimiter = ',', value_name = "NAME,..")]
    only: Vec<String>,
    /// Do not drop the kernel's caches before cold reads
    #[arg(long)]
    keep_caches: bool,
    /// Show what can be measured, and measure nothing
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    output: OutputArgs,
    /// Run one task read from standard input; what the bench starts its processes with
    #[arg(long, hide = true)]
    worker: bool,
}

pub async fn run(args: Args) -> Result<ExitCode> {
    // Set before anything starts, so that no signal leaves files behind.
    let mut terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        task::interrupt();
    });
    tokio::task::spawn_blocking(move || dispatch(&args)).await.context("the bench died")?
}

fn dispatch(args: &Args) -> Result<ExitCode> {
    if args.worker {
        workers::serve()?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.list {
        list();
        return Ok(ExitCode::SUCCESS);
    }
    let report = measure(args)?;
    args.output.print(&report, Report::text)?;
    Ok(if report.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn list() {
    for (title, cases) in [("Floors", cases::FLOORS), ("Workloads", cases::WORKLOADS)] {
        let mut table = crate::output::Table::new(&["CASE", "FIGURE", "WHAT"]);
        for case in cases {
            for row in case.rows {
                table.row([case.name, row.name, row.about]);
            }
        }
        println!("{title}\n{}", table.render("  "));
    }
}

fn measure(args: &Args) -> Result<Report> {
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
        Needs::Mount => args.mount.is_some(),
        Needs::Cluster => !cluster.addresses.is_empty(),
    };
    let (floors, workloads) = cases::select(&args.only, has)?;
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
