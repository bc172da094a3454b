//! `weft node`: storage nodes, each with all its targets at once.

use crate::control::{ClusterArgs, leader_status};
use crate::network::transport;
use crate::output::{OutputArgs, Table, say};
use crate::size::Size;
use crate::target::{Action, TargetRow, decide, known, rows, said};
use anyhow::{Result, bail, ensure};
use serde::Serialize;
use std::collections::BTreeMap;
use weft_control::Group;
use weft_proto::v1::TargetState;

/// Show, drain and give up storage nodes, each with all its drives
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// List all storage nodes with the state and use of their targets
    List(ListArgs),
    /// Move everything off all targets of a node while they serve
    Drain(NodeArgs),
    /// Give all targets of a node up: what they held is made at others at once
    Out(NodeArgs),
    /// Take the targets of a node back that were given up, or keep those that are being drained
    In(NodeArgs),
}

#[derive(clap::Args, Debug)]
struct ListArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Args, Debug)]
struct NodeArgs {
    /// Name of the node's storage daemon, as `weft node list` shows it
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Serialize)]
struct NodeRow {
    name: String,
    address: String,
    domain: String,
    targets: Vec<u32>,
    up: usize,
    down: usize,
    out: usize,
    draining: usize,
    capacity_bytes: u64,
    /// Null while the leader has not heard of any of them.
    used_bytes: Option<u64>,
}

pub async fn run(args: Args) -> Result<()> {
    match args.command {
        Command::List(args) => list(args).await,
        Command::Drain(args) => decide_all(args, Action::Drain).await,
        Command::Out(args) => decide_all(args, Action::GiveUp).await,
        Command::In(args) => decide_all(args, Action::TakeBack).await,
    }
}

async fn list(args: ListArgs) -> Result<()> {
    let reply = leader_status(&args.cluster.cluster).await?;
    args.output.print(&nodes(rows(&reply)), |nodes| text(nodes))
}

fn nodes(targets: Vec<TargetRow>) -> Vec<NodeRow> {
    let mut nodes: BTreeMap<String, Vec<TargetRow>> = BTreeMap::new();
    for target in targets {
        nodes.entry(target.daemon.clone()).or_default().push(target);
    }
    let node = |(name, targets): (String, Vec<TargetRow>)| {
        let count = |state| targets.iter().filter(|t| t.state == state).count();
        let used = targets.iter().filter_map(|t| t.counters.used_bytes);
        NodeRow {
            up: count("up"),
            down: count("down"),
            out: count("out"),
            draining: targets.iter().filter(|t| t.draining).count(),
            capacity_bytes: targets.iter().map(|t| t.capacity_bytes).sum(),
            used_bytes: used.reduce(|a, b| a + b),
            // Where the daemon is now; what a target that left it said last may be old.
            address: targets.last().map(|t| t.address.clone()).unwrap_or_default(),
            domain: targets.last().map(|t| t.domain.clone()).unwrap_or_default(),
            targets: targets.iter().map(|t| t.id).collect(),
            name,
        }
    };
    nodes.into_iter().map(node).collect()
}

fn text(nodes: &[NodeRow]) -> String {
    let mut table =
        Table::new(&["NAME", "ADDRESS", "DOMAIN", "TARGETS", "STATE", "USED", "CAPACITY"]);
    for node in nodes {
        let counts =
            [(node.up, "up"), (node.down, "down"), (node.out, "out"), (node.draining, "draining")];
        let state = counts.iter().filter(|(n, _)| *n > 0);
        let state: Vec<String> = state.map(|(n, what)| format!("{n} {what}")).collect();
        let targets: Vec<String> = node.targets.iter().map(u32::to_string).collect();
        table.row([
            node.name.clone(),
            node.address.clone(),
            node.domain.clone(),
            targets.join(","),
            state.join(", "),
            known(node.used_bytes.map(Size)),
            Size(node.capacity_bytes).to_string(),
        ]);
    }
    table.render("  ")
}

/// Decides about every target of a node; one that refuses keeps no other from it.
async fn decide_all(args: NodeArgs, action: Action) -> Result<()> {
    let reply = leader_status(&args.cluster.cluster).await?;
    let targets = reply.map.iter().flat_map(|map| &map.targets);
    let of_it: Vec<_> = targets.filter(|t| t.daemon == args.name).collect();
    ensure!(
        !of_it.is_empty(),
        "the cluster has no targets of a storage daemon named {:?}: weft node list shows them",
        args.name
    );
    let mut group = Group::new(transport(), args.cluster.cluster);
    let mut refused = Vec::new();
    for target in of_it {
        let id = target.id;
        if action == Action::Drain && target.state() == TargetState::Out {
            say(&format!("target {id} is out, and so has nothing to be drained of"))?;
            continue;
        }
        match decide(&mut group, id, action).await {
            Ok(target) => say(&said(&target, action))?,
            Err(error) => refused.push(format!("target {id}: {error:#}")),
        }
    }
    if refused.is_empty() {
        return Ok(());
    }
    bail!("not all targets of the node could be told: {}", refused.join("; "))
}
