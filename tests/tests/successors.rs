//! A mount that dies, and the one that is made in its place; and what can be waited for before.

use anyhow::{Result, ensure};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;
use weft_tests::{Cluster, path, weft_ok};

/// What the cluster says of sessions that were ended since another mount was made in their place.
fn replaced(cluster: &Cluster) -> Result<usize> {
    let address = cluster.address()?;
    let told = weft_ok(&["events", "--cluster", &address, "-n", "1000"])?;
    Ok(told.lines().filter(|line| line.contains("another was started in its place")).count())
}

fn mount(cluster: &Cluster, at: &Path) -> Result<()> {
    let log = cluster.dir().join("log/mount-again.log");
    let address = cluster.address()?;
    weft_ok(&["mount", "--cluster", &address, "--log-file", path(&log), path(at)]).map(drop)
}

/// It frees at once what that one held, and is none itself that anybody would end.
#[test]
fn a_mount_ends_the_session_of_the_dead_one_before_it() -> Result<()> {
    let cluster = Cluster::start()?;
    let other = cluster.mount_again("second")?;
    for round in 0..3 {
        let name = format!("f{round}");
        let mut held = File::create(other.join(&name))?;
        held.write_all(b"synced")?;
        held.sync_all()?;
        held.write_all(b", and not")?;
        cluster.kill_mount(&other)?;
        drop(held);
        weft_ok(&["umount", path(&other)])?;
        mount(&cluster, &other)?;
        ensure!(replaced(&cluster)? == round + 1, "its session was not ended in round {round}");
        for mnt in [cluster.mnt(), &other] {
            ensure!(fs::read(mnt.join(&name))?.starts_with(b"synced"), "round {round}");
        }
    }
    // In good order.
    weft_ok(&["umount", path(&other)])?;
    mount(&cluster, &other)?;
    ensure!(replaced(&cluster)? == 3, "there was no session to end");
    weft_ok(&["umount", path(&other)])?;
    cluster.await_clean()
}

/// One that was detached, and goes on while its files are open.
#[test]
fn a_mount_leaves_the_session_of_one_that_lives() -> Result<()> {
    let cluster = Cluster::start()?;
    let other = cluster.mount_again("second")?;
    let mut held = File::create(other.join("f"))?;
    held.write_all(b"before")?;
    weft_ok(&["umount", "--lazy", path(&other)])?;
    mount(&cluster, &other)?;
    held.write_all(b", after")?;
    held.sync_all()?;
    ensure!(replaced(&cluster)? == 0, "the session of a mount that lives was ended");
    ensure!(fs::read(other.join("f"))? == b"before, after");
    drop(held);
    weft_ok(&["umount", path(&other)])?;
    cluster.await_clean()
}

/// Also if another process took it over in between.
#[test]
fn a_mount_that_was_taken_over_has_a_successor_too() -> Result<()> {
    let cluster = Cluster::start()?;
    let other = cluster.mount_again("second")?;
    weft_ok(&["mount", "--takeover", path(&other)])?;
    let mut held = OpenOptions::new().create(true).append(true).open(other.join("f"))?;
    held.write_all(b"synced")?;
    held.sync_all()?;
    ensure!(replaced(&cluster)? == 0);
    cluster.kill_mount(&other)?;
    drop(held);
    weft_ok(&["umount", path(&other)])?;
    mount(&cluster, &other)?;
    ensure!(replaced(&cluster)? == 1, "its session was not ended");
    ensure!(fs::read(other.join("f"))? == b"synced");
    weft_ok(&["umount", path(&other)])?;
    cluster.await_clean()
}

#[test]
fn what_weft_sync_has_waited_for_outlives_the_mount() -> Result<()> {
    let cluster = Cluster::start()?;
    let other = cluster.mount_again("second")?;
    for round in 0..3 {
        let dir = other.join(format!("d{round}"));
        fs::create_dir(&dir)?;
        let mut open = File::create(dir.join("open"))?;
        open.write_all(&[1; 100_000])?;
        (0..20).try_for_each(|n| fs::write(dir.join(n.to_string()), [2; 5000]))?;
        let mapped = OpenOptions::new().read(true).write(true).open(dir.join("5"))?;
        let (prot, map) = (libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a mapping of a file that nobody cuts short.
        let stored = unsafe {
            let stored = libc::mmap(ptr::null_mut(), 5000, prot, map, mapped.as_raw_fd(), 0);
            ensure!(stored != libc::MAP_FAILED, "cannot map it");
            stored.cast::<u8>().write_bytes(3, 5000);
            stored
        };
        fs::rename(dir.join("0"), dir.join("moved"))?;
        fs::remove_file(dir.join("1"))?;
        weft_ok(&["sync", path(&dir)])?;
        cluster.kill_mount(&other)?;
        // SAFETY: it was mapped above, and is not used any more.
        ensure!(unsafe { libc::munmap(stored, 5000) } == 0);
        drop((open, mapped));
        weft_ok(&["umount", path(&other)])?;
        mount(&cluster, &other)?;
        let there = cluster.mnt().join(format!("d{round}"));
        ensure!(fs::read(there.join("open"))? == [1; 100_000], "round {round}");
        let names = fs::read_dir(&there)?.count();
        ensure!(names == 20 && fs::read(there.join("moved"))? == [2; 5000], "{names} names");
        ensure!(fs::read(there.join("5"))? == [3; 5000], "what was stored through a mapping");
        ensure!(!there.join("0").exists() && !there.join("1").exists());
    }
    let said = weft_ok(&["sync", path(cluster.dir())]).unwrap_err();
    let said = said.to_string();
    ensure!(said.contains("not in a mount of weft"), "{said}");
    weft_ok(&["umount", path(&other)])?;
    cluster.await_clean()
}
