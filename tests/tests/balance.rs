//! Targets that come, and that are to hold less: data moves until each holds its share, while files
//! are used.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::Duration;
use weft_tests::{Cluster, data, eventually, weft, weft_ok};

const LIMIT: Duration = Duration::from_secs(120);

/// The bytes that each target says it holds, by its number.
fn used(cluster: &Cluster) -> Result<Vec<(u64, u64)>> {
    let status = cluster.overview()?;
    let number = |t: &Value, what: &str| t[what].as_u64().with_context(|| format!("{what}: {t}"));
    let of = |t: &Value| Ok((number(t, "id")?, number(t, "used_bytes")?));
    status["targets"].as_array().context("no targets")?.iter().map(of).collect()
}

/// Segments of many groups.
fn fill(dir: &Path, seed: u64) -> Result<()> {
    fs::create_dir(dir)?;
    for file in 0..160u64 {
        fs::write(dir.join(file.to_string()), data::bytes(seed + file, 1 << 20))?;
    }
    Ok(())
}

/// Nothing is left to be moved, and each target holds what its weight says, as near as seats allow.
fn await_balance(cluster: &Cluster, weight: impl Fn(u64) -> u64) -> Result<()> {
    let mut last = Vec::new();
    let fair = || {
        cluster.await_repaired(LIMIT).ok()?;
        last = used(cluster).ok()?;
        let all: u64 = last.iter().map(|(_, used)| used).sum();
        let weights: u64 = last.iter().map(|(id, _)| weight(*id)).sum();
        let near = |(id, used): &(u64, u64)| {
            let share = all * weight(*id) / weights;
            used.abs_diff(share) <= share / 5 + (4 << 20)
        };
        last.iter().all(near).then_some(())
    };
    eventually(LIMIT, "each holds its share", fair).with_context(|| format!("{last:?}"))
}

#[test]
fn new_targets_are_given_their_share_of_what_there_is() -> Result<()> {
    let mut cluster = Cluster::start()?;
    fill(&cluster.mnt().join("a"), 1)?;
    let a = data::digest_tree(&cluster.mnt().join("a"))?;
    let made = |status: &Value| status["repair"]["written_bytes"].as_u64().context("none told");
    let already = made(&cluster.overview()?)?;
    cluster.start_storage(8)?;
    // Who writes, and reads what mostly is in the page cache, meets no error.
    let mut round = 0;
    let busy = || {
        round += 1;
        let name = cluster.mnt().join("b");
        fs::write(&name, data::bytes(round, 300_000)).ok()?;
        assert_eq!(data::digest_tree(&cluster.mnt().join("a")).ok()?, a);
        let held = used(&cluster).ok()?;
        let all: u64 = held.iter().map(|(_, used)| used).sum();
        held.iter().filter(|(id, _)| *id > 6).all(|(_, used)| *used > all / 12).then_some(())
    };
    eventually(LIMIT, "the new targets are filled", busy)?;
    await_balance(&cluster, |_| 1)?;
    // Two eighths of it are theirs; what is rewritten meanwhile moves nothing.
    let moved = made(&cluster.overview()?)? - already;
    let all: u64 = used(&cluster)?.iter().map(|(_, used)| used).sum();
    ensure!(moved <= all / 4 * 105 / 100, "{moved} of {all} have moved");
    cluster.await_clean()?;
    // An old one and a new one.
    for lost in [0, 6] {
        cluster.kill_storage(lost)?;
    }
    cluster.remount()?;
    ensure!(data::digest_tree(&cluster.mnt().join("a"))? == a, "a has changed");
    Ok(())
}

#[test]
fn who_weighs_less_holds_less_and_a_drained_node_nothing() -> Result<()> {
    let mut cluster = Cluster::start()?;
    cluster.start_storage(10)?;
    cluster.await_targets("up", 10)?;
    fill(&cluster.mnt().join("a"), 1)?;
    let a = data::digest_tree(&cluster.mnt().join("a"))?;
    let address = cluster.address()?;
    let cli = |args: &[&str]| weft_ok(&[args, &["--cluster", &address]].concat());
    // New groups are made of it, and what there is moves.
    cli(&["target", "weight", "3", "0.25"])?;
    let status = cluster.overview()?;
    ensure!(status["targets"].as_array().is_some_and(|t| t[2]["weight"] == 0.25), "{status}");
    await_balance(&cluster, |id| if id == 3 { 1 } else { 4 })?;
    ensure!(!weft(&["target", "weight", "3", "0", "--cluster", &address])?.status.success());
    // Any domain may fail, until others have.
    cli(&["pool", "domains"])?;
    cli(&["node", "drain", "storage-5"])?;
    let drained = || {
        let nodes = cli(&["node", "list", "--output", "json"]).ok()?;
        let nodes: Value = serde_json::from_str(&nodes).ok()?;
        let node = nodes.as_array()?.iter().find(|node| node["name"] == "storage-5")?;
        assert_eq!(node["draining"], 1, "{node}");
        let id = node["targets"][0].as_u64()?;
        let status = cluster.overview().ok()?;
        let target = status["targets"].as_array()?.iter().find(|t| t["id"] == id)?;
        (target["chunks"] == 0).then_some(())
    };
    eventually(LIMIT, "the drained node is empty", drained)?;
    cluster.await_repaired(LIMIT)?;
    ensure!(!weft(&["node", "drain", "nobody", "--cluster", &address])?.status.success());
    for lost in [0, 1] {
        cluster.kill_storage(lost)?;
    }
    cluster.await_targets("down", 2)?;
    let check = weft(&["pool", "domains", "--cluster", &address])?;
    let said = String::from_utf8_lossy(&check.stdout);
    ensure!(!check.status.success() && said.contains("is lost"), "{said}");
    cluster.remount()?;
    ensure!(data::digest_tree(&cluster.mnt().join("a"))? == a, "a has changed");
    Ok(())
}
