//! `weft target show`: one target, by its id in the cluster or as a drive of this machine.

use super::list::{TargetRow, known, rows, text};
use crate::control::leader_status;
use crate::output::OutputArgs;
use crate::size::Size;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;
use weft_proto::Uuid;
use weft_storaged::engine::{Inspection, Superblock, inspect};

/// Show one target: state and counters by its id, or what is on a drive by its path
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft target show 3 --cluster 10.0.0.1:7100
  weft target show /dev/disk/by-id/nvme-a")]
pub struct Args {
    /// Id of a target, or path of a drive of this machine (which may be in use)
    #[arg(value_name = "ID|PATH")]
    what: String,
    /// Addresses of the metadata servers; for an id
    #[arg(long, env = "WEFT_CLUSTER", value_delimiter = ',', value_name = "ADDR,..")]
    cluster: Vec<String>,
    #[command(flatten)]
    output: OutputArgs,
}

/// A drive as it is found.
#[derive(Serialize)]
struct Drive {
    path: String,
    bytes: u64,
    block_device: bool,
    holds: String,
    /// Whether puts are flushed, unless the configuration says otherwise.
    flushed: bool,
    /// Whether freed space is discarded, unless the configuration says otherwise.
    discards: bool,
    superblocks: Vec<Copy>,
}

/// A copy of the superblock: what it says, or what is wrong with it.
#[derive(Serialize)]
#[serde(untagged)]
enum Copy {
    Sound {
        target: Option<u32>,
        uuid: String,
        cluster: Option<String>,
        bytes: u64,
        sequence: u64,
        journal_blocks: u64,
        data_blocks: u64,
        encrypted: bool,
    },
    Damaged {
        problem: String,
    },
}

pub async fn run(args: Args) -> Result<()> {
    if let Ok(id) = args.what.parse::<u32>() {
        ensure!(
            !args.cluster.is_empty(),
            "a target is looked up by its id in a cluster: name it with --cluster ADDR,.. (or \
             WEFT_CLUSTER); a file of that name is ./{id}"
        );
        let reply = leader_status(&args.cluster).await?;
        let row = rows(&reply).into_iter().find(|row| row.id == id);
        let row = row.with_context(|| format!("the cluster has no target {id}"))?;
        return args.output.print(&row, target);
    }
    let path = Path::new(&args.what);
    let found = tokio::task::block_in_place(|| inspect(path))?;
    args.output.print(&drive(&args.what, found), describe)
}

fn target(row: &TargetRow) -> String {
    let mut out = text(std::slice::from_ref(row));
    let counters = &row.counters;
    let _ = writeln!(out, "  uuid {}, {} group commits", row.uuid, known(counters.commits));
    if let Some(ms) = counters.stalled_ms.filter(|&ms| ms > 0) {
        let _ = writeln!(out, "  the drive has not answered for {ms} ms");
    }
    out
}

fn drive(path: &str, found: Inspection) -> Drive {
    Drive {
        path: path.into(),
        bytes: found.size,
        block_device: found.block_device,
        holds: found.content.to_string(),
        flushed: found.caches_writes,
        discards: found.discards,
        superblocks: found.copies.into_iter().map(copy).collect(),
    }
}

fn copy(found: Result<Superblock, String>) -> Copy {
    match found {
        Err(problem) => Copy::Damaged { problem },
        Ok(s) => {
            let joined = s.cluster != Uuid::NIL;
            Copy::Sound {
                target: joined.then_some(s.target.0),
                uuid: s.uuid.to_string(),
                cluster: joined.then(|| s.cluster.to_string()),
                bytes: s.size,
                sequence: s.sequence,
                journal_blocks: s.journal_blocks,
                data_blocks: s.data_end - s.data_block,
                encrypted: s.key_check.is_some(),
            }
        }
    }
}

fn describe(drive: &Drive) -> String {
    let kind = if drive.block_device { "block device" } else { "file" };
    let yes = |b| if b { "yes" } else { "no" };
    let mut out = format!(
        "{}: {kind} of {}, holds {}\n  puts are flushed: {}, freed space is discarded: {}\n",
        drive.path,
        Size(drive.bytes),
        drive.holds,
        yes(drive.flushed),
        yes(drive.discards)
    );
    for (name, copy) in ["first", "last"].iter().zip(&drive.superblocks) {
        let _ = match copy {
            Copy::Damaged { problem } => writeln!(out, "  {name} superblock: none ({problem})"),
            Copy::Sound { uuid, sequence, journal_blocks, data_blocks, encrypted, .. } => {
                let encrypted = if *encrypted { ", encrypted" } else { "" };
                writeln!(
                    out,
                    "  {name} superblock: {uuid}, sequence {sequence}, {journal_blocks} blocks of \
                     journal, {data_blocks} for chunks{encrypted}"
                )
            }
        };
    }
    out
}
