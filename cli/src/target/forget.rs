//! `weft target forget`: takes a target that is gone for good out of the cluster map.

use super::add::confirm;
use super::decide::{Action, decide};
use super::list::rows;
use crate::control::{ClusterArgs, leader_status};
use crate::network::transport;
use crate::output::say;
use anyhow::Result;
use weft_control::Group;

/// Take a target that is gone for good out of the cluster map
///
/// For a drive that is dead, or a host that is scrapped. Refused unless the target is out (`weft
/// target out`), no daemon serves it, and what it held was made at others. Its number is given to
/// no other target. Should the drive come back after all, its daemon is told that it is not wanted;
/// what is on it stays there.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The target's number, as `weft target list` shows it
    #[arg(value_name = "ID")]
    id: u32,
    /// Forget it without asking
    #[arg(long, visible_alias = "yes")]
    force: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub async fn run(args: Args) -> Result<()> {
    let Args { id, force, cluster } = args;
    let reply = leader_status(&cluster.cluster).await?;
    let row = rows(&reply).into_iter().find(|row| row.id == id);
    if let Some(row) = row.as_ref().filter(|_| !force) {
        let what = format!("target {id} ({} of {}) is {}", row.path, row.daemon, row.state);
        confirm(&what, "It is never taken in again.", "--force forgets it")?;
    }
    // The leader knows whether one that is not there was forgotten, or never was.
    let mut group = Group::new(transport(), cluster.cluster);
    decide(&mut group, id, Action::Forget).await?;
    say(&match row {
        Some(row) => format!("target {id} ({}) is forgotten", row.path),
        None => format!("target {id} was forgotten already"),
    })
}
