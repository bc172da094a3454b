//! Quotas through mounts: limits hold whoever races for what is left, who is refused is told, what
//! is told is what there is.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft_tests::{Cluster, Shape, eventually, path, weft, weft_ok};

const MIB: u64 = 1 << 20;

fn show(args: &[&str]) -> Result<Value> {
    let out = weft_ok(&[&["quota", "show"], args, &["--output", "json"]].concat())?;
    serde_json::from_str(&out).with_context(|| format!("quota show printed {out:?}"))
}

fn set(args: &[&str]) -> Result<()> {
    weft_ok(&[&["quota", "set"], args].concat()).map(drop)
}

fn used(of: &Path) -> Result<(u64, u64)> {
    let shown = show(&[path(of)])?;
    let number = |what: &str| shown[what]["used"].as_u64();
    number("bytes").zip(number("inodes")).with_context(|| format!("nothing is used in {shown}"))
}

fn is_refused<T>(outcome: &io::Result<T>) -> bool {
    matches!(outcome, Err(e) if e.raw_os_error() == Some(libc::EDQUOT))
}

/// Bytes and inodes below a folder, as they are found.
fn found(dir: &Path) -> Result<(u64, u64)> {
    let (mut bytes, mut inodes) = (0, 0);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        (bytes, inodes) = (bytes + meta.blocks() * 512, inodes + 1);
        if meta.is_dir() {
            let below = found(&entry.path())?;
            (bytes, inodes) = (bytes + below.0, inodes + below.1);
        }
    }
    Ok((bytes, inodes))
}

/// Writes pieces until that is refused. Answers how many bytes were taken.
fn fill(file: &mut File, piece: usize) -> Result<u64> {
    let (bytes, mut taken) = (vec![7u8; piece], 0);
    loop {
        match file.write(&bytes) {
            Ok(n) => taken += n as u64,
            refused if is_refused(&refused) => return Ok(taken),
            Err(e) => return Err(e.into()),
        }
        ensure!(taken < 4096 * MIB, "nothing stands against more than {taken} bytes");
    }
}

fn shape() -> Shape {
    Shape { target_size: "1GiB", ..Shape::default() }
}

#[test]
fn limits_of_a_folder_hold_and_are_shown() -> Result<()> {
    let cluster = Cluster::start()?;
    let dir = cluster.mnt().join("team");
    fs::create_dir(&dir)?;
    let nothing = show(&[path(&dir)])?;
    ensure!(nothing["bytes"]["limit"].is_null() && nothing["exceeded"] == false, "{nothing}");
    set(&[path(&dir), "--bytes", "64MiB", "--inodes", "500"])?;
    let shown = show(&[path(&dir)])?;
    ensure!(shown["path"] == path(&dir), "{shown}");
    ensure!(shown["bytes"]["limit"] == 64 * MIB && shown["inodes"]["limit"] == 500, "{shown}");
    ensure!(shown["exceeded"] == false && shown["counting"] == false, "{shown}");
    // A write past the limit is refused itself, and what was taken before is there.
    let mut file = File::create(dir.join("big"))?;
    let taken = fill(&mut file, MIB as usize)?;
    file.sync_all()?;
    drop(file);
    ensure!(taken == 64 * MIB && fs::metadata(dir.join("big"))?.len() == taken, "{taken} bytes");
    ensure!(used(&dir)? == (64 * MIB, 1), "{:?}", used(&dir)?);
    ensure!(show(&[path(&dir)])?["exceeded"] == true);
    // So is one of a new file, at the latest when it is closed or synced.
    let mut more = File::create(dir.join("more"))?;
    let refused = more.write_all(b"bytes").and_then(|()| more.sync_all());
    ensure!(is_refused(&refused), "{refused:?}");
    // What replaces as much is not.
    let again = OpenOptions::new().write(true).open(dir.join("big"))?;
    again.write_all_at(&vec![9u8; 300_000], 12_345)?;
    again.sync_all()?;
    drop((more, again));
    // df of what lies below shows the limit.
    let room = nix_statvfs(&dir)?;
    ensure!(room == (64 * MIB, 0, 498), "{room:?}");
    ensure!(nix_statvfs(cluster.mnt())?.0 > 100 * MIB);
    // What is removed leaves room at once.
    fs::remove_file(dir.join("big"))?;
    fs::write(dir.join("small"), vec![1u8; 2 << 20])?;
    ensure!(used(&dir)? == (2 * MIB, 2), "{:?}", used(&dir)?);
    // But not while somebody has it open.
    let mut held = File::create(dir.join("held"))?;
    held.write_all(&vec![2u8; 60 << 20])?;
    held.sync_all()?;
    fs::remove_file(dir.join("held"))?;
    ensure!(used(&dir)?.0 == 62 * MIB, "{:?}", used(&dir)?);
    let other = dir.join("other");
    let write = || File::create(&other).and_then(|mut f| f.write_all(&[3u8; 8 << 20]));
    ensure!(is_refused(&write()));
    drop(held);
    eventually(Duration::from_secs(60), "room for another", || write().ok())?;
    cluster.await_clean()
}

/// A mount hears a moment later that a file was closed, and tells it a moment after that.
#[test]
fn what_was_closed_and_removed_leaves_room_to_all_who_want_it_at_once() -> Result<()> {
    let cluster = Cluster::start()?;
    let dir = cluster.mnt().join("full");
    fs::create_dir(&dir)?;
    set(&[path(&dir), "--bytes", "8MiB"])?;
    for round in 0..20 {
        let mut file = File::create(dir.join("big"))?;
        file.write_all(&vec![round; 8 << 20])?;
        file.sync_all()?;
        drop(file);
        fs::remove_file(dir.join("big"))?;
        let writers = (0..4).map(|i| {
            let path = dir.join(format!("small{i}"));
            std::thread::spawn(move || {
                let mut file = File::create(&path)?;
                file.write_all(&vec![i; 2 << 20])?;
                file.sync_all()?;
                drop(file);
                fs::remove_file(&path)
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            let wrote = writer.join().expect("a writer panicked");
            wrote.with_context(|| format!("round {round}"))?;
        }
    }
    cluster.await_clean()
}

/// Bytes in all and free, and inodes that are free.
fn nix_statvfs(of: &Path) -> Result<(u64, u64, u64)> {
    let out = Command::new("stat").args(["-f", "-c", "%S %b %a %d", path(of)]).output()?;
    let text = String::from_utf8(out.stdout)?;
    let n: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    ensure!(n.len() == 4, "stat printed {text:?}");
    Ok((n[0] * n[1], n[0] * n[2], n[3]))
}

#[test]
fn inodes_are_refused_where_they_are_made() -> Result<()> {
    let cluster = Cluster::start()?;
    let dir = cluster.mnt().join("few");
    fs::create_dir_all(dir.join("sub"))?;
    set(&[path(&dir), "--inodes", "500"])?;
    for i in 0..498 {
        File::create(dir.join(format!("f{i}"))).with_context(|| format!("file {i}"))?;
    }
    fs::create_dir(dir.join("sub/last"))?;
    let file = File::create(dir.join("sub/over"));
    ensure!(is_refused(&file), "{file:?}");
    ensure!(is_refused(&fs::create_dir(dir.join("d"))));
    ensure!(is_refused(&std::os::unix::fs::symlink("x", dir.join("l"))));
    ensure!(used(&dir)? == (0, 500) && found(&dir)?.1 == 500, "{:?}", used(&dir)?);
    // Outside there is room, and what comes in from there finds none.
    let outside = cluster.mnt().join("outside");
    File::create(&outside)?;
    ensure!(is_refused(&fs::rename(&outside, dir.join("in"))));
    fs::remove_file(dir.join("f0"))?;
    fs::rename(&outside, dir.join("in"))?;
    // Folders do not move from one quota to another: mv copies them.
    let moved = fs::rename(dir.join("sub"), cluster.mnt().join("sub"));
    ensure!(moved.is_err_and(|e| e.raw_os_error() == Some(libc::EXDEV)));
    let linked = fs::hard_link(dir.join("f1"), cluster.mnt().join("f1"));
    ensure!(linked.is_err_and(|e| e.raw_os_error() == Some(libc::EXDEV)));
    weft_tests::run("mv", &[path(&dir.join("sub")), path(cluster.mnt())], cluster.mnt())?;
    ensure!(used(&dir)? == (0, 498), "{:?}", used(&dir)?);
    cluster.await_clean()
}

/// Mounts race for what is left; answers what each took.
fn race(
    mounts: &[PathBuf],
    each: impl Fn(&Path, usize) -> Result<u64> + Send + Sync + 'static,
) -> Result<Vec<u64>> {
    let each = Arc::new(each);
    let racers = mounts.iter().cloned().enumerate().map(|(i, mount)| {
        let each = each.clone();
        std::thread::spawn(move || each(&mount, i))
    });
    let racers: Vec<_> = racers.collect();
    racers.into_iter().map(|r| r.join().expect("a racer panicked")).collect()
}

/// How many mounts race.
fn racers() -> usize {
    std::env::var("WEFT_RACERS").ok().and_then(|n| n.parse().ok()).unwrap_or(4)
}

/// The largest credit of one mount (decision 054).
const CREDIT: (u64, u64) = (64 * MIB, 1024);

#[test]
fn mounts_that_race_end_at_the_limit() -> Result<()> {
    let cluster = Cluster::start_as(shape())?;
    let mut mounts = vec![cluster.mnt().to_path_buf()];
    for i in 1..racers() {
        mounts.push(cluster.mount_again(&format!("m{i}"))?);
    }
    let dir = cluster.mnt().join("race");
    fs::create_dir(&dir)?;
    let limit = match racers() {
        8.. => 1024 * MIB,
        _ => 256 * MIB,
    };
    set(&[path(&dir), "--bytes", &limit.to_string(), "--inodes", "none"])?;
    // A long file each, and what was acknowledged is there.
    let taken = race(&mounts, |mount, i| {
        let mut file = File::create(mount.join(format!("race/long{i}")))?;
        let mut synced = 0;
        loop {
            // What a sync has acknowledged stays, whatever comes after it.
            let bytes = vec![i as u8; MIB as usize];
            let wrote = (0..4).try_for_each(|_| file.write_all(&bytes));
            match wrote.and_then(|()| file.sync_all()) {
                Ok(()) => synced += 4 * MIB,
                refused if is_refused(&refused) => break,
                Err(e) => return Err(e.into()),
            }
        }
        let len = fs::metadata(mount.join(format!("race/long{i}")))?.len();
        ensure!(len >= synced, "{len} bytes of {synced} that were synced");
        Ok(synced)
    })?;
    let sum: u64 = taken.iter().sum();
    let (bytes, _) = used(&dir)?;
    eprintln!("{} mounts took {sum} bytes, {bytes} are used of {limit}", mounts.len());
    ensure!(bytes >= sum && bytes <= limit + CREDIT.0 * mounts.len() as u64, "{bytes} are used");
    ensure!(bytes > limit - 64 * MIB, "{bytes} of {limit} are used: refused too early");
    for i in 0..mounts.len() {
        fs::remove_file(dir.join(format!("long{i}")))?;
    }
    // Many small ones, closed and not synced: none of those is lost whose close was answered.
    set(&[path(&dir), "--bytes", "32MiB"])?;
    let taken = race(&mounts, |mount, i| {
        for n in 0.. {
            let name = mount.join(format!("race/s{i}-{n}"));
            match fs::write(&name, vec![1u8; 40_000]) {
                Ok(()) => {}
                refused if is_refused(&refused) => {
                    let _ = fs::remove_file(&name);
                    return Ok(n);
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(0)
    })?;
    mounts.iter().try_for_each(|mount| weft_ok(&["sync", path(mount)]).map(drop))?;
    let (bytes, inodes) = used(&dir)?;
    eprintln!("{taken:?} small files, {bytes} bytes in {inodes}");
    ensure!(bytes <= 32 * MIB + CREDIT.0 * mounts.len() as u64, "{bytes} are used");
    for (i, n) in taken.iter().enumerate() {
        for n in 0..*n {
            let len = fs::metadata(dir.join(format!("s{i}-{n}")))?.len();
            ensure!(len == 40_000, "file {n} of mount {i} has {len} bytes");
        }
    }
    cluster.await_clean()
}

#[test]
fn mounts_that_race_for_inodes_end_at_the_limit() -> Result<()> {
    let cluster = Cluster::start()?;
    let mut mounts = vec![cluster.mnt().to_path_buf()];
    for i in 1..racers() {
        mounts.push(cluster.mount_again(&format!("m{i}"))?);
    }
    let dir = cluster.mnt().join("race");
    fs::create_dir(&dir)?;
    let limit = if racers() >= 8 { 10_000 } else { 3000 };
    set(&[path(&dir), "--inodes", &limit.to_string()])?;
    // Some in one folder, some in folders of their own, which are filled unasked.
    let made = race(&mounts, |mount, i| {
        let mut made = 0;
        let mut at = mount.join("race");
        if i % 2 == 0 {
            at = at.join(format!("d{i}"));
            fs::create_dir(&at)?;
            made += 1;
        }
        for n in 0.. {
            match File::create(at.join(format!("f{i}-{n}"))) {
                Ok(_) => made += 1,
                refused if is_refused(&refused) => break,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(made)
    })?;
    mounts.iter().try_for_each(|mount| weft_ok(&["sync", path(mount)]).map(drop))?;
    let sum: u64 = made.iter().sum();
    let (_, inodes) = used(&dir)?;
    eprintln!("{made:?} inodes, {inodes} are used of {limit}");
    ensure!(inodes == sum && found(&dir)?.1 == sum, "{inodes} are used, {sum} were made");
    ensure!(inodes >= limit && inodes <= limit + CREDIT.1 * mounts.len() as u64);
    cluster.await_clean()
}

#[test]
fn what_is_there_is_counted_and_outlives_the_servers() -> Result<()> {
    let cluster = Cluster::start()?;
    let other = cluster.mount_again("other")?;
    let dir = cluster.mnt().join("old");
    for i in 0..30 {
        let sub = dir.join(format!("d{i}/e"));
        fs::create_dir_all(&sub)?;
        for n in 0..40 {
            fs::write(sub.join(format!("f{n}")), vec![3u8; 5000])?;
        }
    }
    // Somebody makes more meanwhile, under leases that are taken back for it.
    let stop = Arc::new(AtomicBool::new(false));
    let busy = {
        let (stop, at) = (stop.clone(), other.join("old/d7/e"));
        std::thread::spawn(move || -> Result<()> {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                fs::write(at.join(format!("g{n}")), b"more")?;
            }
            Ok(())
        })
    };
    set(&[path(&dir), "--bytes", "1GiB"])?;
    stop.store(true, Ordering::Relaxed);
    busy.join().expect("the other mount")?;
    weft_ok(&["sync", path(&other)])?;
    let (bytes, inodes) = used(&dir)?;
    let (_, there) = found(&dir)?;
    ensure!(inodes == there && bytes > 30 * 40 * 5000, "{inodes} are used, {there} are there");
    cluster.await_clean()?;
    // One within, which the one around it counts, too.
    let sub = dir.join("d3");
    set(&[path(&sub), "--inodes", "45"])?;
    ensure!(used(&sub)?.1 == 41 && used(&dir)?.1 == there, "{:?}", used(&sub)?);
    cluster.stop()?;
    cluster.start_again()?;
    ensure!(used(&dir)? == (bytes, there) && used(&sub)?.1 == 41);
    cluster.kill_leader()?;
    for n in 0..4 {
        fs::write(sub.join(format!("h{n}")), b"x")?;
    }
    ensure!(is_refused(&File::create(sub.join("i"))));
    weft_ok(&["quota", "clear", path(&sub)])?;
    eventually(Duration::from_secs(60), "the quota is gone", || {
        let shown = show(&[path(&sub)]).ok()?;
        (shown["path"] == path(&dir)).then_some(())
    })?;
    fs::write(sub.join("i"), b"x")?;
    ensure!(used(&dir)?.1 == there + 5, "{:?}", used(&dir)?);
    cluster.start_again()?;
    cluster.await_clean()
}

fn name_of(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

#[test]
fn users_groups_and_projects_have_limits() -> Result<()> {
    let cluster = Cluster::start()?;
    let mnt = cluster.mnt();
    let above = mnt.parent().context("a folder above")?;
    fs::set_permissions(above, fs::Permissions::from_mode(0o755))?;
    let mine = mnt.join("mine");
    fs::create_dir(&mine)?;
    chown(&mine, Some(4321), Some(4321))?;
    let touch = |name: &str| {
        let at = mine.join(name);
        let id = ["--reuid=4321", "--regid=4321", "--clear-groups", "touch"];
        Command::new("setpriv").args(id).arg(&at).output()
    };
    ensure!(touch("before")?.status.success());
    set(&[path(mnt), "--user", "4321", "--inodes", "4", "--bytes", "10MiB"])?;
    let shown = show(&[path(mnt), "--user", "4321"])?;
    ensure!(shown["inodes"]["used"] == 2 && shown["inodes"]["limit"] == 4, "{shown}");
    ensure!(touch("a")?.status.success() && touch("b")?.status.success());
    let refused = touch("c")?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("quota"), "{said}");
    // A whiteout would be root's, and counts for nobody else: only root leaves one.
    let (old, new) = (name_of(&mine.join("b"))?, name_of(&mine.join("d"))?);
    let leave = |user| {
        let (old, new) = (old.clone(), new.clone());
        let mut program = Command::new("true");
        // SAFETY: renameat2 may be called between fork and exec; the names outlive the call.
        let rename = move || match unsafe {
            let at = libc::AT_FDCWD;
            libc::renameat2(at, old.as_ptr(), at, new.as_ptr(), libc::RENAME_WHITEOUT)
        } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        // SAFETY: as above.
        unsafe { program.uid(user).gid(user).pre_exec(rename) }.status()
    };
    let refused = leave(4321).err().and_then(|e| e.raw_os_error());
    ensure!(refused == Some(libc::EPERM) && leave(0)?.success(), "{refused:?}");
    // What becomes his counts for him.
    fs::write(mnt.join("roots"), vec![1u8; 1 << 20])?;
    let given = chown(mnt.join("roots"), Some(4321), None);
    ensure!(is_refused(&given), "{given:?}");
    fs::remove_file(mine.join("a"))?;
    chown(mnt.join("roots"), Some(4321), None)?;
    let shown = show(&[path(mnt), "--user", "4321"])?;
    ensure!(shown["bytes"]["used"] == MIB && shown["inodes"]["used"] == 4, "{shown}");
    // A project is the sum of its folders.
    let (one, two) = (mnt.join("one"), mnt.join("two"));
    for dir in [&one, &two] {
        fs::create_dir(dir)?;
        set(&[path(dir), "--in-project", "7"])?;
    }
    set(&[path(mnt), "--project", "7", "--inodes", "2"])?;
    fs::write(one.join("a"), b"a")?;
    fs::write(two.join("b"), b"b")?;
    ensure!(is_refused(&File::create(two.join("c"))));
    let report: Value =
        serde_json::from_str(&weft_ok(&["quota", "report", path(mnt), "--output", "json"])?)?;
    let kinds: Vec<_> = report.as_array().context("a list")?.iter().map(|q| &q["kind"]).collect();
    ensure!(kinds.iter().filter(|kind| **kind == "tree").count() == 2, "{report}");
    ensure!(kinds.iter().any(|kind| *kind == "project") && kinds.iter().any(|k| *k == "user"));
    weft_ok(&["quota", "clear", path(mnt), "--user", "4321"])?;
    ensure!(touch("c")?.status.success());
    // Only root sets them.
    let by = ["--reuid=4321", "--regid=4321", "--clear-groups"];
    let binary = cluster.scratch("bin")?.join("weft");
    fs::copy(weft_tests::weft_binary(), &binary)?;
    let args = ["quota", "set", path(&mine), "--bytes", "1TiB"];
    let out = Command::new("setpriv").args(by).arg(binary).args(args).output()?;
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    ensure!(!out.status.success() && said.contains("only root"), "{said}");
    let elsewhere = weft(&["quota", "set", "/tmp", "--bytes", "1MiB"])?;
    ensure!(!elsewhere.status.success(), "a quota outside of a mount");
    cluster.await_clean()
}

#[test]
fn a_soft_limit_holds_after_its_time() -> Result<()> {
    let cluster = Cluster::start()?;
    let dir = cluster.mnt().join("soft");
    fs::create_dir(&dir)?;
    set(&[path(&dir), "--soft-inodes", "3", "--grace", "1s"])?;
    for i in 0..5 {
        File::create(dir.join(format!("f{i}")))?;
    }
    ensure!(show(&[path(&dir)])?["exceeded"] == true);
    eventually(Duration::from_secs(60), "the time of grace is over", || {
        let over = File::create(dir.join("over"));
        // Of what comes and goes in between the group never hears.
        let _ = File::open(&dir).and_then(|dir| dir.sync_all());
        let _ = fs::remove_file(dir.join("over"));
        is_refused(&over).then_some(())
    })?;
    for i in 1..5 {
        fs::remove_file(dir.join(format!("f{i}")))?;
    }
    File::create(dir.join("again"))?;
    cluster.await_clean()
}
