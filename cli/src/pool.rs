//! `weft pool`: pools, their redundancy and placement groups.

use crate::control::{ClusterArgs, leader_status};
use crate::network::transport;
use crate::output::{OutputArgs, Table};
use anyhow::Result;
use serde::Serialize;
use std::process::ExitCode;
use weft_control::Group;
use weft_proto::Profile;
use weft_proto::v1::{CheckDomainsRequest, DomainStat, StatusReply};

/// Show the pools of a cluster, and what of it may fail
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
    /// Tell which failure domains may fail now, and which must not: data would be lost
    ///
    /// The exit code is 1 if there is one that must not fail. Looked at is the redundancy of the
    /// pool; a directory whose layout has less of it may lose data earlier.
    Domains {
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

#[derive(Serialize)]
struct DomainsReport {
    /// Shards of a placement group that may be lost.
    parity: u32,
    /// Placement groups with data that are past their parity already.
    lost_groups: u64,
    domains: Vec<DomainRow>,
}

#[derive(Serialize)]
struct DomainRow {
    name: String,
    targets: Vec<u32>,
    /// That one placement group has there.
    most_seats: u32,
    /// Placement groups with data that would be lost with it.
    lost_groups: u64,
    may_fail: bool,
}

pub async fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::List { cluster, output } => {
            let reply = leader_status(&cluster.cluster).await?;
            output.print(&rows(&reply), |rows| text(rows))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Domains { cluster, output } => domains(cluster, output).await,
    }
}

async fn domains(cluster: ClusterArgs, output: OutputArgs) -> Result<ExitCode> {
    let mut group = Group::new(transport(), cluster.cluster);
    let reply = group.call(CheckDomainsRequest {}).await?;
    let row = |domain: DomainStat| DomainRow {
        name: match (domain.target, domain.targets.first()) {
            (true, Some(id)) => format!("{} (target {id})", domain.name),
            _ => domain.name,
        },
        targets: domain.targets,
        most_seats: domain.most_seats,
        lost_groups: domain.lost_groups,
        may_fail: domain.lost_groups == 0,
    };
    let report = DomainsReport {
        parity: reply.parity,
        lost_groups: reply.lost_groups,
        domains: reply.domains.into_iter().map(row).collect(),
    };
    output.print(&report, domains_text)?;
    let good = report.lost_groups == 0 && report.domains.iter().all(|d| d.may_fail);
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn domains_text(report: &DomainsReport) -> String {
    let mut table = Table::new(&["DOMAIN", "TARGETS", "SEATS", "IF IT FAILS"]);
    for domain in &report.domains {
        let outcome = match domain.lost_groups {
            0 => "nothing is lost".to_owned(),
            lost => format!("data of {lost} placement groups is lost"),
        };
        let seats = domain.most_seats.to_string();
        table.row([domain.name.clone(), domain.targets.len().to_string(), seats, outcome]);
    }
    let mut out = table.render("");
    out += &format!(
        "Looked at is what may lose {} shards; directories with less parity lose data earlier.\n",
        report.parity
    );
    if report.lost_groups > 0 {
        out += &format!(
            "{} placement groups have lost more than their {} shards of parity already\n",
            report.lost_groups, report.parity
        );
    }
    out
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
