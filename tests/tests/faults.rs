//! Death, damage and want: killed daemons, flipped bytes, a full pool. Names the invariants (design
//! §2) that each test holds up.

use anyhow::{Context, Result, anyhow, bail, ensure};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use weft_client::{Filesystem, Options};
use weft_fuse::{Adapter, Handler, Outcome, abi};
use weft_tests::{Cluster, Shape, data, eventually, requests};

/// Writes files `name.0`, `name.1`, … each fsynced, until told to stop; answers how many are
/// acknowledged.
fn write_until(dir: &Path, name: &str, stop: &AtomicBool, done: &AtomicU64) -> Result<u64> {
    let mut i = 0;
    while !stop.load(Ordering::Relaxed) {
        let path = dir.join(format!("{name}.{i}"));
        let mut file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        file.write_all(&content(name, i))?;
        file.sync_all().with_context(|| format!("fsync {}", path.display()))?;
        drop(file);
        i += 1;
        done.store(i, Ordering::Relaxed);
    }
    Ok(i)
}

fn content(name: &str, i: u64) -> Vec<u8> {
    let seed = name.bytes().fold(i, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
    // From a few bytes (inline) to a few stripes.
    data::bytes(seed, 1 << (4 + seed % 18))
}

fn verify(dir: &Path, name: &str, count: u64) -> Result<()> {
    for i in 0..count {
        let path = dir.join(format!("{name}.{i}"));
        let found = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        ensure!(found == content(name, i), "{} has wrong content", path.display());
    }
    Ok(())
}

/// I1, I2: two of six daemons die while files are written; everything reads back, nothing the
/// application did failed, and what was written after can lose two more.
#[test]
fn two_storage_daemons_die() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.mnt();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let more = |n: u64| {
        let until = done.load(Ordering::Relaxed) + n;
        eventually(Duration::from_secs(60), "more files written", || {
            (done.load(Ordering::Relaxed) >= until).then_some(())
        })
    };
    let count = thread::scope(|s| -> Result<u64> {
        let writer = s.spawn(|| write_until(m, "a", &stop, &done));
        let killed = (|| {
            more(20)?;
            cluster.kill_storage(1)?;
            cluster.kill_storage(4)?;
            more(20)
        })();
        stop.store(true, Ordering::Relaxed);
        let count = writer.join().expect("the writer does not panic")?;
        killed.map(|()| count)
    })?;
    cluster.remount()?;
    verify(m, "a", count)?;

    // Four live: new data is 2+2 and survives the loss of two of those four.
    fs::write(m.join("late"), content("late", 3))?;
    let late = data::bytes(99, 5 << 20);
    fs::write(m.join("large"), &late)?;
    cluster.start_again()?;
    cluster.await_targets("up", 6)?;
    cluster.kill_storage(0)?;
    cluster.kill_storage(2)?;
    cluster.remount()?;
    ensure!(fs::read(m.join("late"))? == content("late", 3));
    ensure!(fs::read(m.join("large"))? == late);
    verify(m, "a", count)?;

    cluster.start_again()?;
    cluster.await_targets("up", 6)?;
    cluster.await_clean()
}

/// I2, I4: the metadata leader dies during writes, twice; no call fails, nothing is lost.
#[test]
fn the_metadata_leader_dies() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.mnt();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let count = thread::scope(|s| -> Result<u64> {
        let writer = s.spawn(|| write_until(m, "a", &stop, &done));
        let killed = (|| {
            for _ in 0..2 {
                let until = done.load(Ordering::Relaxed) + 20;
                eventually(Duration::from_secs(60), "more files written", || {
                    (done.load(Ordering::Relaxed) >= until).then_some(())
                })?;
                cluster.kill_leader()?;
                let until = done.load(Ordering::Relaxed) + 5;
                eventually(Duration::from_secs(60), "writes after the leader died", || {
                    (done.load(Ordering::Relaxed) >= until).then_some(())
                })?;
                cluster.start_again()?;
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        let count = writer.join().expect("the writer does not panic")?;
        killed.map(|()| count)
    })?;
    cluster.remount()?;
    verify(m, "a", count)?;
    cluster.await_clean()
}

/// I2: everything is killed at once in mid-write; what was fsynced is there and right after a
/// start.
#[test]
fn everything_dies_at_once() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.mnt();
    for round in 0..2 {
        let names = [format!("r{round}a"), format!("r{round}b")];
        let stop = AtomicBool::new(false);
        let done = [AtomicU64::new(0), AtomicU64::new(0)];
        thread::scope(|s| -> Result<()> {
            for (name, done) in names.iter().zip(&done) {
                // Ends with an error when the mount dies: that is the point.
                s.spawn(|| drop(write_until(m, name, &stop, done)));
            }
            let killed = eventually(Duration::from_secs(60), "30 files each", || {
                done.iter().all(|d| d.load(Ordering::Relaxed) >= 30).then_some(())
            })
            .and_then(|()| cluster.kill_all());
            stop.store(true, Ordering::Relaxed);
            killed
        })?;
        cluster.start_again()?;
        cluster.await_targets("up", 6)?;
        for (name, done) in names.iter().zip(&done) {
            verify(m, name, done.load(Ordering::Relaxed))?;
        }
    }
    cluster.await_clean()
}

/// Nobody would ever close it.
#[test]
fn what_a_killed_process_was_opening_is_not_left_open() -> Result<()> {
    let cluster = Cluster::start()?;
    let there = cluster.mount_again("there")?;
    fs::write(there.join("old"), "old")?;
    for name in ["old", "new"] {
        let mut attempt = 0;
        let file = eventually(Duration::from_secs(60), "an open that waits", || {
            // One that was killed too late has made its file.
            attempt += 1;
            let own = if name == "new" { format!("{name}{attempt}") } else { name.into() };
            let file = cluster.mnt().join(own);
            match kill_while_it_opens(&cluster, &file, name == "old") {
                Ok(true) => Some(Ok(file)),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            }
        })??;
        eventually(Duration::from_secs(60), "the file", || file.exists().then_some(()))?;
        cluster.await_opens(&[0, 0]).context(name)?;
    }
    cluster.await_clean()
}

/// Kills a process that waits for the answer to its open. `false`: it was another request that it
/// waited for, as a lease had ended just then, or as one that needs no server was being answered.
fn kill_while_it_opens(cluster: &Cluster, file: &Path, exists: bool) -> Result<bool> {
    // The open has to be the first that is asked of the group.
    eventually(Duration::from_secs(60), "a lease on the name", || {
        let before = requests(cluster.mnt()).ok()?;
        let found = file.exists() == exists;
        (found && requests(cluster.mnt()).ok()? == before).then_some(())
    })?;
    let paused = cluster.pause_metadata()?;
    let mut child = Command::new("dd")
        .args(["if=/dev/null", "conv=notrunc", &format!("of={}", file.display())])
        .stderr(Stdio::null())
        .spawn()?;
    let waits = eventually(Duration::from_secs(60), "a request that waits", || {
        let stack = fs::read_to_string(format!("/proc/{}/stack", child.id())).ok()?;
        stack.contains("request_wait_answer").then_some(stack)
    });
    child.kill()?;
    child.wait()?;
    drop(paused);
    let waits = waits?;
    Ok(["fuse_create_open", "fuse_file_open", "fuse_open"].iter().any(|f| waits.contains(f)))
}

/// The same of a directory. That cannot be had with a real caller: the kernel asks for attributes
/// first, and is answered with a lease.
#[test]
fn a_directory_that_a_killed_process_was_opening_is_not_left_open() -> Result<()> {
    const OPENDIR: u32 = 27;
    let cluster = Cluster::start()?;
    let servers = cluster.address()?.split(',').map(str::to_owned).collect();
    // Of the root: the length, the request, its number and node; user, group and process; the
    // record.
    let head = [48u32, OPENDIR].map(u32::to_ne_bytes).concat();
    let request = [head, [7u64, 1].map(u64::to_ne_bytes).concat(), vec![0; 24]].concat();
    tokio::runtime::Runtime::new()?.block_on(async {
        let fs = Filesystem::connect(Options::new(servers, cluster.transport()?)).await?;
        let adapter = Adapter::new(fs.clone());
        let opened = match adapter.handle(&abi::decode(&request)?) {
            Outcome::Working(work) => work.await,
            _ => bail!("an open of a directory need not ask"),
        };
        let reply = opened.map_err(|error| anyhow!("{error:?}"))?;
        tokio::task::block_in_place(|| cluster.await_opens(&[0, 1]))?;
        adapter.unwanted(&abi::decode(&request)?.header, &reply);
        tokio::task::block_in_place(|| cluster.await_opens(&[0, 0]))?;
        Ok(fs.shutdown().await?)
    })
}

/// What is open under a lease is told to the next leader, and has to be closed there.
#[test]
fn what_was_open_when_a_leader_died_is_closed_at_the_next() -> Result<()> {
    let cluster = Cluster::start()?;
    let (file, dir) = (cluster.mnt().join("f"), cluster.mnt().join("d"));
    fs::write(&file, "content")?;
    fs::create_dir(&dir)?;
    cluster.remount()?;
    let open = [File::open(&file)?, File::open(&dir)?];
    cluster.await_opens(&[0])?;
    cluster.kill_leader()?;
    cluster.await_opens(&[2])?;
    drop(open);
    cluster.await_opens(&[0])?;
    cluster.start_again()?;
    cluster.await_clean()
}

/// I3: damage up to m is read around, counted and logged; beyond m it is `EIO`, never wrong bytes.
#[test]
fn damaged_shards() -> Result<()> {
    let cluster = Cluster::start_as(Shape { target_size: "128MiB", ..Shape::default() })?;
    let m = cluster.mnt();
    let unit = 128 << 10;
    let content = data::bytes(5, 4 * unit);
    fs::write(m.join("f"), &content)?;

    ensure!(cluster.flip(&content[..64])? == 1, "the first shard is found once on disk");
    cluster.remount()?;
    ensure!(fs::read(m.join("f"))? == content, "one damaged shard");
    eventually(Duration::from_secs(60), "the daemon logs and counts the damage", || {
        let logged = cluster.logs().lines().any(|l| l.contains("corrupt") && l.contains("target="));
        let status = weft_tests::weft_ok(&[
            "target",
            "list",
            "--cluster",
            &cluster.address().ok()?,
            "--output",
            "json",
        ])
        .ok()?;
        let status: serde_json::Value = serde_json::from_str(&status).ok()?;
        let mut targets = status.as_array()?.iter();
        let counted = targets.any(|t| t["checksum_errors"].as_u64().is_some_and(|n| n > 0));
        (logged && counted).then_some(())
    })?;

    // It is made anew in another place.
    await_healed(&cluster)?;
    ensure!(cluster.flip(&content[..64])? == 1, "the first shard is there again, once");
    ensure!(cluster.flip(&content[unit..unit + 64])? == 1);
    cluster.remount()?;
    ensure!(fs::read(m.join("f"))? == content, "two damaged shards");
    await_healed(&cluster)?;

    ensure!(cluster.flip(&content[..64])? == 1);
    ensure!(cluster.flip(&content[unit..unit + 64])? == 1);
    ensure!(cluster.flip(&content[2 * unit..2 * unit + 64])? == 1);
    cluster.remount()?;
    let mut buffer = vec![0; 4096];
    let file = File::open(m.join("f"))?;
    let error = file.read_exact_at(&mut buffer, 0).expect_err("three damaged shards");
    ensure!(error.raw_os_error() == Some(libc::EIO), "three damaged shards: {error}");
    ensure!(buffer == vec![0; 4096], "no bytes are given out with an error");
    // What is not damaged stays readable.
    file.read_exact_at(&mut buffer, 3 * unit as u64)?;
    ensure!(buffer == content[3 * unit..3 * unit + 4096]);
    Ok(())
}

/// Waits until no target finds anything damaged.
fn await_healed(cluster: &Cluster) -> Result<()> {
    let address = cluster.address()?;
    eventually(Duration::from_secs(60), "everything is whole again", || {
        weft_tests::weft_ok(&["target", "scrub", "--cluster", &address]).ok()
    })
    .map(drop)
}

/// I8: a full pool is `ENOSPC`; deleting brings the space back.
#[test]
fn the_pool_fills_up() -> Result<()> {
    let cluster = Cluster::start_as(Shape { target_size: "64MiB", ..Shape::default() })?;
    let m = cluster.mnt();
    fs::write(m.join("keep"), data::bytes(1, 3 << 20))?;
    for round in 0..2 {
        let error = (0..)
            .find_map(|i| {
                let write = || {
                    let mut file = File::create(m.join(format!("fill.{i}")))?;
                    file.write_all(&data::bytes(i, 8 << 20))?;
                    file.sync_all()
                };
                assert!(i < 100, "800 MiB went into a pool of 256 MiB");
                write().err()
            })
            .context("the pool never filled")?;
        ensure!(error.kind() == ErrorKind::StorageFull, "round {round}: {error}");
        for entry in fs::read_dir(m)? {
            let entry = entry?;
            if entry.file_name() != "keep" {
                fs::remove_file(entry.path())?;
            }
        }
        eventually(Duration::from_secs(60), "space after deleting", || {
            let write = || {
                let mut file = File::create(m.join("new"))?;
                file.write_all(&data::bytes(2, 8 << 20))?;
                file.sync_all()
            };
            write().ok()
        })?;
        ensure!(fs::read(m.join("new"))? == data::bytes(2, 8 << 20));
        fs::remove_file(m.join("new"))?;
    }
    ensure!(fs::read(m.join("keep"))? == data::bytes(1, 3 << 20));
    cluster.await_clean()
}
