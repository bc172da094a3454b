//! Metadata servers are replaced one after another while the filesystem is used.

// How long calls take in real time is part of what is shown.
#![allow(clippy::disallowed_methods)]

use anyhow::{Context, Result, ensure};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weft_tests::{Cluster, eventually, path, weft_binary, weft_ok};

const PATIENCE: Duration = Duration::from_secs(120);

/// A metadata server that `weft dev` knows nothing of; ends with the test.
struct Server {
    id: u64,
    address: String,
    process: Child,
}

impl Server {
    /// Starts one with an empty folder, which knows of the group where to ask.
    fn start(cluster: &Cluster, id: u64, ask: &str) -> Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        drop(listener);
        let folder = cluster.scratch(&format!("metadata-{id}"))?;
        let log = File::create(cluster.dir().join("log").join(format!("metadata-{id}.log")))?;
        let mut command = Command::new(weft_binary());
        command
            .args(["metadata", "--id", &id.to_string(), "--data-dir", path(&folder)])
            .args(["--peer", &format!("{id}={address}"), "--peer", &format!("1={ask}")])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        // SAFETY: one system call, which takes no memory.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let process = command.spawn().context("start a metadata server")?;
        Ok(Self { id, address, process })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

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
    let seeds = cluster.address()?;
    let ended = AtomicBool::new(false);
    let servers = thread::scope(|scope| {
        let load = scope.spawn(|| use_it(&dir, &ended));
        let replaced = replace_all(&cluster, &seeds);
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

fn replace_all(cluster: &Cluster, seeds: &str) -> Result<Vec<Server>> {
    let mut servers: Vec<Server> = Vec::new();
    let mut ask = seeds.split(',').next().context("no server is known")?.to_owned();
    for old in 1..=3u64 {
        let server = Server::start(cluster, old + 3, &ask)?;
        let (id, replaced) = (server.id.to_string(), old.to_string());
        let known = format!("{seeds},{ask}");
        weft_ok(&["metadata", "replace", &replaced, &id, &server.address, "--cluster", &known])?;
        ask = server.address.clone();
        servers.push(server);
        eventually(PATIENCE, "the old server has ended", || {
            let status = cluster.status().ok()?;
            status["metadata"][old as usize - 1]["pid"].is_null().then_some(())
        })?;
    }
    Ok(servers)
}
