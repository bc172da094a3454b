//! `weft pool`: pools, their redundancy and placement groups.

use crate::control::{ClusterArgs, leader_status};
use crate::output::{OutputArgs, Table};
use anyhow::Result;
use serde::Serialize;
use weft_proto::Profile;
use weft_proto::v1::StatusReply;

/// Show the pools of a cluster
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// List all pools with profile and placement groups
    List {
        #[command(flatten)]
        cluster: ClusterArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
}

#[derive(Serialize)]
pub struct PoolRow {
    pub id: u32,
    pub name: String,
    pub profile: String,
    /// Placement groups that take new data.
    pub pgs: usize,
    /// Placement groups that are only read any more.
    pub retired_pgs: usize,
    /// Distinct targets in the active groups.
    pub targets: usize,
}

pub async fn run(args: Args) -> Result<()> {
    let Command::List { cluster, output } = args.command;
    let reply = leader_status(&cluster.cluster).await?;
    output.print(&rows(&reply), |rows| text(rows))
}

pub fn rows(reply: &StatusReply) -> Vec<PoolRow> {
    let pools = reply.map.iter().flat_map(|m| &m.pools);
    pools
        .map(|pool| {
            let active: Vec<_> = pool.pgs.iter().filter(|pg| !pg.retired).collect();
            let mut targets: Vec<u32> = active.iter().flat_map(|pg| &pg.targets).copied().collect();
            targets.sort_unstable();
            targets.dedup();
            let profile = pool.profile.and_then(|p| Profile::try_from(p).ok());
            PoolRow {
                id: pool.id,
                name: pool.name.clone(),
                profile: profile.map_or_else(|| "unknown".into(), |p| p.to_string()),
                pgs: active.len(),
                retired_pgs: pool.pgs.len() - active.len(),
                targets: targets.len(),
            }
        })
        .collect()
}

pub fn text(rows: &[PoolRow]) -> String {
    let mut table = Table::new(&["ID", "NAME", "PROFILE", "GROUPS", "RETIRED", "TARGETS"]);
    for p in rows {
        let numbers = [p.pgs, p.retired_pgs, p.targets].map(|n| n.to_string());
        let [pgs, retired, targets] = numbers;
        table.row([p.id.to_string(), p.name.clone(), p.profile.clone(), pgs, retired, targets]);
    }
    table.render("  ")
}
