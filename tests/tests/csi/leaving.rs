//! A volume is unmounted when all that was written there is durable, and not before.

use crate::container::Container;
use crate::plugin::{MIB, Plugin, mounts_below, refused, small, staging_of};
use anyhow::{Result, ensure};
use std::fs;
use std::time::Duration;
use tonic::Code;
use weft_tests::Paused;

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
