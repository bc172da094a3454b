//! What dies comes back: the processes of mounts, the driver, and both at once.

use crate::container::Container;
use crate::plugin::{MIB, PATIENCE, Plugin, mounts_below, publishing_of, small, staging_of};
use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use weft_csi::wire::*;
use weft_tests::{Cluster, Paused, eventually};

/// A volume that two workloads have, one to read.
pub struct InUse {
    pub volume: Volume,
    pub staging: PathBuf,
    pub write: PathBuf,
    pub read: PathBuf,
}

impl InUse {
    pub fn begin(cluster: &Cluster, plugin: &Plugin, name: &str) -> Result<Self> {
        let pods = cluster.scratch("pods")?;
        let volume = plugin.create(name, 64 * MIB)?;
        let staging = cluster.scratch(&format!("staging-{name}"))?;
        let (write, read) = (pods.join(format!("{name}-w")), pods.join(format!("{name}-r")));
        plugin.stage(staging_of(&volume, &staging))?;
        plugin.publish(publishing_of(&volume, &staging, &write))?;
        let request = publishing_of(&volume, &staging, &read);
        plugin.publish(NodePublishVolumeRequest { readonly: true, ..request })?;
        let mut file = File::create(write.join("file"))?;
        file.write_all(b"synced")?;
        file.sync_all()?;
        Ok(Self { volume, staging, write, read })
    }

    fn kill_mount(&self, plugin: &Plugin) -> Result<i32> {
        let process = plugin.mount_process(&self.staging)?;
        kill(Pid::from_raw(process), Signal::SIGKILL)?;
        Ok(process)
    }

    /// All of it can be used as before.
    fn is_back(&self) -> bool {
        let reads = |at: &Path| fs::read(at.join("file")).is_ok_and(|found| found == b"synced");
        let denied = fs::write(self.read.join("new"), "");
        reads(&self.write)
            && reads(&self.read)
            && fs::write(self.write.join("new"), "usable").is_ok()
            && denied.is_err_and(|e| e.raw_os_error() == Some(libc::EROFS))
    }

    /// What has died so often stays where workloads see it: they would see nothing in its place.
    pub fn await_back(&self, deaths: usize) -> Result<()> {
        eventually(PATIENCE, "the volume is back", || self.is_back().then_some(()))?;
        let all = [(&self.staging, 1), (&self.write, 1 + deaths), (&self.read, 1 + deaths)];
        for (at, wanted) in all {
            let found = mounts_below(at)?;
            ensure!(found.len() == wanted, "{found:?}");
        }
        Ok(())
    }

    pub fn end(&self, plugin: &Plugin) -> Result<()> {
        let id = &self.volume.volume_id;
        plugin.unpublish(id, &self.write)?;
        plugin.unpublish(id, &self.read)?;
        plugin.unstage(id, &self.staging)?;
        plugin.delete(id)?;
        ensure!(mounts_below(&self.staging)?.is_empty());
        Ok(())
    }
}

pub fn is_dead(at: &Path) -> bool {
    let asked = nix::sys::statvfs::statvfs(at);
    matches!(asked, Err(nix::errno::Errno::ENOTCONN | nix::errno::Errno::ECONNABORTED))
}

#[test]
fn csi_a_mount_that_dies_is_made_anew() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start(&cluster)?;
    let used = InUse::begin(&cluster, &plugin, "pvc-1")?;
    for deaths in 1..=2 {
        let before = used.kill_mount(&plugin)?;
        eventually(PATIENCE, "another process serves it", || {
            (plugin.mount_process(&used.staging).ok()? != before).then_some(())
        })?;
        used.await_back(deaths)?;
    }
    // One that stands still is told of, and left alone.
    let process = plugin.mount_process(&used.staging)?;
    let paused = Paused::all(vec![process])?;
    let stats = plugin.stats(&used.volume.volume_id, &used.write)?;
    ensure!(stats.volume_condition.is_some_and(|told| told.abnormal), "it stands still");
    drop(paused);
    eventually(PATIENCE, "it goes on", || {
        let stats = plugin.stats(&used.volume.volume_id, &used.write).ok()?;
        (!stats.volume_condition?.abnormal).then_some(())
    })?;
    ensure!(plugin.mount_process(&used.staging)? == process && used.is_back());
    used.end(&plugin)?;
    plugin.stop()?;
    cluster.await_clean()
}

#[test]
fn csi_mounts_outlive_the_driver_or_come_back_with_the_next() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start(&cluster)?;
    let (lives, dies) = (
        InUse::begin(&cluster, &plugin, "pvc-lives")?,
        InUse::begin(&cluster, &plugin, "pvc-dies")?,
    );
    let gone = InUse::begin(&cluster, &plugin, "pvc-gone")?;
    let survivor = plugin.mount_process(&lives.staging)?;
    let folder = plugin.folder.clone();
    // The driver first: it must not put back what dies after it.
    let (dying, going) =
        (plugin.mount_process(&dies.staging)?, plugin.mount_process(&gone.staging)?);
    plugin.kill()?;
    for process in [dying, going] {
        kill(Pid::from_raw(process), Signal::SIGKILL)?;
    }
    for at in [&dies.write, &dies.read, &dies.staging, &gone.write] {
        eventually(PATIENCE, "its process is dead", || is_dead(at).then_some(()))?;
    }
    ensure!(lives.is_back(), "nobody needs the driver for what is mounted");
    // And a workload that has gone meanwhile, with its folders.
    for at in [&gone.write, &gone.read] {
        weft_tests::run("umount", &["-l", weft_tests::path(at)], &folder)?;
        fs::remove_dir(at)?;
    }
    let plugin = Plugin::start(&cluster)?;
    dies.await_back(1)?;
    lives.await_back(0)?;
    ensure!(plugin.mount_process(&lives.staging)? == survivor, "it was left alone");
    eventually(PATIENCE, "what nobody has any more is forgotten", || {
        plugin.unstage(&gone.volume.volume_id, &gone.staging).ok()
    })?;
    ensure!(!gone.write.exists() && mounts_below(&gone.write)?.is_empty());
    // Twice told is once done, for the next driver, too.
    plugin.stage(staging_of(&dies.volume, &dies.staging))?;
    plugin.publish(publishing_of(&dies.volume, &dies.staging, &dies.write))?;
    dies.end(&plugin)?;
    lives.end(&plugin)?;
    plugin.stop()?;
    cluster.await_clean()
}

/// One that stands still keeps the next driver from nothing that is to be done for others.
#[test]
fn csi_what_died_comes_back_beside_what_stands_still() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start(&cluster)?;
    let (stands, dies) = (
        InUse::begin(&cluster, &plugin, "pvc-stands")?,
        InUse::begin(&cluster, &plugin, "pvc-dies")?,
    );
    let standing = plugin.mount_process(&stands.staging)?;
    let dying = plugin.mount_process(&dies.staging)?;
    plugin.kill()?;
    kill(Pid::from_raw(dying), Signal::SIGKILL)?;
    for at in [&dies.write, &dies.read, &dies.staging] {
        eventually(PATIENCE, "its process is dead", || is_dead(at).then_some(()))?;
    }
    // The kernel has to ask what it knew of the folder.
    File::create(stands.write.join("last"))?;
    let paused = Paused::all(vec![standing])?;
    let plugin = Plugin::start(&cluster)?;
    dies.await_back(1)?;
    drop(paused);
    stands.await_back(0)?;
    ensure!(plugin.mount_process(&stands.staging)? == standing, "it was left alone");
    dies.end(&plugin)?;
    stands.end(&plugin)?;
    plugin.stop()?;
    cluster.await_clean()
}

/// More than the driver keeps of what has died at one place.
const DEATHS: usize = 9;

/// A container sees what is mounted on top of the mount that it began with, and nothing that is
/// mounted in its place.
#[test]
fn csi_a_container_that_runs_sees_what_comes_back() -> Result<()> {
    let cluster = small()?;
    let mut plugin = Plugin::start(&cluster)?;
    let used = InUse::begin(&cluster, &plugin, "pvc-1")?;
    let begin = |place: &Path, name: &str| Container::begin(place, &cluster.scratch(name)?);
    let (writer, reader) = (begin(&used.write, "writer")?, begin(&used.read, "reader")?);
    let see = |containers: &[&Container]| {
        let reads = |at: &Path| fs::read(at.join("file")).is_ok_and(|found| found == b"synced");
        containers.iter().all(|container| reads(&container.folder()))
    };
    ensure!(see(&[&writer, &reader]));
    let mut later = None;
    for deaths in 1..=DEATHS {
        let before = used.kill_mount(&plugin)?;
        // The driver may die with it, as all in one container do.
        if deaths == 2 {
            plugin.kill()?;
            plugin = Plugin::start(&cluster)?;
        }
        eventually(PATIENCE, "another process serves it", || {
            (plugin.mount_process(&used.staging).ok()? != before).then_some(())
        })?;
        eventually(PATIENCE, "the volume is back", || used.is_back().then_some(()))?;
        ensure!(see(&[&writer, &reader]), "after {deaths} deaths they see nothing");
        fs::write(writer.folder().join("inside"), "usable")?;
        let denied = fs::write(reader.folder().join("inside"), "");
        ensure!(denied.is_err_and(|e| e.raw_os_error() == Some(libc::EROFS)), "it is to be read");
        // One that begins between two of them sees the second, too.
        if deaths == 2 {
            ensure!(later.as_ref().is_some_and(|later| see(&[later])));
        }
        if deaths == 1 {
            later = Some(begin(&used.write, "later")?);
        }
        let layers = mounts_below(&used.write)?.len();
        ensure!((2..=8).contains(&layers), "{layers} on top of each other");
    }
    // They go before their volume does.
    drop((writer, reader, later));
    used.end(&plugin)?;
    plugin.stop()?;
    cluster.await_clean()
}

/// What is counted is listed.
#[test]
fn csi_calls_and_mounts_are_counted() -> Result<()> {
    let cluster = small()?;
    let free = TcpListener::bind("127.0.0.1:0")?;
    let address = free.local_addr()?.to_string();
    let plugin = Plugin::start_with(&cluster, &["--metrics", &address])?;
    drop(free);
    let used = InUse::begin(&cluster, &plugin, "pvc-1")?;
    ensure!(plugin.create("", MIB).is_err());
    let before = used.kill_mount(&plugin)?;
    eventually(PATIENCE, "another process serves it", || {
        (plugin.mount_process(&used.staging).ok()? != before).then_some(())
    })?;
    let mut all = String::new();
    let wanted = [
        "weft_csi_request_seconds_count{op=\"NodeStageVolume\"} 1",
        "weft_csi_errors_total{code=\"INVALID_ARGUMENT\",op=\"CreateVolume\"} 1",
        "weft_csi_mounts{state=\"alive\"} 1",
        "weft_csi_remounts_total 1",
    ];
    eventually(PATIENCE, "all of it is counted", || {
        all = read(&address).ok()?;
        wanted.iter().all(|line| all.lines().any(|found| found == *line)).then_some(())
    })
    .with_context(|| all.clone())?;
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let listed = fs::read_to_string(docs)?;
    let names: BTreeSet<_> = all
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .filter(|name| name.starts_with("weft_csi"))
        .collect();
    ensure!(names.len() == 4, "{names:?}");
    for name in names {
        ensure!(listed.contains(name), "docs/metrics.md does not list {name}");
    }
    used.end(&plugin)?;
    plugin.stop()
}

fn read(address: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
