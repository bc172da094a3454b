//! Drives that are lost, given up, drained and replaced: what they held is made at others, and
//! nothing is left where it has no business (I7).

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::time::Duration;
use weft_tests::{Cluster, Shape, data};

const LIMIT: Duration = Duration::from_secs(120);

/// Files of all sorts of sizes: inline, of one stripe, of several segments.
fn fill(dir: &Path, seed: u64) -> Result<()> {
    fs::create_dir(dir)?;
    for (i, len) in [100, 3000, 9000, 70_000, 600_000, 3 << 20, 20 << 20].into_iter().enumerate() {
        for copy in 0..3 {
            let name = dir.join(format!("{i}.{copy}"));
            fs::write(&name, data::bytes(seed + 10 * i as u64 + copy, len))?;
        }
    }
    Ok(())
}

/// What is read anew is what was there before.
fn verify(cluster: &Cluster, before: &[(&str, &Digests)]) -> Result<()> {
    cluster.remount()?;
    for (name, digests) in before {
        let found = data::digest_tree(&cluster.mnt().join(name))?;
        ensure!(found == **digests, "{name} has changed");
    }
    Ok(())
}

/// The target of a storage daemon, by its number.
fn target_of(cluster: &Cluster, daemon: u64) -> Result<u64> {
    let (status, name) = (cluster.overview()?, format!("storage-{daemon}"));
    let targets = status["targets"].as_array().context("no targets")?;
    let target = targets.iter().find(|t| t["daemon"] == name.as_str());
    target.and_then(|t| t["id"].as_u64()).with_context(|| format!("{name} is not in {status}"))
}

type Digests = std::collections::BTreeMap<std::path::PathBuf, String>;

/// As many chunks lie on the targets as the metadata says, no more and no less.
fn await_whole(cluster: &Cluster) -> Result<()> {
    cluster.await_repaired(LIMIT)?;
    cluster.await_clean()
}

#[test]
fn two_lost_drives_are_made_again_on_two_new_ones() -> Result<()> {
    let mut cluster = Cluster::start()?;
    fill(&cluster.mnt().join("a"), 1)?;
    let a = data::digest_tree(&cluster.mnt().join("a"))?;
    cluster.lose_storage(1)?;
    cluster.lose_storage(4)?;
    for lost in [2, 5] {
        cluster.target("out", target_of(&cluster, lost)?)?;
    }
    let stuck = cluster.overview()?;
    ensure!(stuck["health"] == "degraded", "{stuck}");
    // Written with two data shards.
    fill(&cluster.mnt().join("b"), 100)?;
    let b = data::digest_tree(&cluster.mnt().join("b"))?;
    // New drives in the place of the old.
    cluster.start_storage(6)?;
    await_whole(&cluster)?;
    let repair = cluster.overview()?["repair"].clone();
    let made = repair["made_chunks"].as_u64().context("no count")?;
    ensure!(made > 0, "{repair}");
    // Two that held all of it until now, and one at a time two more.
    for lost in [0, 2] {
        cluster.kill_storage(lost)?;
    }
    verify(&cluster, &[("a", &a), ("b", &b)])?;
    cluster.start_again()?;
    for lost in [3, 5] {
        cluster.kill_storage(lost)?;
    }
    verify(&cluster, &[("a", &a), ("b", &b)])?;
    cluster.start_again()?;
    await_whole(&cluster)
}

#[test]
fn a_drained_target_is_empty_and_one_that_was_out_comes_back() -> Result<()> {
    let cluster = Cluster::start_as(Shape { storage: 8, ..Shape::default() })?;
    fill(&cluster.mnt().join("a"), 1)?;
    let a = data::digest_tree(&cluster.mnt().join("a"))?;
    let chunks = |id: u64| -> Result<u64> {
        let status = cluster.overview()?;
        let targets = status["targets"].as_array().context("no targets")?;
        let target = targets.iter().find(|t| t["id"] == id).context("no such target")?;
        target["chunks"].as_u64().context("no chunks are told")
    };
    let emptied = |id| {
        weft_tests::eventually(LIMIT, "the target is empty", || {
            (chunks(id).ok()? == 0).then_some(())
        })
        .with_context(|| format!("the last was {:?}", cluster.overview()))
    };
    ensure!(chunks(3)? > 0, "nothing was on target 3");
    cluster.target("drain", 3)?;
    emptied(3)?;
    await_whole(&cluster)?;
    verify(&cluster, &[("a", &a)])?;
    cluster.target("in", 3)?;
    // Given up although it serves: made again, and emptied when it is wanted after all.
    cluster.target("out", 1)?;
    await_whole(&cluster)?;
    verify(&cluster, &[("a", &a)])?;
    cluster.target("in", 1)?;
    cluster.await_targets("up", 8)?;
    emptied(1)?;
    await_whole(&cluster)?;
    // It is as good as any other.
    fill(&cluster.mnt().join("b"), 200)?;
    let b = data::digest_tree(&cluster.mnt().join("b"))?;
    cluster.target("drain", 5)?;
    emptied(5)?;
    await_whole(&cluster)?;
    verify(&cluster, &[("a", &a), ("b", &b)])
}
