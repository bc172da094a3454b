//! `weft fsck`: every chunk on every target against the metadata (I7). It only reports; what it
//! finds is repaired or collected by the cluster itself.

use crate::control::ClusterArgs;
use crate::output::OutputArgs;
use crate::progress::Progress;
use anyhow::{Context, Result};
use serde::Serialize;
use std::cell::RefCell;
use std::process::ExitCode;
use std::time::Duration;
use weft_client::{Filesystem, Finding, FsckProgress, FsckReport, Options};
use weft_proto::{ChunkId, TargetId};

/// Check every chunk on every target against the metadata; exit code 0 only if all is clean
///
/// The cluster may be in use meanwhile.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft fsck --cluster 10.0.0.1:7100
  weft fsck --cluster 10.0.0.1:7100 --output json")]
pub struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// Seconds to wait for the cluster
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    timeout: u64,
}

#[derive(Serialize)]
struct Report {
    clean: bool,
    targets: u64,
    segments: u64,
    chunks: u64,
    garbage_chunks: u64,
    uncommitted_chunks: u64,
    inodes: u64,
    extents: u64,
    orphans: u64,
    findings: Vec<Row>,
}

/// One finding. `kind` is for scripts, `text` for people.
#[derive(Serialize)]
struct Row {
    kind: &'static str,
    target: Option<TargetId>,
    chunk: Option<String>,
    text: String,
}

pub async fn run(args: Args) -> Result<ExitCode> {
    let progress = RefCell::new(Progress::new("opening a session"));
    let mut options = Options::new(args.cluster.cluster.clone(), weft_net::tcp());
    options.client_name = "fsck".into();
    // Who checks is to hear what does not answer.
    options.op_deadline = Duration::from_secs(60);
    let limit = Duration::from_secs(args.timeout);
    let addresses = args.cluster.cluster.join(", ");
    let fs = tokio::time::timeout(limit, Filesystem::connect(options))
        .await
        .with_context(|| {
            format!(
                "no metadata leader answered at {addresses} for {limit:?}; is the cluster running?"
            )
        })?
        .with_context(|| format!("cannot open a session with {addresses}"))?;
    let checked = fs.fsck(|at| progress.borrow_mut().set(describe(&at))).await;
    drop(progress);
    let closed = fs.shutdown().await;
    let report = Report::from(checked.context("the check could not be finished")?);
    closed?;
    args.output.print(&report, text)?;
    Ok(if report.clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn describe(at: &FsckProgress) -> String {
    match at {
        FsckProgress::Namespace => "checking the namespace".into(),
        FsckProgress::Target { target, chunks } => {
            format!("listing target {target}: {chunks} chunks")
        }
        FsckProgress::Segments(n) => format!("comparing segments: {n}"),
        FsckProgress::Again(n) => format!("looking at {n} findings again"),
    }
}

impl From<FsckReport> for Report {
    fn from(r: FsckReport) -> Self {
        Self {
            clean: r.is_clean(),
            targets: r.targets,
            segments: r.segments,
            chunks: r.chunks,
            garbage_chunks: r.garbage_chunks,
            uncommitted_chunks: r.uncommitted_chunks,
            inodes: r.inodes,
            extents: r.extents,
            orphans: r.orphans,
            findings: r.findings.iter().map(Row::from).collect(),
        }
    }
}

impl From<&Finding> for Row {
    fn from(finding: &Finding) -> Self {
        let (kind, chunk, target): (_, Option<ChunkId>, Option<TargetId>) = match *finding {
            Finding::Missing { chunk, target } => ("missing", Some(chunk), Some(target)),
            Finding::WrongLength { chunk, target, .. } => {
                ("wrong_length", Some(chunk), Some(target))
            }
            Finding::Misplaced { chunk, target } => ("misplaced", Some(chunk), Some(target)),
            Finding::Leaked { chunk, target } => ("leaked", Some(chunk), Some(target)),
            Finding::Unreachable { target, .. } => ("unreachable", None, Some(target)),
            Finding::Metadata(_) => ("metadata", None, None),
        };
        Self { kind, target, chunk: chunk.map(|c| c.to_string()), text: finding.to_string() }
    }
}

fn text(r: &Report) -> String {
    let mut out: String = r.findings.iter().map(|f| format!("{}: {}\n", f.kind, f.text)).collect();
    out += &format!(
        "{} targets, {} chunks ({} wait for deletion, {} are being written), {} segments\n\
         {} inodes, {} extents, {} orphans\n",
        r.targets,
        r.chunks,
        r.garbage_chunks,
        r.uncommitted_chunks,
        r.segments,
        r.inodes,
        r.extents,
        r.orphans,
    );
    out += &match r.findings.len() {
        0 => "clean".to_owned(),
        n => format!("NOT clean: {n} findings"),
    };
    out
}
