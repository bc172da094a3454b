//! A working day of a large tree while its servers die: copied, listed, compared and removed, while
//! the metadata leader and two storage daemons are killed and a metadata server loses its disk.
//!
//! `WEFT_TREE_FILES=20000` makes the tree larger than the test suite does.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use weft_tests::{Cluster, data, eventually, path, run};

/// Long enough for anything that ends at all, with every core busy.
const PATIENCE: Duration = Duration::from_secs(600);

/// I1, I2, I7: no command fails and nothing is lost or left over.
#[test]
fn a_tree_survives_its_servers() -> Result<()> {
    let files = match std::env::var("WEFT_TREE_FILES") {
        Ok(text) => text.parse().context("WEFT_TREE_FILES")?,
        Err(_) => 1000,
    };
    let cluster = Cluster::start()?;
    let source = cluster.scratch("source")?;
    data::make_tree(&source, 9, files, 128 << 10)?;
    let expected = data::digest_tree(&source)?;
    let copy = cluster.mnt().join("copy");

    let copying = || run("cp", &["-a", path(&source), path(&copy)], cluster.mnt());
    while_failing(copying, || {
        await_entry(&copy)?;
        cluster.kill_storage(1)?;
        cluster.kill_storage(4)?;
        cluster.kill_leader()?;
        cluster.start_again()
    })?;
    ensure!(data::digest_tree(&copy)? == expected, "as copied");

    let listing = || run("ls", &["-lR", path(&copy)], cluster.mnt());
    let listed = while_failing(listing, || {
        let folder = cluster.lose_metadata_disk()?;
        cluster.start_again()?;
        eventually(PATIENCE, "the server is a voter again", || {
            let identity = fs::read_to_string(folder.join("identity")).ok()?;
            identity.contains("standing = \"member\"").then_some(())
        })
    })?;
    ensure!(listed.lines().filter(|line| line.starts_with('-')).count() == files, "{listed}");
    cluster.await_targets("up", 6)?;

    // One of the two that stay is the server that had lost everything.
    let removing = || run("rm", &["-rf", path(&copy.join("d0"))], cluster.mnt());
    while_failing(removing, || {
        cluster.kill_leader()?;
        cluster.kill_storage(0)?;
        cluster.kill_storage(3)
    })?;
    let rest: Vec<_> = expected.iter().filter(|(name, _)| !name.starts_with("d0")).collect();
    cluster.remount()?;
    ensure!(data::digest_tree(&copy)?.iter().collect::<Vec<_>>() == rest, "after a cold start");

    cluster.start_again()?;
    cluster.await_targets("up", 6)?;
    run("rm", &["-rf", path(&copy)], cluster.mnt())?;
    ensure!(fs::read_dir(cluster.mnt())?.next().is_none(), "the root is empty");
    cluster.await_clean()
}

/// Runs `work` while `faults` happen; both have to succeed.
fn while_failing<T: Send>(
    work: impl FnOnce() -> Result<T> + Send,
    faults: impl FnOnce() -> Result<()>,
) -> Result<T> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let done = work();
            ended.store(true, Ordering::Release);
            done
        });
        let failed = faults();
        let waited = eventually(PATIENCE, "the end of the command", || {
            ended.load(Ordering::Acquire).then_some(())
        });
        failed?;
        waited?;
        worker.join().expect("the worker does not panic")
    })
}

/// The command under test has begun to make names.
fn await_entry(folder: &Path) -> Result<()> {
    eventually(PATIENCE, "a first entry", || fs::read_dir(folder).ok()?.next().map(drop))
}
