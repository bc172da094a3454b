//! Metadata servers are replaced one after another while the filesystem is used.

use anyhow::{Context, Result, ensure};
use std::fs;
use weft_tests::load::Load;
use weft_tests::server::replace_metadata;
use weft_tests::{Cluster, await_health, path, weft_ok};

/// I2: the mount and the daemons find the new servers by themselves, and nothing fails.
#[test]
fn three_metadata_servers_are_replaced_under_load() -> Result<()> {
    let cluster = Cluster::start()?;
    let load = Load::start(&cluster)?;
    load.goes_on()?;
    let servers = replace_metadata(&cluster)?;
    load.goes_on()?;
    let dir = load.dir().to_owned();
    println!("replaced: {}", load.end()?);
    let addresses: Vec<&str> = servers.iter().map(|s| s.address.as_str()).collect();
    let cluster_now = addresses.join(",");
    // None of those that the mount and the daemons were told of is there any more.
    let status = cluster.status()?;
    let pids = status["metadata"].as_array().context("no servers in the status")?;
    ensure!(pids.iter().all(|server| server["pid"].is_null()), "{status}");
    await_health(&cluster_now, 6)?;
    weft_ok(&["metadata", "transfer-leader", "--cluster", &cluster_now])?;
    fs::write(dir.join("last"), "after all")?;
    weft_ok(&["umount", path(cluster.mnt())])?;
    weft_ok(&["fsck", "--cluster", &cluster_now])?;
    weft_ok(&["mount", "--cluster", &cluster_now, path(cluster.mnt())])?;
    ensure!(fs::read_to_string(dir.join("last"))? == "after all");
    Ok(())
}
