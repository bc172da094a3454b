//! Drives that are lost, given up, drained and replaced: what they held is made at others, and
//! nothing is left where it has no business (I7).

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use weft_tests::{Cluster, Shape, data, eventually, weft};

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

/// A drive that is gone for good goes from the map, and not before it is needed no more.
#[test]
fn a_lost_drive_is_forgotten_when_what_it_held_is_made() -> Result<()> {
    let mut cluster = Cluster::start()?;
    fill(&cluster.mnt().join("a"), 1)?;
    let a = data::digest_tree(&cluster.mnt().join("a"))?;
    let (id, address) = (target_of(&cluster, 2)?, cluster.address()?);
    cluster.lose_storage(1)?;
    let number = id.to_string();
    let forget = ["target", "forget", &number, "--force", "--cluster", &address];
    let refused = |args: &[&str], why: &str| -> Result<()> {
        let out = weft(args)?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(!out.status.success() && said.contains(why), "{args:?}: {said}");
        Ok(())
    };
    cluster.target("out", id)?;
    refused(&["target", "forget", &number, "--cluster", &address], "--force")?;
    // Whichever is looked at first: that it was served a moment ago, or that it is needed.
    let out = weft(&forget)?;
    let said = String::from_utf8_lossy(&out.stderr);
    let why = ["still serves", "placement groups"].iter().any(|why| said.contains(why));
    ensure!(!out.status.success() && why, "{said}");
    cluster.start_storage(6)?;
    cluster.await_repaired(LIMIT)?;
    // Groups that hold nothing yet go, and what was removed goes from those that do.
    let mut said = None;
    let forgotten = || {
        said = weft(&forget).ok();
        let status = cluster.overview().ok()?;
        let targets = status["targets"].as_array()?;
        (targets.len() == 6 && targets.iter().all(|t| t["id"] != id)).then_some(())
    };
    eventually(LIMIT, "it is forgotten", forgotten).with_context(|| format!("{said:?}"))?;
    // Whoever was not answered asks again.
    let again = weft(&forget)?;
    ensure!(again.status.success(), "{again:?}");
    refused(&["target", "forget", "4711", "--force", "--cluster", &address], "no target")?;
    verify(&cluster, &[("a", &a)])?;
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
    // As the daemon last said.
    let holds = |id, some: bool| {
        let what = if some { "something is on the target" } else { "the target is empty" };
        eventually(LIMIT, what, || ((chunks(id).ok()? > 0) == some).then_some(()))
            .with_context(|| format!("the last was {:?}", cluster.overview()))
    };
    let emptied = |id| holds(id, false);
    holds(3, true)?;
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
    holds(5, true)?;
    cluster.target("drain", 5)?;
    emptied(5)?;
    await_whole(&cluster)?;
    verify(&cluster, &[("a", &a), ("b", &b)])
}

/// I7: an admin who changes his mind, again and again, loses nothing and leaves nothing behind.
#[test]
fn a_drain_that_is_taken_back_and_begun_again_loses_nothing() -> Result<()> {
    let cluster = Cluster::start_as(Shape { storage: 8, ..Shape::default() })?;
    fill(&cluster.mnt().join("a"), 1)?;
    let a = data::digest_tree(&cluster.mnt().join("a"))?;
    for round in 0..6 {
        cluster.target("drain", 4)?;
        let under_way = || {
            let status = cluster.overview().ok()?;
            (status["repair"]["made_chunks"].as_u64()? > round).then_some(())
        };
        eventually(LIMIT, "chunks are made elsewhere", under_way)?;
        cluster.target("in", 4)?;
    }
    cluster.target("drain", 4)?;
    await_whole(&cluster)?;
    verify(&cluster, &[("a", &a)])?;
    // Every shard is where it should be: any two may go.
    for lost in [0, 1] {
        cluster.kill_storage(lost)?;
    }
    verify(&cluster, &[("a", &a)])
}

/// Where one segment of a seat is past help, the others that were made at another target count all
/// the same.
#[test]
fn what_has_been_made_is_read_though_its_seat_has_not_moved() -> Result<()> {
    let cluster =
        Cluster::start_as(Shape { storage: 7, target_size: "128MiB", ..Shape::default() })?;
    // One stripe each, so that a shard begins as the file does.
    let unit = 128 << 10;
    fs::create_dir(cluster.mnt().join("d"))?;
    let files: Vec<_> = (0..40).map(|i| (i.to_string(), data::bytes(i, 4 * unit))).collect();
    for (name, content) in &files {
        fs::write(cluster.mnt().join("d").join(name), content)?;
    }
    for (_, content) in files.iter().take(7) {
        for shard in 0..3 {
            let at = shard * unit;
            ensure!(cluster.flip(&content[at..at + 64])? == 1);
        }
    }
    let lost = target_of(&cluster, 1)?;
    cluster.kill_storage(0)?;
    cluster.target("out", lost)?;
    // All that can be is made: one chunk of each of those is not.
    eventually(LIMIT, "all is made that can be", || {
        let repair = cluster.overview().ok()?["repair"].clone();
        repair["problems"].as_array()?.first()?;
        (repair["missing_chunks"].as_u64()? <= 7).then_some(())
    })?;
    // Two more go: four of each of the rest are left only with what was made.
    cluster.kill_storage(2)?;
    cluster.kill_storage(4)?;
    cluster.remount()?;
    for (name, content) in files.iter().skip(7) {
        let found = fs::read(cluster.mnt().join("d").join(name)).with_context(|| name.clone())?;
        ensure!(found == *content, "{name} has changed");
    }
    Ok(())
}

/// Writes and deletes files until told to stop; answers what is there in the end.
fn churn(dir: &Path, stop: &AtomicBool) -> Result<Vec<(String, Vec<u8>)>> {
    fs::create_dir(dir)?;
    let mut there: Vec<(String, Vec<u8>)> = Vec::new();
    for i in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (name, content) = (i.to_string(), data::bytes(i, 1 << (8 + i % 14)));
        fs::write(dir.join(&name), &content).with_context(|| format!("write {i}"))?;
        there.push((name, content));
        if there.len() > 40 {
            let (name, _) = there.swap_remove(i as usize * 7 % 40);
            fs::remove_file(dir.join(&name)).with_context(|| format!("remove {name}"))?;
        }
    }
    Ok(there)
}

/// While files are written and deleted, two drives go for good; while what they held is made again,
/// the leader dies, and then a daemon that takes part.
#[test]
fn what_is_lost_is_made_again_whoever_dies_meanwhile() -> Result<()> {
    let mut cluster = Cluster::start_as(Shape { storage: 8, ..Shape::default() })?;
    let mount = cluster.mnt().to_path_buf();
    fill(&mount.join("a"), 1)?;
    let a = data::digest_tree(&mount.join("a"))?;
    let stop = AtomicBool::new(false);
    let there = thread::scope(|s| -> Result<_> {
        let writer = s.spawn(|| churn(&mount.join("churn"), &stop));
        let repaired = (|| {
            let lost = [target_of(&cluster, 3)?, target_of(&cluster, 6)?];
            cluster.lose_storage(2)?;
            cluster.lose_storage(5)?;
            lost.iter().try_for_each(|&id| cluster.target("out", id))?;
            cluster.kill_leader()?;
            cluster.start_storage(8)?;
            cluster.kill_storage(0)?;
            cluster.start_storage(8)?;
            cluster.await_repaired(LIMIT)
        })();
        stop.store(true, Ordering::Relaxed);
        let there = writer.join().expect("the writer does not panic")?;
        repaired.map(|()| there)
    })?;
    await_whole(&cluster)?;
    for lost in [1, 4] {
        cluster.kill_storage(lost)?;
    }
    verify(&cluster, &[("a", &a)])?;
    for (name, content) in &there {
        let found = fs::read(mount.join("churn").join(name)).with_context(|| name.clone())?;
        ensure!(found == *content, "churn/{name} has changed");
    }
    ensure!(fs::read_dir(mount.join("churn"))?.count() == there.len(), "more than there should be");
    Ok(())
}
