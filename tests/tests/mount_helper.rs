//! `mount -t weft` and fstab(5), through the real mount(8), which calls this program as
//! /sbin/mount.weft; and mounts that come back when their process has died.
//!
//! Each test has a mount namespace of its own, in which that program is there.

use anyhow::{Context, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
use weft_tests::{Cluster, Shape, eventually, path, weft, weft_binary, weft_ok};

const PATIENCE: Duration = Duration::from_secs(60);

/// A folder that every system has; what is in it is of no use here.
const HIDDEN: &str = "/media";

/// This thread, and what it starts, has mounts of its own from here on, and /sbin/mount.weft.
fn with_helper() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let (none, private) = (None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
    mount(none, "/", none, private, none)?;
    let sbin = fs::canonicalize("/sbin")?;
    let real = Path::new(HIDDEN);
    mount(Some(&sbin), real, none, MsFlags::MS_BIND, none)?;
    mount(Some("tmpfs"), &sbin, Some("tmpfs"), MsFlags::empty(), none)?;
    for entry in fs::read_dir(real)? {
        let name = entry?.file_name();
        symlink(real.join(&name), sbin.join(&name))?;
    }
    Ok(symlink(weft_binary(), sbin.join("mount.weft"))?)
}

fn small() -> Result<Cluster> {
    let shape = Shape {
        metadata: 1,
        storage: 3,
        profile: "2+1",
        target_size: "128MiB",
        ..Default::default()
    };
    Cluster::start_as(shape)
}

fn mount_8(args: &[&str]) -> Result<Output> {
    Command::new("mount").args(args).output().context("run mount")
}

/// Options that have a cluster's mount show its client's certificate, if it has any.
fn certificates(cluster: &Cluster) -> String {
    let options = cluster.environment().into_iter().map(|(name, file)| {
        let option = name.trim_start_matches("WEFT_").to_lowercase();
        format!(",{option}={}", path(&file))
    });
    options.collect()
}

fn done(out: Output) -> Result<()> {
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    ensure!(out.status.success(), "{}: {said}", out.status);
    Ok(())
}

fn umount_8(at: &Path) -> Result<()> {
    done(Command::new("umount").arg(at).output()?)
}

/// Lines of the table of mounts that this thread sees, of what is mounted below a folder.
fn mounted(below: &Path) -> Result<Vec<String>> {
    let table = fs::read_to_string("/proc/thread-self/mounts")?;
    let ours = table.lines().filter(|line| line.contains(path(below)));
    Ok(ours.map(str::to_owned).collect())
}

/// What is recorded of a mount: its process, and the one that looks after it.
fn record(at: &Path) -> Result<(i32, Option<i32>)> {
    let folder = std::env::var_os("WEFT_RUN_DIR").map_or_else(|| "/run/weft".into(), PathBuf::from);
    for entry in fs::read_dir(folder.join("mounts"))? {
        let file = entry?.path();
        let Ok(text) = fs::read(&file) else { continue };
        let Ok(record) = serde_json::from_slice::<serde_json::Value>(&text) else { continue };
        if record["path"].as_str().map(Path::new) != Some(at) {
            continue;
        }
        let pid = |of: &serde_json::Value| of["pid"].as_i64().and_then(|pid| pid.try_into().ok());
        let process = pid(&record["process"]).context("a record without a process")?;
        return Ok((process, pid(&record["supervisor"])));
    }
    anyhow::bail!("nothing is recorded of {}", at.display())
}

fn has_ended(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.map_or(true, |text| text.contains("State:\tZ"))
}

fn await_end(pid: i32) -> Result<()> {
    eventually(PATIENCE, "it has ended", || has_ended(pid).then_some(()))
}

/// Waits until another process than `before` serves, and the mount answers.
fn await_back(at: &Path, before: i32) -> Result<i32> {
    eventually(PATIENCE, "the mount is back", || {
        let (now, _) = record(at).ok()?;
        (now != before && fs::read_dir(at).is_ok()).then_some(now)
    })
}

#[test]
fn fstab_mounts_two_clusters_and_one_below_the_other() -> Result<()> {
    with_helper()?;
    let (one, two) = (small()?, small()?);
    fs::create_dir_all(one.mnt().join("team/a"))?;
    fs::write(two.mnt().join("of two"), "")?;
    let (above, part) = (one.scratch("fstab")?, one.scratch("a part")?);
    fs::create_dir(one.mnt().join("below"))?;
    let below = above.join("below");
    let escaped = path(&part).replace(' ', "\\040");
    let log = format!("log_file={}/log/fstab.log", path(one.dir()));
    let fstab = one.scratch("etc")?.join("fstab");
    let (a, b) = (one.address()?, two.address()?);
    let (at_a, at_b) = (certificates(&one), certificates(&two));
    let lines = format!(
        "{a}:/ {} weft defaults,_netdev,noatime,cache=8MiB,{log}{at_a} 0 0\n\
         {b}:/ {} weft ro,_netdev,nofail,x-systemd.automount,nosupervise,{log}{at_b} 0 0\n\
         {a}:/team/a {escaped} weft rw,_netdev,{log}{at_a} 0 0\n\
         {a}:/team/a /not/there weft noauto 0 0\n",
        path(&above),
        path(&below),
    );
    fs::write(&fstab, lines)?;
    for _ in 0..2 {
        // The second time there is nothing to do.
        done(mount_8(&["-a", "-T", path(&fstab)])?)?;
        let table =
            [mounted(&above)?, mounted(&part.parent().context("a parent")?.join("a\\040part"))?];
        ensure!(table.concat().len() == 3, "{table:?}");
    }
    let options = mounted(&above)?;
    ensure!(options[0].contains("noatime") && options[0].starts_with(&format!("{a}:/ ")));
    fs::write(part.join("f"), "through fstab")?;
    ensure!(fs::read_to_string(above.join("team/a/f"))? == "through fstab");
    ensure!(below.join("of two").exists());
    let refused = fs::write(below.join("new"), "");
    ensure!(refused.is_err_and(|e| e.raw_os_error() == Some(libc::EROFS)));
    ensure!(record(&below)?.1.is_none(), "it was told not to be supervised");
    let (process, supervisor) = record(&above)?;
    umount_8(&below)?;
    umount_8(&above)?;
    await_end(process)?;
    await_end(supervisor.context("no supervisor")?)?;
    weft_ok(&["umount", path(&part)]).map(drop)
}

#[test]
fn what_cannot_be_mounted_is_said_with_the_exit_codes_of_mount() -> Result<()> {
    with_helper()?;
    let cluster = small()?;
    let (at, address) = (cluster.scratch("at")?, cluster.address()?);
    let log = format!("timeout=5,log_file={}/log/refused.log", path(cluster.dir()));
    let log = log + &certificates(&cluster);
    let refused = |spec: &str, options: &str, code: i32| -> Result<String> {
        let options = format!("{options},{log}");
        let out = mount_8(&["-t", "weft", "-o", &options, spec, path(&at)])?;
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        ensure!(out.status.code() == Some(code), "{spec} {options}: {}: {said}", out.status);
        Ok(said)
    };
    let whole = format!("{address}:/");
    ensure!(refused(&format!("{address}:/nope"), "rw", 32)?.contains("nope"));
    ensure!(refused("127.0.0.1:1:/", "rw", 32)?.contains("127.0.0.1:1"));
    ensure!(refused("nowhere:/", "rw", 1)?.contains("host:port"));
    ensure!(refused(&whole, "rw,sfot=1", 1)?.contains("sfot"));
    ensure!(refused(&whole, "cache=much", 1)?.contains("much"));
    // Nothing but the checks.
    done(mount_8(&["-f", "-t", "weft", "-o", &log, &whole, path(&at)])?)?;
    ensure!(mounted(&at)?.is_empty());
    done(mount_8(&["-s", "-t", "weft", "-o", &format!("sfot=1,{log}"), &whole, path(&at)])?)?;
    ensure!(mounted(&at)?.len() == 1);
    let refused = refused(&whole, "remount,ro", 32)?;
    ensure!(refused.contains("umount"), "{refused}");
    umount_8(&at)
}

#[test]
fn a_mount_comes_back_when_its_process_has_died() -> Result<()> {
    with_helper()?;
    let cluster = small()?;
    fs::create_dir(cluster.mnt().join("part"))?;
    let (at, spec) = (cluster.scratch("at")?, format!("{}:/part", cluster.address()?));
    let log = format!("log_file={}/log/supervised.log", path(cluster.dir()));
    let log = log + &certificates(&cluster);
    done(mount_8(&["-t", "weft", "-o", &log, &spec, path(&at)])?)?;
    let (mut process, supervisor) = record(&at)?;
    let supervisor = supervisor.context("no supervisor")?;
    let mut open = File::create(at.join("f"))?;
    open.write_all(b"synced")?;
    open.sync_all()?;
    for round in 0..4 {
        kill(Pid::from_raw(process), Signal::SIGKILL)?;
        process = await_back(&at, process)?;
        ensure!(record(&at)?.1 == Some(supervisor), "round {round}");
        ensure!(mounted(&at)?.len() == 1, "round {round}: {:?}", mounted(&at)?);
        ensure!(fs::read(at.join("f"))? == b"synced");
        fs::write(at.join(format!("new{round}")), "usable")?;
        if round == 1 {
            // The next process has the same supervisor.
            weft_ok(&["mount", "--takeover", path(&at)])?;
            process = record(&at)?.0;
        }
    }
    let lost = open.write_all(b"more").and_then(|()| open.sync_all());
    ensure!(lost.is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN)), "an open file is lost");
    ensure!(cluster.mnt().join("part/new3").exists());
    let rss = fs::read_to_string(format!("/proc/{supervisor}/status"))?;
    let rss = rss.lines().find(|line| line.starts_with("RssAnon")).map(str::to_owned);
    println!("the supervisor has {rss:?}");
    weft_ok(&["umount", path(&at)])?;
    await_end(supervisor)?;
    ensure!(mounted(&at)?.is_empty());
    // What the dead had is over: nobody waits for sessions.
    cluster.await_clean()
}

#[test]
fn a_supervisor_ends_with_what_it_looks_after() -> Result<()> {
    with_helper()?;
    let cluster = small()?;
    let supervised = |name: &str| -> Result<(PathBuf, i32, i32)> {
        let at = cluster.mount_with(name, &["--supervise"])?;
        let (process, supervisor) = record(&at)?;
        Ok((at, process, supervisor.context("no supervisor")?))
    };
    // Told to end itself, it has the mount end.
    let (at, process, supervisor) = supervised("told")?;
    fs::write(at.join("f"), "written before")?;
    kill(Pid::from_raw(supervisor), Signal::SIGTERM)?;
    await_end(supervisor)?;
    ensure!(has_ended(process) && mounted(&at)?.is_empty());
    ensure!(fs::read(cluster.mnt().join("f"))? == b"written before");
    // Its process is told to end.
    let (at, process, supervisor) = supervised("stopped")?;
    kill(Pid::from_raw(process), Signal::SIGTERM)?;
    await_end(supervisor)?;
    ensure!(mounted(&at)?.is_empty());
    // While the cluster is away, the dead mount stays, and is taken away for good.
    let (at, process, supervisor) = supervised("dead")?;
    let paused = cluster.pause_metadata()?;
    kill(Pid::from_raw(process), Signal::SIGKILL)?;
    await_end(process)?;
    // A request that is on its way when the last thread goes is told of that otherwise.
    let is_dead = || fs::read_dir(&at).is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN));
    eventually(PATIENCE, "a dead mount", || is_dead().then_some(()))?;
    weft(&["umount", path(&at)])?;
    ensure!(mounted(&at)?.is_empty());
    await_end(supervisor)?;
    drop(paused);
    ensure!(mounted(&at)?.is_empty() && cluster.mnt().join("f").exists());
    Ok(())
}
