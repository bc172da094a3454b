//! `weft target scrub`: has targets read everything that they hold and compare it with its
//! checksums.

use super::list::rows;
use crate::control::{ClusterArgs, leader_status};
use crate::output::{OutputArgs, Table};
use crate::progress::Progress;
use crate::size::Size;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use weft_net::{Identity, Peers};
use weft_proto::{ChunkId, ErrorKind, TargetId, Uuid};
use weft_segments::TargetClient;

/// Longest wait for one answer: a chunk has up to 64 MiB.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const PAGE: u32 = 1000;

/// Read everything on targets, at a set pace, and compare it with its checksums
///
/// Counts what is damaged or cannot be read, here and in the counters of the targets. What was
/// found is made anew of the other shards soon after; readers go round it until then. Exit code 1:
/// something was found.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Ids of targets [default: all that are up]
    #[arg(value_name = "ID")]
    ids: Vec<u32>,
    /// Bytes a second and target
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pace: Size,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// What came of one target.
#[derive(Serialize, Default)]
struct Scrubbed {
    target: u32,
    chunks: u64,
    bytes: u64,
    /// Do not match their checksums.
    damaged: u64,
    /// The drive gave an error.
    unreadable: u64,
    seconds: f64,
    /// The first chunks of which something is wrong.
    bad: Vec<String>,
}

/// Most bad chunks that are named.
const NAMED: usize = 100;

pub async fn run(args: Args) -> Result<ExitCode> {
    let reply = leader_status(&args.cluster.cluster).await?;
    let all = rows(&reply);
    let wanted: Vec<u32> = match args.ids.is_empty() {
        true => all.iter().filter(|t| t.state == "up").map(|t| t.id).collect(),
        false => args.ids.clone(),
    };
    let cluster = reply.map.as_ref().and_then(|m| Uuid::from_slice(&m.cluster));
    let peers =
        Peers::new(crate::network::transport(), Identity { name: "weft scrub".into(), cluster });
    let mut scrubs = tokio::task::JoinSet::new();
    for id in wanted {
        let row = all.iter().find(|t| t.id == id);
        let row = row.with_context(|| format!("the cluster has no target {id}"))?;
        let target = TargetClient::new(&peers, TargetId(id), &row.address);
        let scrub = Scrub { target, id, pace: args.pace.0.max(1) };
        scrubs.spawn(async move { scrub.run().await });
    }
    let mut progress = Progress::new(format!("scrubbing {} targets", scrubs.len()));
    let mut done: Vec<Scrubbed> = Vec::new();
    while let Some(one) = scrubs.join_next().await {
        done.push(one??);
        progress.set(format!("scrubbing, {} targets to go", scrubs.len()));
    }
    drop(progress);
    done.sort_by_key(|s| s.target);
    args.output.print(&done, |done| text(done))?;
    let clean = done.iter().all(|s| s.damaged + s.unreadable == 0);
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Scrub {
    target: TargetClient,
    id: u32,
    pace: u64,
}

impl Scrub {
    async fn run(&self) -> Result<Scrubbed> {
        let (begun, mut found) =
            (Instant::now(), Scrubbed { target: self.id, ..Scrubbed::default() });
        let mut after = None;
        loop {
            let page =
                self.target.list(after, None, PAGE, Instant::now() + REQUEST_TIMEOUT).await?;
            for (chunk, length) in page.items {
                after = Some(chunk);
                self.chunk(chunk, length, &mut found).await?;
                let due = Duration::from_secs_f64(found.bytes as f64 / self.pace as f64);
                sleep_until(begun + due).await;
            }
            if !page.more {
                break;
            }
        }
        found.seconds = begun.elapsed().as_secs_f64();
        Ok(found)
    }

    async fn chunk(&self, chunk: ChunkId, length: u64, found: &mut Scrubbed) -> Result<()> {
        let bad = match self.target.verify(chunk, Instant::now() + REQUEST_TIMEOUT).await {
            Ok(bad) => {
                found.damaged += u64::from(bad.is_some());
                bad.is_some()
            }
            Err(e) if e.kind == ErrorKind::Io => {
                found.unreadable += 1;
                true
            }
            Err(e) if e.kind == ErrorKind::NotFound => return Ok(()), // deleted meanwhile
            Err(e) => bail!(e),
        };
        found.chunks += 1;
        found.bytes += length;
        if bad && found.bad.len() < NAMED {
            found.bad.push(chunk.to_string());
        }
        Ok(())
    }
}

fn text(done: &[Scrubbed]) -> String {
    let mut table = Table::new(&["TARGET", "CHUNKS", "READ", "SECONDS", "DAMAGED", "UNREADABLE"]);
    for s in done {
        table.row([
            s.target.to_string(),
            s.chunks.to_string(),
            Size(s.bytes).to_string(),
            format!("{:.1}", s.seconds),
            s.damaged.to_string(),
            s.unreadable.to_string(),
        ]);
    }
    let mut out = table.render("  ");
    for s in done.iter().filter(|s| !s.bad.is_empty()) {
        out.push_str(&format!("  target {}: bad chunks {}\n", s.target, s.bad.join(", ")));
    }
    out
}
