//! `weft target scrub`: has targets read everything that they hold and compare it with its
//! checksums.

use super::list::{TargetRow, rows};
use crate::control::{ClusterArgs, leader_status};
use crate::output::{OutputArgs, Table, complain};
use crate::progress::Progress;
use crate::size::Size;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use weft_net::{Identity, Peers};
use weft_proto::{ChunkId, ErrorKind, TargetId, Uuid};
use weft_segments::TargetClient;

/// Longest wait for one answer: a chunk has up to 64 MiB.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const PAGE: u32 = 1000;
/// How long a target is waited for whose daemon is started anew, and between two tries.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(1);

/// Read everything on targets, at a set pace, and compare it with its checksums
///
/// Counts what is damaged or cannot be read, here and in the counters of the targets. What was
/// found is made anew of the other shards soon after; readers go round it until then. A target that
/// does not answer is waited for, for a minute. Targets that are not up are named and left out.
/// Exit code 1: something was found, a target was not read to its end, or none is up.
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
    /// Why the rest was not read, if it was not.
    failed: Option<String>,
}

impl Scrubbed {
    fn is_clean(&self) -> bool {
        self.damaged + self.unreadable == 0 && self.failed.is_none()
    }
}

/// Most bad chunks that are named.
const NAMED: usize = 100;

pub async fn run(args: Args) -> Result<ExitCode> {
    let reply = leader_status(&args.cluster.cluster).await?;
    let all = rows(&reply);
    let (wanted, left_out) = chosen(&all, &args.ids);
    if !left_out.is_empty() {
        let ids: Vec<String> = left_out.iter().map(u32::to_string).collect();
        complain(&format!("weft: these targets are not up, and not read: {}", ids.join(", ")));
    }
    ensure!(!wanted.is_empty(), "no target is up, so nothing was read; see weft target list");
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
        done.push(one?);
        progress.set(format!("scrubbing, {} targets to go", scrubs.len()));
    }
    drop(progress);
    done.sort_by_key(|s| s.target);
    args.output.print(&done, |done| text(done))?;
    let clean = done.iter().all(Scrubbed::is_clean);
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The targets to scrub, and those that are left out as they are not up.
fn chosen(all: &[TargetRow], ids: &[u32]) -> (Vec<u32>, Vec<u32>) {
    if !ids.is_empty() {
        let ids: BTreeSet<u32> = ids.iter().copied().collect();
        return (ids.into_iter().collect(), Vec::new());
    }
    let (up, other): (Vec<_>, Vec<_>) = all.iter().partition(|target| target.state == "up");
    let ids = |targets: Vec<&TargetRow>| targets.into_iter().map(|target| target.id).collect();
    (ids(up), ids(other))
}

struct Scrub {
    target: TargetClient,
    id: u32,
    pace: u64,
}

impl Scrub {
    /// What others have found does not go with one that fails.
    async fn run(&self) -> Scrubbed {
        let (begun, mut found) =
            (Instant::now(), Scrubbed { target: self.id, ..Scrubbed::default() });
        let read = self.read(&mut found).await;
        found.failed = read.err().map(|error| error.to_string());
        found.seconds = begun.elapsed().as_secs_f64();
        found
    }

    async fn read(&self, found: &mut Scrubbed) -> weft_proto::Result<()> {
        let mut after = None;
        loop {
            let list = || self.target.list(after, None, PAGE, Instant::now() + REQUEST_TIMEOUT);
            let page = patiently(list).await?;
            for (chunk, length) in page.items {
                after = Some(chunk);
                // What took longer is not made up for: a daemon may have just come back.
                let pace = Duration::from_secs_f64(length as f64 / self.pace as f64);
                let due = Instant::now() + pace;
                self.chunk(chunk, length, found).await?;
                sleep_until(due).await;
            }
            if !page.more {
                return Ok(());
            }
        }
    }

    async fn chunk(
        &self,
        chunk: ChunkId,
        length: u64,
        found: &mut Scrubbed,
    ) -> weft_proto::Result<()> {
        let verify = || self.target.verify(chunk, Instant::now() + REQUEST_TIMEOUT);
        let bad = match patiently(verify).await {
            Ok(bad) => {
                found.damaged += u64::from(bad.is_some());
                bad.is_some()
            }
            Err(e) if e.kind == ErrorKind::Io => {
                found.unreadable += 1;
                true
            }
            Err(e) if e.kind == ErrorKind::NotFound => return Ok(()), // deleted meanwhile
            Err(e) => return Err(e),
        };
        found.chunks += 1;
        found.bytes += length;
        if bad && found.bad.len() < NAMED {
            found.bad.push(chunk.to_string());
        }
        Ok(())
    }
}

/// Asks until there is an answer, or it has failed otherwise or for too long.
async fn patiently<T, F: Future<Output = weft_proto::Result<T>>>(
    ask: impl Fn() -> F,
) -> weft_proto::Result<T> {
    let patience = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Err(e)
                if matches!(e.kind, ErrorKind::Unavailable | ErrorKind::TimedOut)
                    && Instant::now() < patience =>
            {
                sleep(PAUSE).await;
            }
            answer => return answer,
        }
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
    for (s, why) in done.iter().filter_map(|s| Some((s, s.failed.as_ref()?))) {
        out.push_str(&format!("  target {}: not read to its end: {why}\n", s.target));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use weft_proto::Error;

    /// Asks for what fails so often, and answers how often it was asked.
    async fn asked(kind: ErrorKind, fails: u32) -> (weft_proto::Result<()>, u32) {
        let times = Cell::new(0);
        let ask = || {
            times.set(times.get() + 1);
            let fails = times.get() <= fails;
            async move { if fails { Err(Error::new(kind, "gone")) } else { Ok(()) } }
        };
        (patiently(ask).await, times.get())
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_back_is_waited_for() {
        for kind in [ErrorKind::Unavailable, ErrorKind::TimedOut] {
            assert_eq!(asked(kind, 50).await, (Ok(()), 51));
            let (answer, times) = asked(kind, u32::MAX).await;
            assert_eq!(answer.unwrap_err().kind, kind);
            assert_eq!(times, 61);
        }
        let (answer, times) = asked(ErrorKind::Io, 1).await;
        assert!(answer.is_err() && times == 1, "it has answered");
    }

    #[test]
    fn who_is_not_up_is_left_out_and_told_of() {
        use weft_proto::v1::{ClusterMap, StatusReply, TargetInfo, TargetState};
        let of = |id, state: TargetState| TargetInfo {
            id,
            state: state.into(),
            ..TargetInfo::default()
        };
        let targets = vec![of(1, TargetState::Up), of(2, TargetState::Down)];
        let map = Some(ClusterMap { targets, ..ClusterMap::default() });
        let all = rows(&StatusReply { map, ..StatusReply::default() });
        assert_eq!(chosen(&all, &[]), (vec![1], vec![2]));
        assert_eq!(chosen(&all[1..], &[]), (vec![], vec![2]), "nothing is left to do");
        assert_eq!(chosen(&all, &[2, 2]), (vec![2], vec![]), "what is named is tried, once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_target_that_fails_is_told_of_with_what_was_found() {
        let identity = Identity { name: "test".into(), cluster: None };
        let peers = Peers::new(weft_net::tcp(), identity);
        // A port that none can have.
        let target = TargetClient::new(&peers, TargetId(3), "127.0.0.1:x");
        let failed = Scrub { target, id: 3, pace: 1 }.run().await;
        let whole = Scrubbed { target: 1, chunks: 7, ..Scrubbed::default() };
        assert!(!failed.is_clean() && whole.is_clean());
        let text = text(&[whole, failed]);
        assert!(text.contains("  target 3: not read to its end: "), "{text}");
        assert!(text.lines().any(|line| line.split_whitespace().take(2).eq(["1", "7"])), "{text}");
    }
}
