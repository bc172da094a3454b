//! A drive that hangs: its requests are never answered, and nobody who can do without it waits for
//! it for long. Names the invariants (design §2) that each test holds up.

use anyhow::{Result, ensure};
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
    drive.await_victim(Duration::from_secs(20))?;
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
    cluster.await_clean()
}

/// A daemon whose drive hangs still ends when it is told to.
#[test]
fn a_daemon_with_a_hanging_drive_stops() -> Result<()> {
    let cluster = Cluster::start_as(Shape { target_size: "256MiB", ..Shape::default() })?;
    let drive = cluster.hang_drive(1)?;
    let m = cluster.mnt();
    drive.hang();
    fs::write(m.join("f"), data::bytes(1, LEN))?;
    drive.await_victim(Duration::from_secs(20))?;
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
