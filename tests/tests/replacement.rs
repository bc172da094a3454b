//! Everything that a cluster runs on is replaced, part after part, while one program works with all
//! that it can hold of a filesystem.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use weft_tests::load::Load;
use weft_tests::server::{Daemon, replace_metadata};
use weft_tests::{
    Cluster, Shape, await_health, data, eventually, path, serving, status_of, weft_binary, weft_ok,
};

const PATIENCE: Duration = Duration::from_secs(120);
/// Storage daemons, of one target each.
const COUNT: usize = 7;

/// I1, I2: no call fails, and nothing is lost, whatever is replaced. The version that is there
/// first: `WEFT_PREVIOUS`, or else this one.
#[test]
fn everything_is_replaced_under_load() -> Result<()> {
    let previous = std::env::var_os("WEFT_PREVIOUS").map_or_else(weft_binary, PathBuf::from);
    let mut cluster = Cluster::start_by(&previous, Shape::default())?;
    cluster.allow(Duration::from_secs(600))?;
    let tree = cluster.mnt().join("tree");
    data::make_tree(&tree, 5, 60, 1 << 20)?;
    let digest = data::digest_tree(&tree)?;
    let load = Load::start(&cluster)?;

    // One more, for what those hold that are drained.
    cluster.start_storage(COUNT as u32)?;
    cluster.await_targets("up", COUNT)?;
    // Six drives: of one the data moves away before, the next is simply gone.
    for index in 0..6 {
        load.goes_on()?;
        let name = format!("storage-{}", index + 1);
        let status = cluster.overview()?;
        let before = serving(&status)?;
        let targets = status["targets"].as_array().context("no targets")?;
        let target = targets.iter().find(|t| t["daemon"] == name.as_str() && t["state"] == "up");
        let id = target.and_then(|t| t["id"].as_u64()).context("no target")?;
        if index % 2 == 0 {
            cluster.target("drain", id)?;
            cluster.await_repaired(PATIENCE)?;
        }
        cluster.lose_storage(index)?;
        cluster.target("out", id)?;
        cluster.start_again()?;
        eventually(PATIENCE, "its successor serves", || {
            let now = serving(&cluster.overview().ok()?).ok()?;
            (now.len() == COUNT && now.iter().any(|id| !before.contains(id))).then_some(())
        })?;
        cluster.await_repaired(PATIENCE)?;
    }

    // Three metadata servers, by others at other addresses.
    let old = cluster.address()?;
    let mut servers = replace_metadata(&cluster)?;
    load.goes_on()?;
    let addresses: Vec<_> = servers.iter().map(|server| server.address.clone()).collect();
    let known = addresses.join(",");

    // Every daemon, and the process behind the mount.
    let mut daemons = Vec::new();
    for index in 0..COUNT {
        let name = format!("storage-{}", index + 1);
        let config = cluster.dir().join("config").join(format!("{name}.toml"));
        let mut text = fs::read_to_string(&config)?;
        for (old, new) in old.split(',').zip(&addresses) {
            text = text.replace(old, new);
        }
        fs::write(&config, text)?;
        let commits = |status: &Value| -> Option<u64> {
            let of = |t: &&Value| t["daemon"] == name.as_str() && t["state"] == "up";
            status["targets"].as_array()?.iter().find(of)?["commits"].as_u64()
        };
        let before = commits(&status_of(&known)?).context("the target does not serve")?;
        cluster.stop_daemon("storage", index)?;
        let arguments = ["storaged", "--config", path(&config)].map(str::to_owned);
        daemons.push(Daemon::start(&cluster, &name, arguments.into(), Vec::new())?);
        // What is counted since its start is what it has begun to count again.
        eventually(PATIENCE, "the target serves again", || {
            (commits(&status_of(&known).ok()?)? < before).then_some(())
        })?;
        await_health(&known, COUNT)?;
        load.goes_on()?;
    }
    for server in &mut servers {
        server.daemon.restart()?;
        load.goes_on()?;
        await_health(&known, COUNT)?;
    }
    weft_ok(&["mount", "--takeover", path(cluster.mnt())])?;
    load.goes_on()?;

    println!("all replaced: {}", load.end()?);
    ensure!(data::digest_tree(&tree)? == digest, "the tree has changed");
    weft_ok(&["umount", path(cluster.mnt())])?;
    weft_ok(&["fsck", "--cluster", &known])?;
    weft_ok(&["mount", "--cluster", &known, path(cluster.mnt())])?;
    ensure!(data::digest_tree(&tree)? == digest, "the tree has changed, after a cold start");
    weft_ok(&["umount", path(cluster.mnt())]).map(drop)
}
