//! The metadata group begins anew from a backup, under a driver and mounts of before.

use crate::plugin::{MIB, PATIENCE, Plugin, mounts_below, publishing_of, small, staging_of};
use crate::recovery::{InUse, is_dead};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::time::Duration;
use weft_tests::server::Server;
use weft_tests::{Cluster, await_health, eventually, path, weft_ok};

/// An orchestrator tries again what was refused; longer than this is for ever.
const TRIES: Duration = Duration::from_secs(60);

/// The group is lost, and begins anew at the same address from what is known of it now.
fn restore(cluster: &Cluster) -> Result<Server> {
    let address = cluster.address()?;
    let backup = cluster.scratch("backups")?.join("first");
    weft_ok(&["metadata", "backup", path(&backup), "--cluster", &address])?;
    cluster.stop_daemon("metadata", 0)?;
    let place = Server::place(cluster, 4, &address)?;
    let place: Vec<_> = place.iter().map(String::as_str).collect();
    weft_ok(&[&["metadata", "restore", path(&backup)], &place[..]].concat())?;
    let server = Server::start_at(cluster, 4, &address, None)?;
    await_health(&address, 3)?;
    Ok(server)
}

#[test]
fn csi_a_restored_group_is_reached_by_the_driver_and_its_volumes() -> Result<()> {
    let cluster = small()?;
    let address = cluster.address()?;
    let plugin = Plugin::start(&cluster)?;
    let used = InUse::begin(&cluster, &plugin, "pvc-used")?;
    let leaves = InUse::begin(&cluster, &plugin, "pvc-leaves")?;
    let supervised = cluster.mount_with("supervised", &["--supervise"])?;
    weft_ok(&["sync", path(cluster.mnt())])?;
    let server = restore(&cluster)?;

    // A pod that ends just then.
    let id = leaves.volume.volume_id.as_str();
    for at in [&leaves.write, &leaves.read] {
        plugin.unpublish(id, at)?;
    }
    let unstaged = || plugin.unstage(id, &leaves.staging).ok();
    eventually(TRIES, "what nobody uses is unstaged", unstaged)?;
    ensure!(mounts_below(&leaves.staging)?.is_empty());
    let make = || plugin.create("pvc-new", 64 * MIB).ok();
    let new = eventually(TRIES, "a volume is made", make)?;
    // One that has it still sees what comes back, and so does the next.
    used.await_back(1)?;
    let next = used.write.with_extension("next");
    plugin.publish(publishing_of(&used.volume, &used.staging, &next))?;
    ensure!(fs::read(next.join("file"))? == b"synced");
    plugin.unpublish(&used.volume.volume_id, &next)?;
    for (volume, content) in [(&leaves.volume, "synced"), (&new, "new")] {
        plugin.stage(staging_of(volume, &leaves.staging))?;
        let file = leaves.staging.join("file");
        if !file.exists() {
            fs::write(&file, content)?;
        }
        ensure!(fs::read_to_string(&file)? == content);
        plugin.unstage(&volume.volume_id, &leaves.staging)?;
        plugin.delete(&volume.volume_id)?;
    }
    used.end(&plugin)?;

    // A mount that nobody looks after stays there with an error, which says why.
    eventually(PATIENCE, "the mount has ended", || is_dead(cluster.mnt()).then_some(()))?;
    weft_ok(&["umount", path(cluster.mnt())])?;
    let log = fs::read_to_string(cluster.dir().join("log/mount.log")).context("its log")?;
    ensure!(log.contains("restored from a backup since it was mounted"), "{log}");
    weft_ok(&["mount", "--cluster", &address, path(cluster.mnt())])?;
    let lists = |at: &Path| fs::read_dir(at.join("volumes")).is_ok();
    ensure!(lists(cluster.mnt()));
    eventually(PATIENCE, "another is mounted anew", || lists(&supervised).then_some(()))?;
    for at in [cluster.mnt(), &supervised] {
        weft_ok(&["umount", path(at)])?;
    }
    plugin.stop()?;
    drop(server);
    Ok(())
}
