//! `weft dev status`: what of the cluster in DIR runs, by process.

use super::state::{Daemon, State};
use crate::control::{leader_of, statuses};
use crate::mounts;
use crate::output::{OutputArgs, Table};
use crate::target::state_name;
use anyhow::Result;
use serde::Serialize;
use std::path::{Path, PathBuf};
use weft_proto::v1::{ClusterMap, StatusReply};

/// The contract with scripts: fields are only ever added.
#[derive(Serialize)]
struct Report {
    /// Addresses of the metadata servers, as `--cluster` takes them.
    cluster: String,
    metadata: Vec<MetadataRow>,
    storage: Vec<StorageRow>,
    mounts: Vec<MountRow>,
}

#[derive(Serialize)]
struct MetadataRow {
    id: u64,
    /// Null when it does not run.
    pid: Option<i32>,
    address: String,
    leader: bool,
}

#[derive(Serialize)]
struct StorageRow {
    id: u64,
    /// Null when it does not run.
    pid: Option<i32>,
    address: String,
    targets: Vec<TargetRow>,
}

#[derive(Serialize)]
struct TargetRow {
    /// Null while it has never registered or no leader answers.
    id: Option<u32>,
    path: PathBuf,
    /// up, down, out, or unknown
    state: &'static str,
}

#[derive(Serialize)]
struct MountRow {
    path: PathBuf,
    pid: i32,
}

pub async fn run(dir: &Path, output: OutputArgs) -> Result<()> {
    let state = State::load_existing(dir)?;
    super::tls::speak(dir, &state)?;
    let answers = statuses(&state.cluster()).await;
    let leader = leader_of(&answers).await.ok();
    let report = report(dir, &state, leader.as_ref())?;
    output.print(&report, text)
}

fn report(dir: &Path, state: &State, leader: Option<&StatusReply>) -> Result<Report> {
    let metadata_row = |d: &Daemon| MetadataRow {
        id: d.id,
        pid: d.pid(),
        address: d.address.clone(),
        leader: d.alive() && leader.is_some_and(|l| l.leader == d.id),
    };
    let map = leader.and_then(|l| l.map.as_ref());
    let storage_row = |d: &Daemon| StorageRow {
        id: d.id,
        pid: d.pid(),
        address: d.address.clone(),
        targets: vec![target_row(super::config::target_path(dir, d.id), map)],
    };
    Ok(Report {
        cluster: state.cluster().join(","),
        metadata: state.metadata.iter().map(metadata_row).collect(),
        storage: state.storage.iter().map(storage_row).collect(),
        mounts: mounts_of(state)?
            .into_iter()
            .map(|m| MountRow { path: m.path, pid: m.process.pid })
            .collect(),
    })
}

fn target_row(path: PathBuf, map: Option<&ClusterMap>) -> TargetRow {
    let known = map.and_then(|m| m.targets.iter().find(|t| Path::new(&t.path) == path));
    let state = known.map_or("unknown", |t| state_name(t.state()));
    TargetRow { id: known.map(|t| t.id), path, state }
}

/// Living mounts of this cluster, whoever made them.
pub fn mounts_of(state: &State) -> Result<Vec<mounts::MountRecord>> {
    let ours = state.cluster();
    let belongs = |m: &mounts::MountRecord| m.cluster.iter().any(|a| ours.contains(a));
    Ok(mounts::list()?.into_iter().filter(|m| belongs(m) && m.process.alive()).collect())
}

fn text(report: &Report) -> String {
    let pid = |pid: Option<i32>| pid.map_or_else(|| "not running".to_owned(), |p| p.to_string());
    let mut table = Table::new(&["ROLE", "ID", "PID", "ADDRESS", "STATE"]);
    for m in &report.metadata {
        let role = if m.leader { "leader" } else { "" };
        table.row(["metadata", &m.id.to_string(), &pid(m.pid), &m.address, role]);
    }
    for s in &report.storage {
        let states: Vec<_> = s.targets.iter().map(|t| t.state).collect();
        table.row(["storage", &s.id.to_string(), &pid(s.pid), &s.address, &states.join(" ")]);
    }
    for m in &report.mounts {
        table.row(["mount", "", &m.pid.to_string(), "", &m.path.to_string_lossy()]);
    }
    format!("cluster {}\n\n{}", report.cluster, table.render(""))
}
