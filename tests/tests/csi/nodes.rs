//! A volume on one machine, from its mount to its end.

use crate::container::{Container, Shared};
use crate::plugin::{
    MIB, PATIENCE, Plugin, mounted, mounts_below, publishing_of, refused, shared, small, small_as,
    staging_of,
};
use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tonic::Code;
use weft_csi::wire::volume_capability::access_mode::Mode;
use weft_csi::wire::volume_usage::Unit;
use weft_csi::wire::*;
use weft_tests::{Cluster, eventually, path, weft_ok};

/// What a mount may take beyond a limit.
const CREDIT: i64 = 64 * MIB;

/// Writes until that is refused because of the quota. Answers how many bytes were taken.
fn fill(file: &Path) -> Result<i64> {
    let (mut file, piece, mut taken) = (File::create(file)?, vec![7u8; 1 << 20], 0);
    loop {
        match file.write(&piece) {
            Ok(n) => taken += i64::try_from(n)?,
            Err(e) if e.raw_os_error() == Some(libc::EDQUOT) => return Ok(taken),
            Err(e) => return Err(e).context("it is not the quota"),
        }
        ensure!(taken < 600 * MIB, "nothing stands against {taken} bytes");
    }
}

fn size_of(at: &Path) -> Result<i64> {
    let room = statvfs(at)?;
    Ok(i64::try_from(room.blocks() * room.fragment_size())?)
}

#[test]
fn csi_a_volume_is_mounted_limited_extended_and_deleted() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start(&cluster)?;
    let pods = cluster.scratch("pods")?;
    let (staging, one, two) = (cluster.scratch("staging")?, pods.join("one"), pods.join("two"));
    let volume = plugin.create("pvc-1", 64 * MIB)?;
    let id = volume.volume_id.as_str();
    let not_staged = plugin.publish(publishing_of(&volume, &staging, &one));
    refused(not_staged, Code::FailedPrecondition, "it is not staged")?;
    for _ in 0..2 {
        plugin.stage(staging_of(&volume, &staging))?;
        plugin.publish(publishing_of(&volume, &staging, &one))?;
        let read_only =
            NodePublishVolumeRequest { readonly: true, ..publishing_of(&volume, &staging, &two) };
        plugin.publish(read_only)?;
        ensure!(mounts_below(&staging)?.len() == 1 && mounts_below(&pods)?.len() == 2);
    }
    let other =
        NodePublishVolumeRequest { readonly: true, ..publishing_of(&volume, &staging, &one) };
    refused(plugin.publish(other), Code::AlreadyExists, "it can be written there")?;
    let other = NodeStageVolumeRequest {
        volume_capability: Some(mounted(Mode::MultiNodeMultiWriter, &["noatime"])),
        ..staging_of(&volume, &staging)
    };
    refused(plugin.stage(other), Code::AlreadyExists, "other options")?;
    fs::write(one.join("file"), "hello")?;
    ensure!(fs::read_to_string(two.join("file"))? == "hello");
    ensure!(fs::read_to_string(cluster.mnt().join("volumes/pvc-1/file"))? == "hello");
    let denied = fs::write(two.join("file"), "");
    ensure!(denied.is_err_and(|e| e.raw_os_error() == Some(libc::EROFS)), "it is to be read");
    ensure!(size_of(&one)? == 64 * MIB && size_of(&two)? == 64 * MIB, "df shows the quota");
    let taken = fill(&one.join("big"))?;
    ensure!((60 * MIB..=64 * MIB + CREDIT).contains(&taken), "{taken} bytes were taken");
    grow(&plugin, &volume, &one, taken)?;
    let used = plugin.unstage(id, &staging);
    refused(used, Code::FailedPrecondition, "workloads have it")?;
    for _ in 0..2 {
        plugin.unpublish(id, &one)?;
        plugin.unpublish(id, &two)?;
    }
    ensure!(!one.exists() && !two.exists() && mounts_below(&pods)?.is_empty());
    for _ in 0..2 {
        plugin.unstage(id, &staging)?;
    }
    ensure!(mounts_below(&staging)?.is_empty());
    ensure!(fs::read_dir(plugin.folder.join("state/volumes"))?.next().is_none());
    plugin.delete(id)?;
    ensure!(!cluster.mnt().join("volumes/pvc-1").exists());
    plugin.stop()?;
    cluster.await_clean()
}

/// It grows under who uses it, and its use is told.
fn grow(plugin: &Plugin, volume: &Volume, one: &Path, taken: i64) -> Result<()> {
    let range = CapacityRange { required_bytes: 256 * MIB, ..Default::default() };
    let volume_id = volume.volume_id.clone();
    let request = ControllerExpandVolumeRequest {
        volume_id,
        capacity_range: Some(range),
        volume_capability: Some(shared()),
        ..Default::default()
    };
    plugin.wait(plugin.controller().controller_expand_volume(request))?;
    ensure!(size_of(one)? == 256 * MIB, "{} are seen", size_of(one)?);
    let mut more = File::create(one.join("more"))?;
    more.write_all(&vec![1u8; 8 << 20])?;
    more.sync_all()?;
    drop(more);
    let stats = plugin.stats(&volume.volume_id, one)?;
    let of = |unit: Unit| stats.usage.iter().find(|usage| usage.unit() == unit);
    let bytes = of(Unit::Bytes).context("no bytes")?;
    ensure!(bytes.total == 256 * MIB && bytes.used >= taken && bytes.available > 0, "{stats:?}");
    ensure!(of(Unit::Inodes).is_some_and(|inodes| inodes.used >= 3), "{stats:?}");
    ensure!(stats.volume_condition.is_some_and(|condition| !condition.abnormal));
    Ok(())
}

#[test]
fn csi_what_a_node_is_asked_is_checked() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start(&cluster)?;
    let staging = cluster.scratch("staging")?;
    let target = cluster.scratch("pods")?.join("one");
    let volume = plugin.create("pvc-1", 64 * MIB)?;
    let id = volume.volume_id.as_str();
    let stage = || staging_of(&volume, &staging);
    let context = |path: &str| [("path".to_owned(), path.to_owned())].into();
    let secret = [("tls.key".to_owned(), "key".to_owned())];
    let bad = Some(mounted(Mode::MultiNodeMultiWriter, &["sfot=1"]));
    let requests = [
        ("no id", NodeStageVolumeRequest { volume_id: String::new(), ..stage() }),
        ("no path", NodeStageVolumeRequest { staging_target_path: String::new(), ..stage() }),
        ("a bad path", NodeStageVolumeRequest { staging_target_path: "/a/../b".into(), ..stage() }),
        ("no capability", NodeStageVolumeRequest { volume_capability: None, ..stage() }),
        ("a bad option", NodeStageVolumeRequest { volume_capability: bad, ..stage() }),
        ("half a secret", NodeStageVolumeRequest { secrets: secret.into(), ..stage() }),
        ("a trick", NodeStageVolumeRequest { volume_context: context("/a/../.."), ..stage() }),
        ("a relative path", NodeStageVolumeRequest { volume_context: context("a"), ..stage() }),
    ];
    for (what, request) in requests {
        refused(plugin.stage(request), Code::InvalidArgument, what)?;
    }
    let nowhere = NodeStageVolumeRequest { volume_context: context("/volumes/x"), ..stage() };
    refused(plugin.stage(nowhere), Code::NotFound, "no such folder")?;
    ensure!(mounts_below(&staging)?.is_empty(), "nothing is left");
    plugin.stage(stage())?;
    let publish = || publishing_of(&volume, &staging, &target);
    let requests = [
        ("no id", NodePublishVolumeRequest { volume_id: String::new(), ..publish() }),
        ("no path", NodePublishVolumeRequest { target_path: String::new(), ..publish() }),
        ("no capability", NodePublishVolumeRequest { volume_capability: None, ..publish() }),
    ];
    for (what, request) in requests {
        refused(plugin.publish(request), Code::InvalidArgument, what)?;
    }
    let request = NodePublishVolumeRequest { staging_target_path: String::new(), ..publish() };
    refused(plugin.publish(request), Code::FailedPrecondition, "no staging path")?;
    // One workload alone.
    let alone = Some(mounted(Mode::SingleNodeSingleWriter, &[]));
    plugin.publish(NodePublishVolumeRequest { volume_capability: alone, ..publish() })?;
    let second = publishing_of(&volume, &staging, &target.with_extension("second"));
    refused(plugin.publish(second), Code::FailedPrecondition, "another has it")?;
    refused(plugin.unpublish("", &target), Code::InvalidArgument, "no id")?;
    refused(plugin.unpublish(id, Path::new("")), Code::InvalidArgument, "no path")?;
    refused(plugin.unstage("", &staging), Code::InvalidArgument, "no id")?;
    refused(plugin.stats("", &target), Code::InvalidArgument, "no id")?;
    refused(plugin.stats(id, Path::new("")), Code::InvalidArgument, "no path")?;
    refused(plugin.stats("pvc-9", &target), Code::NotFound, "no such volume")?;
    refused(plugin.stats(id, Path::new("/proc")), Code::NotFound, "another place")?;
    // What is not there was taken away; what is none of weft's stays.
    plugin.unpublish("pvc-9", &cluster.scratch("pods")?.join("nothing"))?;
    plugin.unstage("pvc-9", &cluster.scratch("nothing")?)?;
    plugin.unpublish(id, &target)?;
    plugin.unstage(id, &staging)?;
    plugin.stop()
}

#[test]
fn csi_folders_that_are_there_are_volumes() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start(&cluster)?;
    let staging = cluster.scratch("staging")?;
    let target = cluster.scratch("pods")?.join("one");
    fs::create_dir_all(cluster.mnt().join("datasets/a"))?;
    fs::write(cluster.mnt().join("datasets/a/file"), "data")?;
    let named = |id: &str, path: Option<&str>| Volume {
        volume_id: id.into(),
        volume_context: path.map(|path| ("path".to_owned(), path.into())).into_iter().collect(),
        ..Default::default()
    };
    for volume in [named("any name", Some("/datasets/a")), named("/datasets/a", None)] {
        let reader = mounted(Mode::MultiNodeReaderOnly, &["noatime", "cache=8MiB"]);
        let request = NodeStageVolumeRequest {
            volume_capability: Some(reader.clone()),
            ..staging_of(&volume, &staging)
        };
        plugin.stage(request)?;
        let request = NodePublishVolumeRequest {
            volume_capability: Some(reader),
            ..publishing_of(&volume, &staging, &target)
        };
        plugin.publish(request)?;
        ensure!(fs::read_to_string(target.join("file"))? == "data");
        for at in [&target, &staging] {
            let denied = fs::write(at.join("file"), "");
            ensure!(denied.is_err_and(|e| e.raw_os_error() == Some(libc::EROFS)));
        }
        plugin.unpublish(&volume.volume_id, &target)?;
        plugin.unstage(&volume.volume_id, &staging)?;
        plugin.delete(&volume.volume_id)?;
        ensure!(cluster.mnt().join("datasets/a/file").exists(), "it is not this driver's");
    }
    plugin.stop()
}

/// Certificates that come with a call are shown by the mount of that volume, and are nowhere that
/// others can read.
#[test]
fn csi_a_volume_has_certificates_of_its_own() -> Result<()> {
    let cluster = small_as(true)?;
    let plugin = Plugin::start(&cluster)?;
    let staging = cluster.scratch("staging")?;
    let volume = plugin.create("pvc-1", 64 * MIB)?;
    let read = |file: &str| fs::read_to_string(cluster.tls_dir().join(file));
    let (ca, cert, key) = (read("ca.pem")?, read("client.pem")?, read("client.key")?);
    let all = [("ca.crt", &ca), ("tls.crt", &cert), ("tls.key", &key)];
    let secrets = all.map(|(name, content)| (name.to_owned(), content.clone())).into();
    plugin.stage(NodeStageVolumeRequest { secrets, ..staging_of(&volume, &staging) })?;
    fs::write(staging.join("file"), "hello")?;
    let process = plugin.mount_process(&staging)?;
    let shown = fs::read(format!("/proc/{process}/cmdline"))?;
    let shown = String::from_utf8_lossy(&shown).into_owned();
    ensure!(shown.contains("state/volumes") && shown.contains("tls.key"), "{shown}");
    let secret = key.lines().nth(1).context("a key of several lines")?;
    ensure!(!shown.contains(secret) && !cluster.logs().contains(secret), "the key is told");
    let mut found = 0;
    for entry in fs::read_dir(plugin.folder.join("state/volumes"))? {
        let folder = entry?.path();
        for file in fs::read_dir(&folder).into_iter().flatten() {
            let mode = fs::metadata(file?.path())?.permissions().mode();
            ensure!(mode & 0o077 == 0, "{mode:o}");
            found += 1;
        }
    }
    ensure!(found == 3, "{found} files");
    plugin.unstage(&volume.volume_id, &staging)?;
    let left = fs::read_dir(plugin.folder.join("state/volumes"))?.count();
    ensure!(left == 0, "{left} files are left in {}", path(&plugin.folder));
    plugin.stop()
}

/// What is to be read is so wherever it comes, from the first moment on.
#[test]
fn csi_what_is_to_be_read_is_so_for_everybody() -> Result<()> {
    let cluster = small()?;
    let plugin = Plugin::start(&cluster)?;
    let (staging, pods) = (cluster.scratch("staging")?, cluster.scratch("pods")?);
    let (read, write) = (pods.join("read"), pods.join("write"));
    let volume = plugin.create("pvc-1", 64 * MIB)?;
    plugin.stage(staging_of(&volume, &staging))?;
    fs::write(staging.join("file"), "hello")?;
    let shared = Shared::make(&pods)?;
    let other = Container::begin(&pods, &cluster.scratch("other")?)?;
    let request = publishing_of(&volume, &staging, &read);
    plugin.publish(NodePublishVolumeRequest { readonly: true, ..request })?;
    plugin.publish(publishing_of(&volume, &staging, &write))?;
    for folder in [pods.clone(), other.sees(&pods), other.folder()] {
        ensure!(fs::read_to_string(folder.join("read/file"))? == "hello");
        let denied = fs::write(folder.join("read/file"), "");
        ensure!(
            denied.is_err_and(|e| e.raw_os_error() == Some(libc::EROFS)),
            "{} can be written",
            folder.display()
        );
        fs::write(folder.join("write/new"), "")?;
    }
    for target in [&read, &write] {
        plugin.unpublish(&volume.volume_id, target)?;
    }
    ensure!(fs::read_dir(other.folder())?.next().is_none(), "they are gone there, too");
    drop((other, shared));
    plugin.unstage(&volume.volume_id, &staging)?;
    plugin.stop()
}

/// A new certificate of a client, as a secret has it.
fn secret_of(cluster: &Cluster, name: &str, more: &[&str]) -> Result<HashMap<String, String>> {
    let (dir, out) = (cluster.tls_dir(), cluster.tls_dir().join(name));
    let args = ["ca", "issue", "--dir", path(&dir), "--role", "client", "--name", name];
    weft_ok(&[&args[..], &["--out", path(&out)], more].concat())?;
    let read = |file: &str| {
        fs::read_to_string(dir.join(file)).with_context(|| format!("{file} of the certificates"))
    };
    let (cert, key) = (read(&format!("{name}.pem"))?, read(&format!("{name}.key"))?);
    let all = [("ca.crt", read("ca.pem")?), ("tls.crt", cert), ("tls.key", key)];
    Ok(all.map(|(name, content)| (name.to_owned(), content)).into())
}

/// Who is confined to the folder of all volumes, or to one of them, has the volumes of a class;
/// nobody gets the driver's own certificate instead.
#[test]
fn csi_a_volume_has_a_certificate_that_is_confined() -> Result<()> {
    let cluster = small_as(true)?;
    let plugin = Plugin::start(&cluster)?;
    let staging = cluster.scratch("staging")?;
    let volume = plugin.create("pvc-1", 64 * MIB)?;
    let staged = |secrets: &HashMap<String, String>| {
        let request = staging_of(&volume, &staging);
        plugin.stage(NodeStageVolumeRequest { secrets: secrets.clone(), ..request })
    };
    let outside = secret_of(&cluster, "outside", &["--subtree", "/volumes/pvc-2"])?;
    refused(staged(&outside), Code::FailedPrecondition, "it is another's")?;
    let state = plugin.folder.join("state/volumes");
    ensure!(fs::read_dir(&state)?.next().is_none() && mounts_below(&staging)?.is_empty());
    let all = ["--subtree", "/volumes"];
    let one = ["--subtree", "/volumes/pvc-1"];
    for (name, more) in [("all", &all[..]), ("one", &one), ("any", &[])] {
        staged(&secret_of(&cluster, name, more)?)?;
        fs::write(staging.join(name), "hello")?;
        let seen = cluster.mnt().join("volumes/pvc-1").join(name);
        ensure!(fs::read_to_string(seen)? == "hello", "{name}: it is another folder");
        plugin.unstage(&volume.volume_id, &staging)?;
    }
    let secret = secret_of(&cluster, "again", &["--subtree", "/volumes"])?;
    staged(&secret)?;
    let folder = fs::read_dir(&state)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|file| file.is_dir())
        .context("a folder with the certificates")?;
    fs::remove_file(folder.join("tls.key"))?;
    kill(Pid::from_raw(plugin.mount_process(&staging)?), Signal::SIGKILL)?;
    let gone = || mounts_below(&staging).is_ok_and(|found| found.is_empty()).then_some(());
    eventually(PATIENCE, "the dead mount is taken away", gone)?;
    std::thread::sleep(Duration::from_secs(5));
    ensure!(mounts_below(&staging)?.is_empty(), "it came back without its certificate");
    eventually(PATIENCE, "it comes back with it", || staged(&secret).ok())?;
    fs::write(staging.join("again"), "")?;
    plugin.unstage(&volume.volume_id, &staging)?;
    plugin.stop()
}
