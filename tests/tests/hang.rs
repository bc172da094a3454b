//! A drive that hangs: its requests are never answered, and nobody who can do without it waits for
//! it for long; and one that errs when its daemon starts. Names the invariants (design §2) that
//! each test holds up.

use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::io::Write;
use std::thread;
use std::time::Duration;
use weft_tests::{Cluster, Shape, data, eventually, path, weft};

const FILES: u64 = 24;
/// Long enough for segments on all targets, in short segments of a few stripes.
const LEN: usize = 600_000;

/// I2, I3, I8: reads of everything and new writes succeed while one of six drives hangs; the target
/// goes down, and comes back whole when the drive does.
#[test]
fn a_hanging_drive_stops_nobody() -> Result<()> {
    let cluster = Cluster::start_as(Shape { target_size: "256MiB", ..Shape::default() })?;
    let drive = cluster.hang_drive(2)?;
    let m = cluster.mnt();
    let content = |i: u64| data::bytes(i, LEN);
    let write = |i: u64| -> Result<()> {
        let mut file = File::create(m.join(format!("f{i}")))?;
        file.write_all(&content(i))?;
        Ok(file.sync_all()?)
    };
    let verify = |count: u64| -> Result<()> {
        for i in 0..count {
            ensure!(fs::read(m.join(format!("f{i}")))? == content(i), "f{i} has wrong content");
        }
        Ok(())
    };
    (0..FILES).try_for_each(write)?;
    cluster.remount()?;

    drive.hang();
    verify(FILES)?;
    drive.await_victim(Duration::from_secs(60))?;
    (FILES..FILES * 2).try_for_each(write)?;
    verify(FILES * 2)?;
    cluster.await_targets("down", 1)?;
    cluster.remount()?;
    verify(FILES * 2)?;

    drive.go_on();
    cluster.await_targets("up", 6)?;
    cluster.remount()?;
    verify(FILES * 2)?;
    write(FILES * 2)?;
    let told = fs::read_dir(cluster.dir().join("log"))?.flatten().any(|log| {
        fs::read_to_string(log.path()).is_ok_and(|log| log.contains("a slow request op=\"GET\""))
    });
    ensure!(told, "no log tells who waited");
    cluster.await_clean()
}

/// I2: a drive that errs while its daemon starts, as one behind a fabric that is away for a moment
/// does, costs no chunk: the target waits until it can be read, then has everything.
#[test]
fn a_drive_that_errs_at_start_loses_nothing() -> Result<()> {
    let cluster = Cluster::start_as(Shape { target_size: "256MiB", ..Shape::default() })?;
    let drive = cluster.hang_drive(2)?;
    let m = cluster.mnt();
    for i in 0..FILES {
        let mut file = File::create(m.join(format!("f{i}")))?;
        file.write_all(&data::bytes(i, LEN))?;
        file.sync_all()?;
    }
    let before = chunks(&cluster)?;

    // Between the journal, which has what the index was not told durably, and the last superblock.
    let size = 256 << 20;
    drive.err_in((1 + size / 4096 / 64) * 4096..size - 4096);
    cluster.kill_storage(2)?;
    thread::scope(|s| -> Result<()> {
        let start = s.spawn(|| cluster.start_again());
        let waits = eventually(Duration::from_secs(60), "a start that meets the error", || {
            cluster.logs().contains("will try again").then_some(())
        });
        drive.err_in(0..0);
        start.join().expect("no panic").and(waits)
    })?;
    cluster.await_targets("up", 6)?;
    ensure!(!cluster.logs().contains("is not whole and is dropped"));
    ensure!(chunks(&cluster)? == before, "the cluster has other chunks than before");
    cluster.remount()?;
    for i in 0..FILES {
        ensure!(fs::read(m.join(format!("f{i}")))? == data::bytes(i, LEN), "f{i}");
    }
    cluster.await_clean()
}

/// Chunks on all targets.
fn chunks(cluster: &Cluster) -> Result<u64> {
    cluster.await_clean()?;
    let (_, report) = cluster.fsck()?;
    report["chunks"].as_u64().with_context(|| format!("no chunks in {report}"))
}

/// A daemon whose drive hangs still ends when it is told to.
#[test]
fn a_daemon_with_a_hanging_drive_stops() -> Result<()> {
    let cluster = Cluster::start_as(Shape { target_size: "256MiB", ..Shape::default() })?;
    let drive = cluster.hang_drive(1)?;
    let m = cluster.mnt();
    drive.hang();
    fs::write(m.join("f"), data::bytes(1, LEN))?;
    drive.await_victim(Duration::from_secs(60))?;
    let args = ["dev", "stop", "--dir", path(cluster.dir()), "--timeout", "90"];
    thread::scope(|s| -> Result<()> {
        let stop = s.spawn(|| weft(&args));
        let left = eventually(Duration::from_secs(60), "a daemon that gives its drive up", || {
            cluster.logs().contains("left behind").then_some(())
        });
        // The daemon is through, but the kernel keeps every process until its requests have ended.
        drive.go_on();
        let stop = stop.join().expect("no panic")?;
        let said = String::from_utf8_lossy(&stop.stderr);
        ensure!(stop.status.success() && !said.contains("killed"), "{said}");
        left
    })?;
    cluster.start_again()?;
    ensure!(fs::read(m.join("f"))? == data::bytes(1, LEN));
    Ok(())
}
