//! `weft target list`: the drives of a cluster.

use crate::control::{ClusterArgs, leader_status};
use crate::output::{OutputArgs, Table};
use crate::size::Size;
use anyhow::Result;
use serde::Serialize;
use weft_proto::Uuid;
use weft_proto::v1::{StatusReply, TargetState};

/// List all targets with state, use and error counts
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Serialize)]
pub struct TargetRow {
    pub id: u32,
    pub uuid: String,
    /// up, down or out
    pub state: &'static str,
    pub daemon: String,
    pub address: String,
    pub domain: String,
    pub path: String,
    pub capacity_bytes: u64,
    pub used_bytes: u64,
    pub chunks: u64,
    pub full: bool,
    pub read_errors: u64,
    pub write_errors: u64,
    pub checksum_errors: u64,
    pub commits: u64,
    /// How long the drive has not answered its oldest request.
    pub stalled_ms: u64,
}

pub async fn run(args: Args) -> Result<()> {
    let reply = leader_status(&args.cluster.cluster).await?;
    args.output.print(&rows(&reply), |rows| text(rows))
}

/// Name of a state, as printed everywhere.
pub fn state_name(state: TargetState) -> &'static str {
    match state {
        TargetState::Unknown => "unknown",
        TargetState::Up => "up",
        TargetState::Down => "down",
        TargetState::Out => "out",
    }
}

/// The targets of the map joined with what their last heartbeats said.
pub fn rows(reply: &StatusReply) -> Vec<TargetRow> {
    let targets = reply.map.iter().flat_map(|m| &m.targets);
    targets
        .map(|t| {
            let stat = reply.targets.iter().find(|s| s.target == t.id).copied().unwrap_or_default();
            TargetRow {
                id: t.id,
                uuid: Uuid::from_slice(&t.uuid).unwrap_or_default().to_string(),
                state: state_name(t.state()),
                daemon: t.daemon.clone(),
                address: t.address.clone(),
                domain: t.domain.clone(),
                path: t.path.clone(),
                capacity_bytes: t.capacity_bytes,
                used_bytes: stat.used_bytes,
                chunks: stat.chunks,
                full: t.full,
                read_errors: stat.read_errors,
                write_errors: stat.write_errors,
                checksum_errors: stat.checksum_errors,
                commits: stat.commits,
                stalled_ms: stat.stalled_ms,
            }
        })
        .collect()
}

pub fn text(rows: &[TargetRow]) -> String {
    let mut table = Table::new(&[
        "ID", "STATE", "DAEMON", "ADDRESS", "DOMAIN", "USED", "CAPACITY", "CHUNKS", "ERRORS",
        "PATH",
    ]);
    for t in rows {
        table.row([
            t.id.to_string(),
            format!("{}{}", t.state, if t.full { ", full" } else { "" }),
            t.daemon.clone(),
            t.address.clone(),
            t.domain.clone(),
            Size(t.used_bytes).to_string(),
            Size(t.capacity_bytes).to_string(),
            t.chunks.to_string(),
            format!("{} r, {} w, {} sum", t.read_errors, t.write_errors, t.checksum_errors),
            t.path.clone(),
        ]);
    }
    table.render("  ")
}
