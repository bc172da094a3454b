//! What the mount that alone uses a folder does there, and tells the metadata group later: within a
//! second, or when somebody wants to know. Names the invariants (design §2) that each
//! test holds up.

use anyhow::{Context, Result, ensure};
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};
use weft_tests::{Cluster, eventually, path, requests, tries, weft_ok};

fn make(at: &Path) -> Result<File> {
    let made = OpenOptions::new().read(true).write(true).create_new(true).open(at);
    made.with_context(|| format!("make {}", at.display()))
}

/// A new folder, in which the mount can make files on its own from now on.
fn folder(mount: &Path, name: &str) -> Result<std::path::PathBuf> {
    let dir = mount.join(name);
    fs::create_dir(&dir)?;
    Ok(dir)
}

/// Makes files until the mount does so without asking: it has numbers for them.
fn warm_up(dir: &Path) -> Result<()> {
    let mount = dir.parent().context("a mount")?;
    let mut i = 0;
    eventually(Duration::from_secs(60), "files are made without asking", || {
        let before = requests(mount).ok()?;
        let file = make(&dir.join(format!("warm.{i}"))).ok()?;
        i += 1;
        let alone = requests(mount).ok()? == before;
        drop(file);
        alone.then_some(())
    })
}

#[test]
fn many_files_are_made_written_and_closed_by_few_commits() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.mnt();
    let dir = folder(m, "d")?;
    warm_up(&dir)?;
    // As tar does it.
    let before = requests(m)?;
    for i in 0..100 {
        let mut file = make(&dir.join(format!("f{i}")))?;
        file.write_all(&[i; 1000])?;
        file.set_permissions(fs::Permissions::from_mode(0o640))?;
        let time = UNIX_EPOCH + Duration::from_secs(1_000_000);
        file.set_times(FileTimes::new().set_accessed(time).set_modified(time))?;
    }
    let asked = requests(m)? - before;
    ensure!(asked < 50, "{asked} requests");
    // Nothing was written to these.
    let before = requests(m)?;
    for i in 0..100 {
        make(&dir.join(format!("e{i}")))?;
    }
    let asked = requests(m)? - before;
    ensure!(asked < 50, "{asked} requests");
    // All is there for whoever did not see it being made.
    let other = cluster.mount_again("second")?.join("d");
    for i in 0..100 {
        ensure!(fs::read(other.join(format!("f{i}")))? == [i; 1000]);
        let meta = fs::metadata(other.join(format!("f{i}")))?;
        ensure!((meta.mode() & 0o7777, meta.mtime()) == (0o640, 1_000_000), "{meta:?}");
        ensure!(fs::metadata(other.join(format!("e{i}")))?.len() == 0);
    }
    cluster.await_clean()
}

/// A commit changes nothing of what was shown before.
#[test]
fn a_file_is_shown_as_it_will_be() -> Result<()> {
    let cluster = Cluster::start()?;
    let dir = folder(cluster.mnt(), "d")?;
    warm_up(&dir)?;
    let looks = |file: &File| -> Result<_> {
        let m = file.metadata()?;
        let times =
            [(m.atime(), m.atime_nsec()), (m.mtime(), m.mtime_nsec()), (m.ctime(), m.ctime_nsec())];
        Ok((m.ino(), m.mode(), m.uid(), m.gid(), m.nlink(), m.size(), m.blocks(), times))
    };
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o2775))?;
    std::os::unix::fs::chown(&dir, None, Some(7))?;
    let folder = File::open(&dir)?;
    let before = looks(&folder)?;
    let mut file = make(&dir.join("f"))?;
    let made = looks(&file)?;
    ensure!((made.3, made.4, made.5) == (7, 1, 0), "{made:?}");
    ensure!(made.7[1] == made.7[2] && looks(&folder)?.7[1] == made.7[1], "{made:?} {before:?}");
    ensure!(made.7[1] > before.7[2], "{made:?} {before:?}");
    file.sync_all()?;
    ensure!(looks(&file)? == made, "{made:?} {:?}", looks(&file)?);
    drop(make(&dir.join("g"))?);
    let shown = looks(&folder)?;
    file.write_all(b"abc")?;
    let written = looks(&file)?;
    // Another mount asks the group.
    let other = cluster.mount_again("second")?.join("d");
    ensure!(looks(&File::open(&other)?)? == shown);
    ensure!(looks(&File::open(other.join("f"))?)?.7 == written.7);
    ensure!(looks(&folder)? == shown && looks(&file)?.7 == written.7);
    Ok(())
}

/// I6: whoever looks sees it, also while it is open and was not written to.
#[test]
fn what_was_made_is_seen_at_once() -> Result<()> {
    let cluster = Cluster::start()?;
    let a = cluster.mnt();
    let b = cluster.mount_again("second")?;
    warm_up(&folder(a, "warm")?)?;
    for i in 0..tries(30) {
        let name = format!("d{i}");
        let (ours, theirs) = (folder(a, &name)?, b.join(&name));
        let mut open = make(&ours.join("open"))?;
        fs::write(ours.join("written"), "content")?;
        drop(make(&ours.join("empty"))?);
        let look = i % 6;
        match look {
            0 => ensure!(fs::read_dir(&theirs)?.count() == 3),
            1 => ensure!(fs::metadata(theirs.join("open"))?.len() == 0),
            2 => ensure!(fs::metadata(&theirs)?.mtime_nsec() == fs::metadata(&ours)?.mtime_nsec()),
            3 => ensure!(make(&theirs.join("open")).is_err()),
            4 => ensure!(fs::remove_dir(&theirs).is_err()),
            _ => fs::rename(theirs.join("empty"), theirs.join("renamed"))?,
        }
        ensure!(fs::read_dir(&theirs)?.count() == 3, "{look}");
        ensure!(fs::read(theirs.join("written"))? == b"content", "{look}");
        // It is open still, and used.
        open.write_all(b"more")?;
        ensure!(fs::read(theirs.join("open"))? == b"more", "{look}");
        fs::remove_file(theirs.join("open"))?;
        ensure!(open.metadata()?.nlink() == 0, "{look}");
        let mut text = String::new();
        open.rewind()?;
        open.read_to_string(&mut text)?;
        ensure!(text == "more", "{look}: {text}");
        ensure!(make(&ours.join("open")).is_ok() && theirs.join("open").exists(), "{look}");
    }
    cluster.await_clean()
}

#[test]
fn a_name_is_made_by_one_mount() -> Result<()> {
    let cluster = Cluster::start()?;
    let mounts = [cluster.mnt().to_path_buf(), cluster.mount_again("second")?];
    warm_up(&folder(&mounts[0], "warm")?)?;
    for round in 0..10 {
        folder(&mounts[round % 2], &format!("d{round}"))?;
        let made = thread::scope(|s| -> Result<u64> {
            let race = |mount: &Path| -> u64 {
                let name = |i: u64| mount.join(format!("d{round}/f{i}"));
                (0..50u64).filter(|&i| make(&name(i)).is_ok()).count() as u64
            };
            let both = mounts.each_ref().map(|mount| s.spawn(move || race(mount)));
            Ok(both.into_iter().map(|one| one.join().unwrap_or(0)).sum())
        })?;
        ensure!(made == 50, "{made} of 50 names were made");
    }
    cluster.await_clean()
}

#[test]
fn a_folder_with_a_new_file_is_not_empty() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.mnt();
    warm_up(&folder(m, "warm")?)?;
    let (dir, other) = (folder(m, "d")?, folder(m, "other")?);
    let mut file = make(&dir.join("f"))?;
    let refused = fs::remove_dir(&dir).map_err(|error| error.raw_os_error());
    ensure!(refused == Err(Some(libc::ENOTEMPTY)), "{refused:?}");
    let second = make(&dir.join("g"))?;
    let refused = fs::rename(&other, &dir).map_err(|error| error.raw_os_error());
    ensure!(refused == Err(Some(libc::ENOTEMPTY)), "{refused:?}");
    // What loses its name before anybody heard of it lives on while it is open.
    let third = make(&dir.join("h"))?;
    for name in ["f", "g", "h"] {
        fs::remove_file(dir.join(name))?;
    }
    fs::remove_dir(&dir)?;
    file.write_all(b"abc")?;
    for file in [&file, &second, &third] {
        ensure!(file.metadata()?.nlink() == 0);
        file.sync_all()?;
    }
    let mut text = [0; 3];
    file.read_exact_at(&mut text, 0)?;
    ensure!(&text == b"abc");
    drop((file, second, third));
    cluster.await_clean()
}

/// I2: what fsync has answered for, of a folder too, survives the death of all
/// processes, and so does all before.
#[test]
fn what_is_durable_outlives_all_processes() -> Result<()> {
    let cluster = Cluster::start()?;
    let dir = folder(cluster.mnt(), "d")?;
    warm_up(&dir)?;
    let name = |kind: &str, i: u64| dir.join(format!("{kind}{i}"));
    for i in 0..20 {
        make(&name("synced", i))?.sync_all()?;
        fs::write(name("written", i), "content")?;
        fs::rename(name("written", i), name("moved", i))?;
        let touched = make(&name("touched", i))?;
        touched.set_times(FileTimes::new().set_accessed(UNIX_EPOCH).set_modified(UNIX_EPOCH))?;
        drop(touched);
        drop(make(&name("folder", i))?);
    }
    File::open(&dir)?.sync_all()?;
    cluster.kill_all()?;
    cluster.start_again()?;
    for i in 0..20 {
        for (kind, len) in [("synced", 0), ("moved", 7), ("touched", 0), ("folder", 0)] {
            let found = fs::metadata(name(kind, i)).with_context(|| format!("{kind}{i}"))?;
            ensure!(found.len() == len, "{kind}{i}");
        }
    }
    cluster.await_clean()
}

/// A mount that waits for every file.
#[test]
fn a_mount_with_dirsync_makes_nothing_on_its_own() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.scratch("dirsync")?;
    weft_ok(&["mount", "-o", "dirsync", "--cluster", &cluster.address()?, path(&m)])?;
    let dir = folder(&m, "d")?;
    for i in 0..50 {
        let before = requests(&m)?;
        let file = make(&dir.join(format!("f{i}")))?;
        ensure!(requests(&m)? > before, "f{i} is not durable");
        drop(file);
    }
    Ok(())
}

/// Makes files of all kinds until told to stop; answers how many there are.
fn make_until(dir: &Path, stop: &AtomicBool, done: &AtomicU64) -> Result<u64> {
    let mut i = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut file = make(&dir.join(i.to_string()))?;
        if i % 3 != 0 {
            file.write_all(&content(i))?;
        }
        if i % 3 == 2 {
            file.sync_all()?;
        }
        // It counts when its close has succeeded.
        nix::unistd::close(file)?;
        i += 1;
        done.store(i, Ordering::Relaxed);
    }
    Ok(i)
}

/// From inline to a few stripes.
fn content(i: u64) -> Vec<u8> {
    weft_tests::data::bytes(i, 1 << (4 + i % 16))
}

fn verify(dir: &Path, i: u64) -> Result<()> {
    let found = fs::read(dir.join(i.to_string())).with_context(|| format!("read {i}"))?;
    let wanted = if i.is_multiple_of(3) { Vec::new() } else { content(i) };
    ensure!(found == wanted, "{i} has {} of {} bytes", found.len(), wanted.len());
    Ok(())
}

#[test]
fn files_are_made_while_leaders_die() -> Result<()> {
    let cluster = Cluster::start()?;
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let dirs = ["a", "b"].map(|name| folder(cluster.mnt(), name));
    let dirs = dirs.into_iter().collect::<Result<Vec<_>>>()?;
    warm_up(&dirs[0])?;
    let made = thread::scope(|s| -> Result<Vec<u64>> {
        let (stop, done) = (&stop, &done);
        let makers: Vec<_> =
            dirs.iter().map(|dir| s.spawn(move || make_until(dir, stop, done))).collect();
        let died = (|| -> Result<()> {
            for _ in 0..2 {
                let until = done.load(Ordering::Relaxed) + 100;
                eventually(Duration::from_secs(60), "more files", || {
                    (done.load(Ordering::Relaxed) >= until).then_some(())
                })?;
                cluster.kill_leader()?;
                let until = done.load(Ordering::Relaxed) + 20;
                eventually(Duration::from_secs(60), "files under another leader", || {
                    (done.load(Ordering::Relaxed) >= until).then_some(())
                })?;
                cluster.start_again()?;
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        let made = makers.into_iter().map(|maker| maker.join().expect("a maker")).collect();
        died.and(made)
    })?;
    let other = cluster.mount_again("second")?;
    for (name, count) in ["a", "b"].into_iter().zip(made) {
        for i in 0..count {
            verify(&other.join(name), i).with_context(|| format!("in {name} of {count}"))?;
        }
    }
    cluster.await_clean()
}

/// Who is declared dead while it makes files goes on with them in its next session, or is told that
/// it cannot: a request may have been on its way.
#[test]
fn a_new_file_outlives_its_session() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt(), cluster.mount_again("second")?);
    let dir = folder(a, "d")?;
    warm_up(&dir)?;
    let (mut small, mut large) = (make(&dir.join("small"))?, make(&dir.join("large"))?);
    let empty = make(&dir.join("empty"))?;
    let bytes = weft_tests::data::bytes(1, 3 << 20);
    small.write_all(b"abc")?;
    large.write_all(&bytes)?;
    {
        let _paused = cluster.pause_mount(a)?;
        // Its leases are taken from it with its session.
        let _ = fs::read_dir(b.join("d"))?.count();
    }
    for (file, name, content) in
        [(&small, "small", &b"abc"[..]), (&large, "large", &bytes), (&empty, "empty", b"")]
    {
        match file.sync_all() {
            Ok(()) => ensure!(fs::read(b.join("d").join(name))? == content, "{name}"),
            // Its data may lie on targets, where the dead session may commit it no more.
            Err(error) => ensure!(
                name == "large" && error.raw_os_error() == Some(libc::EIO),
                "{name}: {error}"
            ),
        }
    }
    drop((small, large, empty));
    cluster.await_clean()
}
