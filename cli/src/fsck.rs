//! `weft fsck`: every chunk on every target against the metadata (I7). With `--repair` the cluster
//! is told of what was found, and makes anew or deletes what it finds wrong itself.

use crate::control::{ClusterArgs, leader_status};
use crate::output::OutputArgs;
use crate::progress::Progress;
use anyhow::{Context, Result};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::mem::{Discriminant, discriminant};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};
use v1::set_target_request::Action;
use weft_client::{Filesystem, Finding, FsckProgress, FsckReport, Options};
use weft_control::Group;
use weft_proto::{ChunkId, TargetId, v1};

/// How long it takes is not told before this.
const MIN_ELAPSED: Duration = Duration::from_secs(2);
/// Between two looks whether all is mended.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Check every chunk on every target against the metadata; exit code 0 only if all is clean
///
/// The cluster may be in use meanwhile.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft fsck --cluster 10.0.0.1:7100
  weft fsck --repair --cluster 10.0.0.1:7100
  weft fsck --cluster 10.0.0.1:7100 --output json")]
pub struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// Have chunks that are missing or have a wrong length made anew, and those deleted that nobody
    /// wants where they are; waits until that is done. Mends what the namespace has against itself:
    /// no file is deleted for that, and what has lost its name gets one in /lost+found. Names the
    /// files of which content is lost
    #[arg(long)]
    repair: bool,
    /// Seconds without any change after which it does not wait on for repairs
    #[arg(long, default_value_t = 90, value_name = "SECONDS", requires = "repair")]
    patience: u64,
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
    /// What is wrong still.
    findings: Vec<Row>,
    /// What was wrong, and was mended.
    mended: Vec<Row>,
    /// Paths of files of which content is lost, below the root of the filesystem.
    lost_files: Vec<String>,
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
    let teller = RefCell::new(Teller::new(args.cluster.cluster.clone()));
    let mut options = Options::new(args.cluster.cluster.clone(), crate::network::transport());
    options.client_name = "fsck".into();
    // Who checks is to hear what does not answer.
    options.op_deadline = Duration::from_secs(60);
    let limit = Duration::from_secs(args.timeout);
    options.connect_timeout = limit;
    let addresses = args.cluster.cluster.join(", ");
    let fs = tokio::time::timeout(limit, Filesystem::connect(options))
        .await
        .with_context(|| {
            format!(
                "no metadata leader answered at {addresses} for {limit:?}; is the cluster running?"
            )
        })?
        .with_context(|| format!("cannot open a session with {addresses}"))?;
    let checked = check(&fs, &args, |at| teller.borrow_mut().tell(&at)).await;
    drop(teller);
    let closed = fs.shutdown().await;
    let report = checked.context("the check could not be finished")?;
    closed?;
    args.output.print(&report, text)?;
    Ok(if report.clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn check(fs: &Filesystem, args: &Args, tell: impl Fn(FsckProgress)) -> Result<Report> {
    let first = fs.fsck(&tell).await?;
    let (mut now, found) = (first.clone(), first.findings);
    let is_of_namespace = |f: &Finding| matches!(f, Finding::Metadata(_) | Finding::Lost(_));
    let (mut namespace, mut others) = (Vec::new(), 0);
    if args.repair && found.iter().any(is_of_namespace) {
        // Before any chunk is made or deleted for what it says.
        match fs.mend_namespace(&tell).await {
            Ok(mended) => (namespace, others) = mended,
            // Chunks can be mended all the same.
            Err(error) => eprintln!("weft: the namespace is not mended: {error}"),
        }
        now = fs.fsck(&tell).await?;
    }
    let found: Vec<_> = found.into_iter().filter(|f| !is_of_namespace(f)).collect();
    // The cluster tries a chunk again once in a minute.
    let patience = Duration::from_secs(args.patience);
    let left = |now: &FsckReport| found.iter().filter(|f| is_left(f, now)).count();
    let mut last_progress = Instant::now();
    // What comes while it waits is of what goes on, or for the next time.
    while args.repair && left(&now) > 0 && last_progress.elapsed() < patience {
        tell(FsckProgress::Mending(left(&now)));
        fs.report_findings(&now).await;
        if let Err(error) = have_looked_at(&now, &args.cluster.cluster).await {
            tracing::warn!("the leader does not look at targets once more: {error:#}");
        }
        let begun = Instant::now();
        sleep(LOOK_INTERVAL).await;
        let next = fs.fsck(&tell).await?;
        // A check is work for the whole cluster: half of the time it rests.
        sleep(begun.elapsed() - LOOK_INTERVAL).await;
        if left(&next) < left(&now) {
            last_progress = Instant::now();
        }
        now = next;
    }
    let shows_lost = now.findings.iter().any(|f| matches!(f, Finding::Lost(_)));
    let lost = match !shows_lost && now.lost.is_empty() {
        true => Vec::new(),
        false => fs.files_of(&now.lost, &tell).await.unwrap_or_else(|error| {
            tracing::warn!("the files of which content is lost are not known: {error}");
            Vec::new()
        }),
    };
    let mended = found.iter().filter(|finding| !is_left(finding, &now));
    let mut mended: Vec<Row> = mended.map(Row::from).collect();
    mended.extend(namespace.into_iter().map(Finding::Metadata).map(|f| Row::from(&f)));
    if others > 0 {
        mended.push(Row::from(&Finding::Metadata(format!("and {others} more"))));
    }
    let lost_files = lost.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
    Ok(Report { mended, lost_files, ..Report::from(now) })
}

/// Whether something is wrong still, or may be: its target was not looked at now.
fn is_left(finding: &Finding, now: &FsckReport) -> bool {
    let is_unseen = |f: &Finding| matches!(f, Finding::Unreachable { .. });
    now.findings.iter().any(|f| f == finding || (is_unseen(f) && f.target() == finding.target()))
}

/// Has the leader look at the targets on which something lies that nobody wants there.
async fn have_looked_at(report: &FsckReport, cluster: &[String]) -> Result<()> {
    let on = report.findings.iter().filter_map(|finding| match finding {
        Finding::Misplaced { target, .. } | Finding::Leaked { target, .. } => Some(*target),
        _ => None,
    });
    let mut group = Group::new(crate::network::transport(), cluster.to_vec());
    for target in on.collect::<BTreeSet<_>>() {
        let look = Action::Look.into();
        group.call(v1::SetTargetRequest { target: target.0, action: look, weight: 0 }).await?;
    }
    Ok(())
}

/// Chunks on all targets that serve, as their daemons said last; `None`: some said nothing.
fn chunks_of(reply: &v1::StatusReply) -> Option<u64> {
    let serves = |t: &&v1::TargetInfo| t.state() == v1::TargetState::Up;
    let serve = reply.map.iter().flat_map(|map| &map.targets).filter(serves);
    let chunks_of = |t: &v1::TargetInfo| reply.targets.iter().find(|stat| stat.target == t.id);
    serve.map(|t| chunks_of(t).map(|stat| stat.chunks)).sum()
}

/// Says where the check is, and how long this part of it still takes.
struct Teller {
    progress: Progress,
    /// Chunks that are to be listed; 0: not known, yet or at all.
    chunks: Arc<AtomicU64>,
    asking: AbortHandle,
    /// The part, and when it began.
    part: Option<(Discriminant<FsckProgress>, Instant)>,
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.asking.abort();
    }
}

impl Teller {
    fn new(cluster: Vec<String>) -> Self {
        let chunks = Arc::new(AtomicU64::new(0));
        let known = chunks.clone();
        // The check does not wait for it.
        let ask = async move {
            if let Ok(reply) = leader_status(&cluster).await {
                known.store(chunks_of(&reply).unwrap_or(0), Ordering::Relaxed);
            }
        };
        let asking = tokio::spawn(ask).abort_handle();
        Self { progress: Progress::new("opening a session"), chunks, asking, part: None }
    }

    fn tell(&mut self, at: &FsckProgress) {
        let part = discriminant(at);
        let is_step = !matches!(at, FsckProgress::MendingNamespace(_));
        let begun = self.part.filter(|(last, _)| is_step && *last == part).map(|(_, begun)| begun);
        let chunks = self.chunks.load(Ordering::Relaxed);
        let said = describe(at, chunks, begun.map_or(Duration::ZERO, |at| at.elapsed()));
        match begun {
            Some(_) => self.progress.detail(said),
            None => {
                self.part = Some((part, Instant::now()));
                self.progress.set(said);
            }
        }
    }
}

/// `expected`: chunks that are to be listed; 0: not known. `elapsed`: since this part of the check
/// began.
fn describe(at: &FsckProgress, expected: u64, elapsed: Duration) -> String {
    match *at {
        FsckProgress::Namespace => "checking the namespace".into(),
        FsckProgress::MendingNamespace(n) => format!("mending the namespace, look {}", n + 1),
        FsckProgress::Chunks { target, listed } => format!(
            "listing chunks, at target {target}: {listed}{}",
            how_far(listed, expected, elapsed)
        ),
        FsckProgress::Segments { segments, explained, chunks } => {
            format!("comparing segments: {segments}{}", how_far(explained, chunks, elapsed))
        }
        FsckProgress::Again(n) => format!("looking at {n} findings again"),
        FsckProgress::Mending(n) => format!("waiting until {n} findings are mended"),
        FsckProgress::Files(n) => format!("looking for files whose content is lost: {n}"),
    }
}

/// Which part of all is done, and how long the rest takes if it goes on as it went so far.
fn how_far(done: u64, all: u64, elapsed: Duration) -> String {
    if all == 0 || done == 0 {
        return String::new();
    }
    // More come while it looks.
    let all = all.max(done);
    let percent = u128::from(done) * 100 / u128::from(all);
    match u128::from(all - done) * elapsed.as_millis() / 1000 / u128::from(done) {
        _ if elapsed < MIN_ELAPSED => format!(", {percent} %"),
        left => format!(", {percent} %, {left} s left"),
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
            mended: Vec::new(),
            lost_files: Vec::new(),
        }
    }
}

impl From<&Finding> for Row {
    fn from(finding: &Finding) -> Self {
        let (kind, chunk, target): (_, Option<ChunkId>, Option<TargetId>) = match *finding {
            Finding::Missing { chunk, target, .. } => ("missing", Some(chunk), Some(target)),
            Finding::WrongLength { chunk, target, .. } => {
                ("wrong_length", Some(chunk), Some(target))
            }
            Finding::Misplaced { chunk, target } => ("misplaced", Some(chunk), Some(target)),
            Finding::Leaked { chunk, target } => ("leaked", Some(chunk), Some(target)),
            Finding::Unreachable { target, .. } => ("unreachable", None, Some(target)),
            Finding::Metadata(_) => ("metadata", None, None),
            Finding::Lost(_) => ("lost", None, None),
        };
        Self { kind, target, chunk: chunk.map(|c| c.to_string()), text: finding.to_string() }
    }
}

fn text(r: &Report) -> String {
    let line = |f: &Row| format!("{}: {}\n", f.kind, f.text);
    let mut out: String = r.findings.iter().map(line).collect();
    out.extend(r.mended.iter().map(|f| format!("mended, {}", line(f))));
    out.extend(r.lost_files.iter().map(|path| format!("content is lost of {path}\n")));
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

#[cfg(test)]
mod tests;
