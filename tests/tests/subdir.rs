//! A mount of a subdirectory, beside one of the whole filesystem.

use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{DirEntryExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_tests::{Cluster, Shape, eventually, path, run, set_xattr, weft, weft_ok, xattr};

const PATIENCE: Duration = Duration::from_secs(60);
/// Times that each change is made and looked at.
const ROUNDS: usize = 20;

/// A small cluster with `/team/a`, and a mount of that.
fn part() -> Result<(Cluster, PathBuf, PathBuf)> {
    let shape = Shape { metadata: 1, storage: 3, profile: "2+1", ..Default::default() };
    let cluster = Cluster::start_as(shape)?;
    let whole = cluster.mnt().join("team/a");
    fs::create_dir_all(&whole)?;
    let part = cluster.mount_with("part", &["--subdir", "team/a/"])?;
    Ok((cluster, whole, part))
}

fn is_stale(result: std::io::Result<impl Sized>) -> bool {
    result.is_err_and(|e| e.raw_os_error() == Some(libc::ESTALE))
}

#[test]
fn the_root_is_the_directory_and_nothing_is_above_it() -> Result<()> {
    let (cluster, whole, part) = part()?;
    let attrs = |path: &Path| -> Result<_> {
        let m = fs::metadata(path)?;
        Ok((m.ino(), m.mode(), m.nlink(), m.mtime_nsec()))
    };
    fs::create_dir(part.join("d"))?;
    ensure!(attrs(&part)? == attrs(&whole)?, "{:?} {:?}", attrs(&part)?, attrs(&whole)?);
    ensure!(attrs(&part.join("d/.."))? == attrs(&whole)?);
    // What is above it is of this machine.
    let above = fs::metadata(part.join(".."))?;
    ensure!(above.dev() != fs::metadata(&part)?.dev());
    ensure!(run("pwd", &["-P"], &part.join("d"))?.trim() == path(&part.join("d").canonicalize()?));
    let listed = run("ls", &["-ai1"], &part)?;
    let up = listed.lines().find_map(|line| line.trim().strip_suffix(" .."));
    ensure!(up.is_some(), "{listed}");
    fs::write(part.join("d/f"), "content")?;
    fs::hard_link(part.join("d/f"), part.join("g"))?;
    ensure!(fs::metadata(part.join("g"))?.ino() == fs::metadata(whole.join("d/f"))?.ino());
    fs::rename(part.join("g"), part.join("d/h"))?;
    ensure!(fs::read_to_string(whole.join("d/h"))? == "content");
    let inos: Vec<u64> = fs::read_dir(&part)?.map(|e| Ok(e?.ino())).collect::<Result<_>>()?;
    ensure!(inos == [fs::metadata(whole.join("d"))?.ino()]);
    run("df", &[path(&part)], &part)?;
    let table = fs::read_to_string("/proc/self/mounts")?;
    let line = table.lines().find(|line| line.contains(path(&part)));
    let source = format!("weft:{}:/team/a ", cluster.address()?);
    ensure!(line.is_some_and(|line| line.starts_with(&source)), "{line:?}");
    weft_ok(&["umount", path(&part)]).map(drop)
}

/// Both have cached what there is of the root, and what there is not, and see at once what the
/// other changes.
fn coherent(whole: &Path, part: &Path) -> Result<()> {
    let look = |dir: &Path| -> Result<()> {
        fs::read_dir(dir)?.count();
        let _ = fs::metadata(dir.join("f"));
        fs::metadata(dir)?;
        Ok(())
    };
    for round in 0..ROUNDS {
        let sides = if round % 2 == 0 { [whole, part] } else { [part, whole] };
        let [acts, sees] = sides;
        let both = || look(acts).and_then(|()| look(sees));
        both()?;
        fs::write(acts.join("f"), round.to_string())?;
        ensure!(fs::read_to_string(sees.join("f"))? == round.to_string(), "round {round}: made");
        both()?;
        fs::rename(acts.join("f"), acts.join("g"))?;
        ensure!(fs::metadata(sees.join("f")).is_err(), "round {round}: moved away");
        ensure!(fs::metadata(sees.join("g")).is_ok(), "round {round}: moved");
        both()?;
        fs::remove_file(acts.join("g"))?;
        ensure!(fs::metadata(sees.join("g")).is_err(), "round {round}: removed");
        let listed = fs::read_dir(sees)?.flatten().filter(|e| e.file_name() == "g").count();
        ensure!(listed == 0, "round {round}: listed");
        both()?;
        let mode = if round % 2 == 0 { 0o700 } else { 0o755 };
        fs::set_permissions(acts, fs::Permissions::from_mode(mode))?;
        ensure!(fs::metadata(sees)?.mode() & 0o777 == mode, "round {round}: mode of the root");
        both()?;
        let value = round.to_string();
        set_xattr(acts, "user.round", value.as_bytes())?;
        ensure!(xattr(sees, "user.round")? == value.as_bytes(), "round {round}: attribute");
    }
    Ok(())
}

#[test]
fn both_mounts_are_one_filesystem_whatever_becomes_of_name_and_process() -> Result<()> {
    let (cluster, whole, part) = part()?;
    coherent(&whole, &part)?;
    let elsewhere = cluster.mnt().join("elsewhere");
    fs::rename(&whole, &elsewhere)?;
    // Another one in its place is another one.
    fs::create_dir(&whole)?;
    coherent(&elsewhere, &part)?;
    let mut open = File::create(part.join("open"))?;
    let served = cluster.pid_of_mount(&part)?;
    weft_ok(&["mount", "--takeover", path(&part)])?;
    ensure!(cluster.pid_of_mount(&part)? != served);
    open.write_all(b"goes on")?;
    ensure!(fs::read_to_string(elsewhere.join("open"))? == "goes on");
    coherent(&elsewhere, &part)?;
    ensure!(fs::read_dir(&whole)?.next().is_none());
    weft_ok(&["umount", path(cluster.mnt())])?;
    drop(open);
    weft_ok(&["umount", path(&part)])?;
    cluster.await_clean()
}

#[test]
fn a_root_that_is_removed_is_stale_and_can_be_unmounted() -> Result<()> {
    let (cluster, whole, part) = part()?;
    fs::write(part.join("f"), "gone soon")?;
    fs::metadata(&part)?;
    fs::remove_dir_all(&whole)?;
    ensure!(fs::write(part.join("g"), "").is_err());
    // Until it is purged it is as any directory that was removed and is open.
    eventually(PATIENCE, "the root to be stale", || is_stale(fs::metadata(&part)).then_some(()))?;
    ensure!(fs::write(part.join("g"), "").is_err());
    fs::create_dir(&whole)?;
    ensure!(is_stale(fs::read_dir(&part).and_then(|mut all| all.next().transpose())));
    weft_ok(&["umount", path(&part)])?;
    let again = cluster.mount_with("again", &["--subdir", "/team/a"])?;
    fs::write(again.join("g"), "")?;
    ensure!(whole.join("g").exists());
    Ok(())
}

#[test]
fn what_is_no_directory_there_is_not_mounted() -> Result<()> {
    let (cluster, whole, _) = part()?;
    fs::write(whole.join("file"), "")?;
    let at = cluster.scratch("nothing")?;
    let address = cluster.address()?;
    let refused = |subdir: &str| -> Result<String> {
        let log = cluster.dir().join("log/refused.log");
        let args = ["mount", "--cluster", &address, "--log-file", path(&log)];
        let out = weft(&[&args[..], &["--subdir", subdir, path(&at)]].concat())?;
        ensure!(!out.status.success(), "{subdir} is mounted");
        Ok(String::from_utf8_lossy(&out.stderr).into_owned())
    };
    for (subdir, part) in [("/team/b", "\"b\""), ("/team/a/file", "\"file\""), ("/a/../b", "..")] {
        let said = refused(subdir)?;
        ensure!(said.contains(subdir) && said.contains(part), "{said}");
    }
    ensure!(fs::read_dir(&at)?.next().is_none());
    let mounts = cluster.status()?["mounts"].as_array().map_or(0, Vec::len);
    ensure!(mounts == 2, "{mounts} mounts");
    // No session is left to wait for.
    let mut last = None;
    eventually(PATIENCE, "two sessions", || {
        last = cluster.overview().ok()?["sessions"].as_array().map(Vec::len);
        (last == Some(2)).then_some(())
    })
    .with_context(|| format!("the last were {last:?}"))?;
    if fs::metadata(&at)?.dev() != fs::metadata(cluster.dir())?.dev() {
        bail!("something is mounted at {}", at.display());
    }
    Ok(())
}
