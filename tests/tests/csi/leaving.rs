//! A volume is unmounted when all that was written there is durable, and not before.

use crate::container::Container;
use crate::plugin::{
    MIB, PATIENCE, Plugin, mounts_below, publishing_of, refused, small, staging_of,
};
use anyhow::{Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;
use tonic::Code;
use weft_tests::{Paused, eventually, path};

/// Longer than the driver needs to look at its mounts.
const LOOKS: Duration = Duration::from_secs(5);

#[test]
fn csi_what_may_not_be_durable_is_not_unmounted() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start(&cluster)?;
    let (volume, staging) = (plugin.create("pvc-1", 64 * MIB)?, cluster.scratch("staging")?);
    let id = volume.volume_id.as_str();
    plugin.stage(staging_of(&volume, &staging))?;
    fs::write(staging.join("file"), vec![7u8; 8 << 20])?;
    let process = plugin.mount_process(&staging)?;
    // It cannot be told to sync: the mount stays, so that it can be asked again.
    let paused = Paused::all(vec![process])?;
    refused(plugin.unstage(id, &staging), Code::Internal, "it does not answer")?;
    ensure!(mounts_below(&staging)?.len() == 1, "it is unmounted");
    drop(paused);
    ensure!(plugin.mount_process(&staging)? == process, "it was made anew");
    // Somebody holds a copy of the mount: its process cannot end.
    let holder = Container::begin(&staging, &cluster.scratch("holder")?)?;
    refused(plugin.unstage(id, &staging), Code::Internal, "its process lives")?;
    ensure!(fs::metadata(cluster.mnt().join("volumes/pvc-1/file"))?.len() == 8 << 20);
    // Nobody mounts again what is being taken away.
    std::thread::sleep(LOOKS);
    ensure!(mounts_below(&staging)?.is_empty(), "it was mounted again");
    drop(holder);
    plugin.unstage(id, &staging)?;
    ensure!(plugin.mount_process(&staging).is_err(), "its process goes on");
    ensure!(fs::read_dir(plugin.folder.join("state/volumes"))?.next().is_none());
    // And it may be had again.
    plugin.stage(staging_of(&volume, &staging))?;
    ensure!(fs::read(staging.join("file"))? == vec![7u8; 8 << 20]);
    plugin.unstage(id, &staging)?;
    plugin.stop()?;
    cluster.await_clean()
}

/// Whoever has files open there keeps it for ever, and nothing becomes durable by that.
#[test]
fn csi_what_is_left_of_a_dead_mount_is_unmounted_and_told_once() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start(&cluster)?;
    let (volume, staging) = (plugin.create("pvc-1", 64 * MIB)?, cluster.scratch("staging")?);
    let id = volume.volume_id.as_str();
    plugin.stage(staging_of(&volume, &staging))?;
    let open = File::create(staging.join("file"))?;
    open.sync_all()?;
    let process = plugin.mount_process(&staging)?;
    // It is being taken away: nobody mounts it anew.
    let paused = Paused::all(vec![process])?;
    refused(plugin.unstage(id, &staging), Code::Internal, "it does not answer")?;
    kill(Pid::from_raw(process), Signal::SIGKILL)?;
    drop(paused);
    let is_dead = || crate::recovery::is_dead(&staging).then_some(());
    eventually(PATIENCE, "the mount is dead", is_dead)?;
    refused(plugin.unstage(id, &staging), Code::Internal, "nobody served it")?;
    ensure!(mounts_below(&staging)?.is_empty(), "it is there still");
    plugin.unstage(id, &staging)?;
    ensure!(fs::read_dir(plugin.folder.join("state/volumes"))?.next().is_none());
    drop(open);
    plugin.stop()?;
    cluster.await_clean()
}

/// What the kernel calls the mounts below a folder: another has another number.
fn numbers(folder: &Path) -> Result<Vec<String>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let below = table.lines().filter(|line| line.contains(path(folder)));
    Ok(below.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect())
}

/// A driver that died had noted neither where the volume is shown, nor that it is gone.
#[test]
fn csi_what_is_shown_stays_and_what_is_gone_is_forgotten() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start(&cluster)?;
    let (volume, gone) = (plugin.create("pvc-1", 64 * MIB)?, plugin.create("pvc-2", 64 * MIB)?);
    let (staging, left) = (cluster.scratch("staging")?, cluster.scratch("left")?);
    let target = cluster.scratch("pods")?.join("target");
    let state = plugin.folder.join("state/volumes");
    let notes = || -> Result<Vec<_>> {
        let all = fs::read_dir(&state)?.map(|entry| Ok(entry?.path()));
        all.filter(|file| file.as_ref().is_ok_and(|f| f.extension().is_some_and(|e| e == "json")))
            .collect()
    };
    plugin.stage(staging_of(&volume, &staging))?;
    let staged = notes()?.remove(0);
    let before = fs::read(&staged)?;
    plugin.publish(publishing_of(&volume, &staging, &target))?;
    let shown = numbers(&target)?;
    fs::write(&staged, &before)?;
    plugin.publish(publishing_of(&volume, &staging, &target))?;
    ensure!(shown.len() == 1 && numbers(&target)? == shown, "it was shown anew");
    plugin.stage(staging_of(&gone, &left))?;
    let all = notes()?;
    let of_gone = all.iter().find(|file| **file != staged).expect("two are noted");
    let note = fs::read(of_gone)?;
    plugin.unstage(&gone.volume_id, &left)?;
    fs::remove_dir(&left)?;
    plugin.kill()?;
    // One that lives would mount it again.
    fs::write(of_gone, note)?;
    let plugin = Plugin::start(&cluster)?;
    eventually(PATIENCE, "it is forgotten", || (!of_gone.exists()).then_some(()))?;
    ensure!(staged.exists() && !left.exists());
    plugin.unpublish(&volume.volume_id, &target)?;
    plugin.unstage(&volume.volume_id, &staging)?;
    plugin.stop()?;
    cluster.await_clean()
}
