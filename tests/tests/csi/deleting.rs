//! Volumes are deleted whole, and nothing else is.

use crate::plugin::{MIB, PATIENCE, Plugin, refused, small};
use anyhow::{Result, ensure};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use tonic::Code;
use weft_tests::{eventually, path, weft_ok};

/// Some hundred files in nested folders, with links that lead out.
fn fill(volume: &Path, outside: &Path) -> Result<()> {
    let mut deep = volume.to_owned();
    for level in 0..40 {
        deep = deep.join(format!("d{level}"));
        fs::create_dir(&deep)?;
        symlink(outside, deep.join("folder"))?;
        symlink(outside.join("kept"), deep.join("file"))?;
    }
    for n in 0..20 {
        let wide = volume.join(format!("w{n}"));
        fs::create_dir(&wide)?;
        for m in 0..20 {
            fs::write(wide.join(format!("f{m}")), vec![1u8; 5000])?;
        }
    }
    Ok(())
}

fn trash_is_empty(volumes: &Path) -> Option<()> {
    let mut left = fs::read_dir(volumes.join(".deleted")).ok()?;
    left.next().is_none().then_some(())
}

#[test]
fn csi_a_volume_is_deleted_with_all_in_it_and_nothing_else() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start(&cluster)?;
    let (volumes, outside) = (cluster.mnt().join("volumes"), cluster.mnt().join("outside"));
    fs::create_dir(&outside)?;
    fs::write(outside.join("kept"), "kept")?;
    refused(plugin.delete(""), Code::InvalidArgument, "no id")?;
    for nobody in ["pvc-9", "..", "../outside", "/outside", "a/b", "\0", &"x".repeat(2000)] {
        plugin.delete(nobody)?;
    }
    let volume = plugin.create("pvc-1", 64 * MIB)?;
    fill(&volumes.join("pvc-1"), &outside)?;
    weft_ok(&["sync", path(cluster.mnt())])?;
    plugin.delete(&volume.volume_id)?;
    ensure!(!volumes.join("pvc-1").exists(), "it is out of sight at once");
    plugin.delete(&volume.volume_id)?;
    // Its name is free.
    let again = plugin.create("pvc-1", 32 * MIB)?;
    ensure!(again.capacity_bytes == 32 * MIB, "{again:?}");
    ensure!(fs::read_dir(volumes.join("pvc-1"))?.next().is_none(), "a new one is empty");
    eventually(PATIENCE, "all of it is gone", || trash_is_empty(&volumes))?;
    ensure!(fs::read_to_string(outside.join("kept"))? == "kept");
    // What this driver has not made it does not delete.
    fs::create_dir(volumes.join("foreign"))?;
    fs::write(volumes.join("foreign/file"), "")?;
    symlink(&outside, volumes.join("link"))?;
    for foreign in ["foreign", "link"] {
        refused(plugin.delete(foreign), Code::FailedPrecondition, foreign)?;
        refused(plugin.create(foreign, MIB), code_of(foreign), foreign)?;
    }
    ensure!(volumes.join("foreign/file").exists() && outside.join("kept").exists());
    plugin.stop()?;
    cluster.await_clean()
}

/// A folder that is not empty is there already; a link is none.
fn code_of(foreign: &str) -> Code {
    if foreign == "link" { Code::FailedPrecondition } else { Code::AlreadyExists }
}

#[test]
fn csi_what_was_not_deleted_to_the_end_is_by_the_next_driver() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start(&cluster)?;
    let volumes = cluster.mnt().join("volumes");
    plugin.create("pvc-1", 64 * MIB)?;
    fill(&volumes.join("pvc-1"), cluster.mnt())?;
    plugin.kill()?;
    // As a driver leaves it that dies in the middle.
    fs::rename(volumes.join("pvc-1"), volumes.join(".deleted/pvc-1.0"))?;
    // And as nobody leaves it but an administrator.
    fs::write(volumes.join(".deleted/file"), "")?;
    fs::create_dir(volumes.join(".deleted").join(OsStr::from_bytes(b"n\xffme")))?;
    let plugin = Plugin::start(&cluster)?;
    eventually(PATIENCE, "all of it is gone", || trash_is_empty(&volumes))?;
    plugin.stop()?;
    cluster.await_clean()
}

#[test]
fn csi_a_folder_for_what_was_deleted_is_made_again() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start(&cluster)?;
    let volumes = cluster.mnt().join("volumes");
    for name in ["pvc-1", "pvc-2"] {
        plugin.create(name, MIB)?;
        fs::write(volumes.join(name).join("file"), "")?;
    }
    fs::remove_dir(volumes.join(".deleted"))?;
    plugin.delete("pvc-1")?;
    ensure!(!volumes.join("pvc-1").exists(), "it was said to be gone");
    eventually(PATIENCE, "all of it is gone", || trash_is_empty(&volumes))?;
    // With all volumes, too.
    fs::remove_dir_all(&volumes)?;
    plugin.delete("pvc-2")?;
    plugin.create("pvc-1", MIB)?;
    plugin.delete("pvc-1")?;
    eventually(PATIENCE, "all of it is gone", || trash_is_empty(&volumes))?;
    plugin.stop()?;
    cluster.await_clean()
}
