//! The process of a mount dies while it tells the kernel of a change in a directory that a request
//! holds: a thread of it waits in the kernel then, until somebody ends the connection. Needs root.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use weft_fuse::Connection;
use weft_tests::{Cluster, Paused, Shape, eventually, path, run, weft_ok};

const PATIENCE: Duration = Duration::from_secs(60);
/// Programs on each mount.
const PROGRAMS: usize = 4;

fn small() -> Result<Cluster> {
    let shape = Shape { metadata: 1, storage: 3, profile: "2+1", ..Default::default() };
    Cluster::start_as(shape)
}

/// Programs that make names in one directory, look at each other's and remove them, until they are
/// told to end or that fails.
struct Programs {
    stop: Arc<AtomicBool>,
    /// Each says when it has ended, and its mount.
    ended: Receiver<PathBuf>,
}

impl Programs {
    fn start(mounts: &[&Path]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (end, ended) = channel();
        let name = |number: usize| format!("dir/{number}");
        let count = mounts.len() * PROGRAMS;
        for number in 0..count {
            let (stop, end) = (stop.clone(), end.clone());
            let mount = mounts[number % mounts.len()].to_owned();
            thread::spawn(move || {
                let own = mount.join(name(number));
                let turn = || -> std::io::Result<()> {
                    File::create(&own)?;
                    (0..count).for_each(|other| drop(fs::metadata(mount.join(name(other)))));
                    fs::remove_file(&own)
                };
                while !stop.load(Ordering::Relaxed) && turn().is_ok() {}
                let _ = end.send(mount);
            });
        }
        Self { stop, ended }
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Whether a thread of this process tells the kernel of a name, and waits.
fn is_stuck(pid: i32) -> Option<()> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let mut waits = threads.filter_map(|t| fs::read_to_string(t.path().join("wchan")).ok());
    waits.any(|at| at == "fuse_reverse_inval_entry").then_some(())
}

/// Has the process of a mount die while it waits, and waits for the programs below `at` to hear of
/// it: there the mount is seen. The rest go on.
fn die_stuck(cluster: &Cluster, pid: Pid, at: &Path, signal: Signal) -> Result<()> {
    fs::create_dir_all(cluster.mnt().join("dir"))?;
    let programs = Programs::start(&[at, cluster.mnt()]);
    let paused = eventually(PATIENCE, "a notice waits for a request", || {
        let paused = cluster.pause_metadata().ok()?;
        is_stuck(pid.as_raw()).map(|()| paused)
    })?;
    kill(pid, signal)?;
    for _ in 0..PROGRAMS {
        let ended = programs.ended.recv_timeout(PATIENCE).context("who waits is not let go")?;
        ensure!(ended == at, "a program on {} failed", ended.display());
    }
    drop(paused);
    Ok(())
}

fn who_waits_is_let_go(signal: Signal) -> Result<()> {
    let cluster = small()?;
    let at = cluster.mount_again("dies")?;
    die_stuck(&cluster, cluster.pid_of_mount(&at)?, &at, signal)?;
    eventually(PATIENCE, "it can be unmounted", || weft_ok(&["umount", path(&at)]).ok())?;
    cluster.await_clean()
}

#[test]
fn who_waits_for_a_mount_that_was_killed_is_let_go() -> Result<()> {
    who_waits_is_let_go(Signal::SIGKILL)
}

#[test]
fn who_waits_for_a_mount_that_has_crashed_is_let_go() -> Result<()> {
    who_waits_is_let_go(Signal::SIGABRT)
}

#[test]
fn a_mount_that_was_killed_comes_back() -> Result<()> {
    let cluster = small()?;
    let at = cluster.mount_with("dies", &["--supervise"])?;
    die_stuck(&cluster, cluster.pid_of_mount(&at)?, &at, Signal::SIGKILL)?;
    eventually(PATIENCE, "it is back", || File::create(at.join("dir/back")).ok())?;
    weft_ok(&["umount", path(&at)])?;
    cluster.await_clean()
}

/// The process that has started another.
fn parent(pid: Pid) -> Result<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let behind = stat.rsplit_once(") ").context("a state behind the name")?.1;
    behind.split(' ').nth(1).context("a parent")?.parse().context("a number")
}

/// Somebody mounts anew by hand while it is about to come back: who looked after it ends.
#[test]
fn a_mount_that_was_mounted_anew_by_hand_is_not_brought_back() -> Result<()> {
    let cluster = small()?;
    let at = cluster.mount_with("dies", &["--supervise"])?;
    let died = cluster.pid_of_mount(&at)?;
    let supervisor = parent(died)?;
    let paused = cluster.pause_metadata()?;
    kill(died, Signal::SIGKILL)?;
    let children = format!("/proc/{supervisor}/task/{supervisor}/children");
    let tries = eventually(PATIENCE, "it is to come back", || {
        let all = fs::read_to_string(&children).ok()?;
        let mut all = all.split_whitespace().filter_map(|pid| pid.parse().ok());
        all.find(|pid| *pid != died.as_raw())
    })?;
    let late = Paused::all(vec![tries])?;
    drop(paused);
    run("umount", &["--lazy", path(&at)], Path::new("/"))?;
    ensure!(cluster.mount_again("dies")? == at);
    drop(late);
    eventually(PATIENCE, "nobody looks after what has died", || {
        let status = fs::read_to_string(format!("/proc/{supervisor}/status"));
        status.map_or(true, |text| text.contains("State:\tZ")).then_some(())
    })?;
    File::create(at.join("lives"))?.sync_all()?;
    weft_ok(&["umount", path(&at)])?;
    cluster.await_clean()
}

/// One that was detached dies, or ends: its programs are let go, and what is mounted there by now
/// lives.
#[test]
fn a_detached_mount_that_was_killed_takes_no_other_with_it() -> Result<()> {
    let cluster = small()?;
    let at = cluster.mount_again("dies")?;
    let pid = cluster.pid_of_mount(&at)?;
    let root = File::open(&at)?;
    weft_ok(&["umount", "--lazy", path(&at)])?;
    ensure!(cluster.mount_again("dies")? == at);
    let detached = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
    die_stuck(&cluster, pid, &detached, Signal::SIGKILL)?;
    File::create(at.join("dir/lives"))?.sync_all()?;
    drop(root);

    // Nor does one that is told to stop.
    let pid = cluster.pid_of_mount(&at)?;
    let root = File::open(&at)?;
    weft_ok(&["umount", "--lazy", path(&at)])?;
    ensure!(cluster.mount_again("dies")? == at);
    kill(pid, Signal::SIGTERM)?;
    eventually(PATIENCE, "the detached one has ended", || {
        let status = fs::read_to_string(format!("/proc/{pid}/status"));
        status.map_or(true, |text| text.contains("State:\tZ")).then_some(())
    })?;
    ensure!(weft_fuse::mount_at(&at)?.is_some_and(|mount| mount.is_weft()), "it was unmounted");
    File::create(at.join("dir/lives on"))?.sync_all()?;
    drop(root);
    weft_ok(&["umount", path(&at)])?;
    cluster.await_clean()
}

/// The kernel gives the number of a connection to whoever mounts next.
#[test]
fn a_connection_that_is_over_takes_no_other_with_it() -> Result<()> {
    let cluster = small()?;
    let first = cluster.mount_again("first")?;
    let over = Connection::at(&first).context("no connection")?;
    ensure!(over.life.is_some(), "nothing at /sys/fs/fuse/connections tells it from others");
    weft_ok(&["umount", path(&first)])?;
    let next = cluster.mount_again("next")?;
    let lives = Connection::at(&next).context("no connection")?;
    // Others may have mounted meanwhile: as if its number had gone to this one.
    let over = Connection { device: lives.device.clone(), ..over };
    ensure!(!over.abort()?, "another connection was aborted");
    File::create(next.join("lives"))?.sync_all()?;
    ensure!(lives.abort()?);
    let error = fs::metadata(next.join("lives")).err().context("it was not aborted")?;
    let is_dead = [libc::ENOTCONN, libc::ECONNABORTED].map(Some).contains(&error.raw_os_error());
    ensure!(is_dead, "{error}");
    weft_ok(&["umount", "--dead", path(&next)])?;
    cluster.await_clean()
}
