//! Metadata servers are replaced one after another while the filesystem is used.

// How long calls take in real time is part of what is shown.
#![allow(clippy::disallowed_methods)]

use anyhow::{Context, Result, ensure};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weft_tests::server::replace_metadata;
use weft_tests::{Cluster, eventually, path, weft_ok};

const PATIENCE: Duration = Duration::from_secs(120);

/// Works like a program that cannot bear an error: writes, syncs, reads back, renames, locks.
/// Answers how often, and how long the slowest round took.
fn use_it(dir: &Path, end: &AtomicBool) -> Result<(u32, Duration)> {
    let (mut round, mut slowest) = (0, Duration::ZERO);
    let mut log = OpenOptions::new().create(true).append(true).read(true).open(dir.join("log"))?;
    let unlinked = dir.join("unlinked");
    let mut gone =
        File::options().create(true).truncate(true).write(true).read(true).open(&unlinked)?;
    gone.write_all(b"still here")?;
    fs::remove_file(&unlinked)?;
    let lock = File::create(dir.join("lock"))?;
    lock.lock()?;
    while !end.load(Ordering::Acquire) {
        let begun = Instant::now();
        let (name, new) = (dir.join(format!("f{}", round % 50)), dir.join("new"));
        let text = format!("round {round}");
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        drop(file);
        fs::rename(&new, &name)?;
        ensure!(fs::read_to_string(&name)? == text, "{} is old", name.display());
        writeln!(log, "{text}")?;
        log.sync_data()?;
        gone.rewind()?;
        let mut text = String::new();
        gone.read_to_string(&mut text)?;
        ensure!(text == "still here", "the unlinked file holds {text:?}");
        ensure!(File::open(dir.join("lock"))?.try_lock().is_err(), "the lock was lost");
        slowest = slowest.max(begun.elapsed());
        round += 1;
    }
    let lines = fs::read_to_string(dir.join("log"))?;
    let expected: String = (0..round).map(|i| format!("round {i}\n")).collect();
    ensure!(lines == expected, "the log has other lines than were written");
    Ok((round, slowest))
}

/// I2: the mount and the daemons find the new servers by themselves, and nothing fails.
#[test]
fn three_metadata_servers_are_replaced_under_load() -> Result<()> {
    let cluster = Cluster::start()?;
    let dir = cluster.mnt().join("work");
    fs::create_dir(&dir)?;
    let ended = AtomicBool::new(false);
    let servers = thread::scope(|scope| {
        let load = scope.spawn(|| use_it(&dir, &ended));
        let replaced = replace_metadata(&cluster);
        ended.store(true, Ordering::Release);
        let (rounds, slowest) = load.join().expect("the load does not panic")?;
        let servers = replaced?;
        println!("{rounds} rounds, the slowest took {slowest:?}");
        ensure!(rounds > 20, "only {rounds} rounds");
        anyhow::Ok(servers)
    })?;
    let addresses: Vec<&str> = servers.iter().map(|s| s.address.as_str()).collect();
    let cluster_now = addresses.join(",");
    // None of those that the mount and the daemons were told of is there any more.
    let status = cluster.status()?;
    let pids = status["metadata"].as_array().context("no servers in the status")?;
    ensure!(pids.iter().all(|server| server["pid"].is_null()), "{status}");
    eventually(PATIENCE, "all is well", || {
        let status = weft_ok(&["status", "--cluster", &cluster_now, "--output", "json"]).ok()?;
        let status: serde_json::Value = serde_json::from_str(&status).ok()?;
        let up = status["targets"].as_array()?.iter().filter(|t| t["state"] == "up").count();
        (status["health"] == "ok" && up == 6).then_some(())
    })?;
    weft_ok(&["metadata", "transfer-leader", "--cluster", &cluster_now])?;
    fs::write(dir.join("last"), "after all")?;
    weft_ok(&["umount", path(cluster.mnt())])?;
    weft_ok(&["fsck", "--cluster", &cluster_now])?;
    weft_ok(&["mount", "--cluster", &cluster_now, path(cluster.mnt())])?;
    ensure!(fs::read_to_string(dir.join("last"))? == "after all");
    Ok(())
}
