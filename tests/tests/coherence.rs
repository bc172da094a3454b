//! What one mount did is what the other sees (I6): every operation on one, every observation on the
//! other that it could make stale, with both caching all that their leases allow.
//!
//! `WEFT_TRIES=1000` repeats each more often than the test suite does.

use anyhow::{Context, Result, ensure};
use nix::sys::stat::{Mode, SFlag, mknod};
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, fchown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use weft_tests::{Cluster, await_free, cost, requests, tell_accesses, tries};

/// In the test suite.
const TRIES: u64 = 40;

/// One row: `act` on one mount after both have looked, then `sees` on the other must hold.
struct Row {
    name: &'static str,
    /// Makes what is looked at, on the first mount.
    prepare: fn(&Path) -> Result<()>,
    /// What both mounts do before, so that they have it cached.
    look: fn(&Path) -> Result<()>,
    act: fn(&Path, u64) -> Result<()>,
    sees: fn(&Path, u64) -> Result<()>,
}

fn nothing(_: &Path) -> Result<()> {
    Ok(())
}

fn make_file(dir: &Path) -> Result<()> {
    Ok(fs::write(dir.join("f"), "old content")?)
}

fn stat_and_read(dir: &Path) -> Result<()> {
    let _ = fs::metadata(dir.join("f"));
    let _ = fs::read(dir.join("f"));
    let _ = fs::metadata(dir.join("g"));
    let _ = fs::read_dir(dir)?.count();
    Ok(())
}

fn gone(path: PathBuf) -> Result<()> {
    ensure!(fs::symlink_metadata(&path).is_err(), "{} is still there", path.display());
    ensure!(File::open(&path).is_err(), "{} can still be opened", path.display());
    let dir = path.parent().context("a parent")?;
    let listed = fs::read_dir(dir)?.flatten().any(|e| e.path() == path);
    ensure!(!listed, "{} is still listed", path.display());
    Ok(())
}

const ROWS: &[Row] = &[
    Row {
        name: "create -> stat, open, list (was missing)",
        prepare: nothing,
        look: stat_and_read,
        act: |d, i| Ok(fs::write(d.join("g"), i.to_string())?),
        sees: |d, i| {
            ensure!(fs::metadata(d.join("g"))?.len() == i.to_string().len() as u64);
            ensure!(fs::read_dir(d)?.count() == 1);
            ensure!(fs::read_to_string(d.join("g"))? == i.to_string());
            Ok(())
        },
    },
    Row {
        name: "unlink -> stat, open, list",
        prepare: make_file,
        look: stat_and_read,
        act: |d, _| Ok(fs::remove_file(d.join("f"))?),
        sees: |d, _| gone(d.join("f")),
    },
    Row {
        name: "rename -> both names",
        prepare: make_file,
        look: stat_and_read,
        act: |d, _| Ok(fs::rename(d.join("f"), d.join("g"))?),
        sees: |d, _| {
            ensure!(fs::read(d.join("g"))? == b"old content");
            gone(d.join("f"))
        },
    },
    Row {
        name: "rename over -> content",
        prepare: |d| {
            fs::write(d.join("g"), "another")?;
            make_file(d)
        },
        look: stat_and_read,
        act: |d, _| Ok(fs::rename(d.join("g"), d.join("f"))?),
        sees: |d, _| {
            ensure!(fs::read(d.join("f"))? == b"another");
            gone(d.join("g"))
        },
    },
    Row {
        name: "mkdir -> stat, use",
        prepare: nothing,
        look: stat_and_read,
        act: |d, _| Ok(fs::create_dir(d.join("g"))?),
        sees: |d, _| Ok(fs::write(d.join("g/x"), "in it")?),
    },
    Row {
        name: "rmdir -> stat, list",
        prepare: |d| Ok(fs::create_dir(d.join("f"))?),
        look: stat_and_read,
        act: |d, _| Ok(fs::remove_dir(d.join("f"))?),
        sees: |d, _| gone(d.join("f")),
    },
    Row {
        name: "symlink -> readlink",
        prepare: nothing,
        look: stat_and_read,
        act: |d, i| Ok(symlink(i.to_string(), d.join("g"))?),
        sees: |d, i| {
            ensure!(fs::read_link(d.join("g"))? == Path::new(&i.to_string()));
            Ok(())
        },
    },
    Row {
        name: "link -> link count, other name",
        prepare: make_file,
        look: stat_and_read,
        act: |d, _| Ok(fs::hard_link(d.join("f"), d.join("g"))?),
        sees: |d, _| {
            ensure!(fs::metadata(d.join("f"))?.nlink() == 2);
            ensure!(fs::metadata(d.join("g"))?.ino() == fs::metadata(d.join("f"))?.ino());
            Ok(())
        },
    },
    Row {
        name: "chmod -> mode",
        prepare: make_file,
        look: stat_and_read,
        act: |d, i| {
            Ok(fs::set_permissions(d.join("f"), fs::Permissions::from_mode(0o400 + i as u32 % 64))?)
        },
        sees: |d, i| {
            ensure!(fs::metadata(d.join("f"))?.mode() & 0o777 == 0o400 + i as u32 % 64);
            Ok(())
        },
    },
    Row {
        name: "truncate -> size, content",
        prepare: make_file,
        look: stat_and_read,
        act: |d, i| Ok(OpenOptions::new().write(true).open(d.join("f"))?.set_len(i % 11)?),
        sees: |d, i| {
            ensure!(fs::metadata(d.join("f"))?.len() == i % 11);
            ensure!(fs::read(d.join("f"))? == b"old content"[..(i % 11) as usize]);
            Ok(())
        },
    },
    Row {
        name: "rewrite and close -> size, content",
        prepare: make_file,
        look: stat_and_read,
        act: |d, i| Ok(fs::write(d.join("f"), vec![i as u8; 1 << (i % 18)])?),
        sees: |d, i| {
            ensure!(fs::metadata(d.join("f"))?.len() == 1 << (i % 18));
            ensure!(fs::read(d.join("f"))? == vec![i as u8; 1 << (i % 18)]);
            Ok(())
        },
    },
    Row {
        name: "store in a mapping, msync -> content",
        prepare: make_file,
        look: stat_and_read,
        act: |d, i| {
            let file = OpenOptions::new().read(true).write(true).open(d.join("f"))?;
            let (fd, prot) = (file.as_raw_fd(), libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: a new mapping of a file that is as long, used and taken away here.
            unsafe {
                let at = libc::mmap(std::ptr::null_mut(), 11, prot, libc::MAP_SHARED, fd, 0);
                ensure!(at != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
                at.cast::<u8>().add((i % 11) as usize).write_volatile(b'#');
                let synced = libc::msync(at, 11, libc::MS_SYNC);
                libc::munmap(at, 11);
                ensure!(synced == 0, "msync: {}", std::io::Error::last_os_error());
            }
            Ok(())
        },
        sees: |d, i| {
            let mut expected = b"old content".to_vec();
            expected[(i % 11) as usize] = b'#';
            ensure!(fs::read(d.join("f"))? == expected);
            Ok(())
        },
    },
    Row {
        name: "punch a hole -> content, blocks",
        prepare: |d| Ok(fs::write(d.join("f"), vec![7; 100_000])?),
        look: stat_and_read,
        act: |d, i| allocate(d, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, i * 1000),
        sees: |d, i| {
            let mut expected = vec![7; 100_000];
            expected[i as usize % 90 * 1000..][..5000].fill(0);
            ensure!(fs::metadata(d.join("f"))?.blocks() == 95_000u64.div_ceil(512));
            ensure!(fs::read(d.join("f"))? == expected);
            Ok(())
        },
    },
    Row {
        name: "fallocate -> size, content",
        prepare: make_file,
        look: stat_and_read,
        act: |d, i| allocate(d, 0, i * 1000),
        sees: |d, i| {
            let mut expected = b"old content".to_vec();
            expected.resize(i as usize % 90 * 1000 + 5000, 0);
            ensure!(fs::metadata(d.join("f"))?.len() == expected.len() as u64);
            ensure!(fs::read(d.join("f"))? == expected);
            Ok(())
        },
    },
    Row {
        name: "copy_file_range -> size, content",
        prepare: |d| {
            fs::write(d.join("g"), vec![9; 70_000])?;
            make_file(d)
        },
        look: stat_and_read,
        act: |d, i| {
            let (from, to) =
                (File::open(d.join("g"))?, File::options().write(true).open(d.join("f"))?);
            let (from, mut into) = (from.as_raw_fd(), (i % 11) as libc::off64_t);
            let none = std::ptr::null_mut();
            // SAFETY: the offset outlives the call.
            let copied =
                unsafe { libc::copy_file_range(from, none, to.as_raw_fd(), &mut into, 70_000, 0) };
            ensure!(copied == 70_000, "{copied} bytes: {}", std::io::Error::last_os_error());
            Ok(())
        },
        sees: |d, i| {
            let mut expected = b"old content"[..(i % 11) as usize].to_vec();
            expected.resize(expected.len() + 70_000, 9);
            ensure!(fs::metadata(d.join("f"))?.len() == expected.len() as u64);
            ensure!(fs::read(d.join("f"))? == expected);
            Ok(())
        },
    },
];

/// Of 5000 bytes at one of many places.
fn allocate(dir: &Path, mode: i32, at: u64) -> Result<()> {
    let file = File::options().write(true).open(dir.join("f"))?;
    allocate_in(&file, mode, at % 90_000)
}

fn allocate_in(file: &File, mode: i32, at: u64) -> Result<()> {
    // SAFETY: no memory is passed.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, at as i64, 5000) };
    ensure!(done == 0, "fallocate: {}", std::io::Error::last_os_error());
    Ok(())
}

#[test]
fn an_operation_on_one_mount_is_seen_on_the_other() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    for (number, row) in ROWS.iter().enumerate() {
        for i in 0..tries(TRIES) {
            let (from, to) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
            let name = format!("row{number}-{i}");
            let (here, there) = (from.join(&name), to.join(&name));
            fs::create_dir(&here)?;
            (row.prepare)(&here)?;
            (row.look)(&here)?;
            (row.look)(&there)?;
            (row.act)(&here, i)?;
            (row.sees)(&there, i).with_context(|| format!("{}, try {i}: stale", row.name))?;
            (row.sees)(&here, i).or_else(|e| match row.name.starts_with("mkdir") {
                true => Ok(()),
                false => Err(e),
            })?;
            fs::remove_dir_all(&there)?;
        }
        println!("{:48} {} tries, none stale", row.name, tries(TRIES));
    }
    weft_tests::weft_ok(&["umount", weft_tests::path(&b)])?;
    cluster.await_clean()
}

/// Descriptors stay open on both mounts: nothing is flushed or looked up again by an open or close.
#[test]
fn a_write_is_seen_through_descriptors_that_are_open() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    let open = |m: &Path| {
        let mut how = OpenOptions::new();
        how.read(true).write(true).create(true).truncate(false).open(m.join("f"))
    };
    let both = [open(&a)?, open(&b)?];
    let readers = [File::open(a.join("f"))?, File::open(b.join("f"))?];
    let mut size = 0;
    for i in 0..tries(TRIES) {
        let (by, of) = ((i % 2) as usize, 1 - (i % 2) as usize);
        // Overlapping places, unaligned lengths; page caches hold all of them.
        let (at, bytes) = (i * 1000 % 50_000, vec![i as u8 | 1; 3000]);
        both[by].write_all_at(&bytes, at)?;
        size = size.max(at + 3000);
        let mut got = vec![0; 3000];
        for (who, file) in [("reader", &readers[of]), ("writer", &both[of])] {
            file.read_exact_at(&mut got, at)?;
            ensure!(got == bytes, "stale content through the other's {who} in try {i}");
            ensure!(file.metadata()?.len() == size, "stale size in try {i}");
        }
        // Where nothing is, behind the end, a hole is nothing new: this one tells nothing of the
        // other.
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        allocate_in(&both[by], PUNCH, at)?;
        allocate_in(&both[of], PUNCH, 100_000)?;
        readers[of].read_exact_at(&mut got, at)?;
        ensure!(got == [0; 3000], "stale content in place of a hole in try {i}");
        ensure!(fs::metadata([&a, &b][of].join("f"))?.len() == size);
    }
    // Appends of both land one after the other.
    let append = |m: &Path| OpenOptions::new().append(true).create(true).open(m.join("log"));
    let mut logs = [append(&a)?, append(&b)?];
    for i in 0..tries(TRIES) {
        logs[(i % 2) as usize].write_all(format!("{i}\n").as_bytes())?;
    }
    let expected: String = (0..tries(TRIES)).map(|i| format!("{i}\n")).collect();
    ensure!(fs::read_to_string(a.join("log"))? == expected, "appends out of order on one mount");
    ensure!(fs::read_to_string(b.join("log"))? == expected, "appends out of order on the other");
    drop((both, readers, logs));
    weft_tests::weft_ok(&["umount", weft_tests::path(&b)])?;
    cluster.await_clean()
}

/// A mount that takes a name away needs the lease no more, but for what is open and was written
/// there.
#[test]
fn what_lost_a_name_is_seen_through_descriptors_and_other_names() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    for i in 0..tries(TRIES) {
        fs::write(a.join("f"), [i as u8; 5000])?;
        fs::hard_link(a.join("f"), a.join("g"))?;
        let open = |m: &Path| OpenOptions::new().read(true).write(true).open(m.join("f"));
        let (here, there) = (open(&a)?, open(&b)?);
        let mut got = [0; 5000];
        there.read_exact_at(&mut got, 0)?;
        // Written there, and not committed yet.
        there.write_all_at(b"first", 0)?;
        fs::remove_file(b.join("f"))?;
        ensure!(fs::read(a.join("g"))?.starts_with(b"first"), "not committed in try {i}");
        there.read_exact_at(&mut got, 0)?;
        fs::remove_file(b.join("g"))?;
        // The last lease on it is given up a moment after this mount took away its last name.
        there.read_exact_at(&mut got, 0)?;
        here.write_all_at(b"other", 0)?;
        there.read_exact_at(&mut got, 0)?;
        ensure!(got.starts_with(b"other"), "stale content through a descriptor in try {i}");
    }
    weft_tests::weft_ok(&["umount", weft_tests::path(&b)])?;
    cluster.await_clean()
}

#[test]
fn what_is_under_a_lease_costs_no_request() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.mnt();
    for d in 0..10 {
        let dir = m.join(format!("d{d}"));
        fs::create_dir(&dir)?;
        for f in 0..20 {
            fs::write(dir.join(f.to_string()), "x")?;
        }
    }
    cluster.remount()?;
    let walk = || -> Result<()> {
        for d in 0..10 {
            for f in 0..20 {
                ensure!(fs::metadata(m.join(format!("d{d}/{f}")))?.len() == 1);
            }
            ensure!(fs::metadata(m.join(format!("d{d}/none"))).is_err());
        }
        Ok(())
    };
    walk()?;
    await_free(m, "look 10,500 times at a warm tree", || (0..50).try_for_each(|_| walk()))?;
    // A small file that was looked up is opened and read without another.
    let file = m.join("d3/7");
    await_free(m, "open and read a file that is known", || {
        ensure!(fs::read(&file)? == b"x");
        Ok(())
    })
}

/// Attributes come many at a time, and are as good as those that were asked for one by one.
#[test]
fn who_lists_a_folder_and_looks_at_each_name_asks_seldom() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.mnt();
    let (dir, files) = (m.join("d"), 1000);
    fs::create_dir(&dir)?;
    for i in 0..files {
        File::create(dir.join(i.to_string()))?;
    }
    cluster.remount()?;
    let second = cluster.mount_again("second")?;
    let other = second.join("d");
    let walk = || -> Result<Vec<(String, u64)>> {
        let look = |entry: std::io::Result<fs::DirEntry>| {
            let entry = entry?;
            let name = entry.file_name().into_string().ok().context("a name")?;
            Ok((name, fs::symlink_metadata(entry.path())?.len()))
        };
        let mut found = fs::read_dir(&dir)?.map(look).collect::<Result<Vec<_>>>()?;
        found.sort();
        Ok(found)
    };
    let named = |range: std::ops::Range<u64>, len: fn(u64) -> u64| {
        let mut all: Vec<_> = range.map(|i| (i.to_string(), len(i))).collect();
        all.sort();
        all
    };
    let cold = cost(m, || {
        ensure!(walk()? == named(0..files, |_| 0));
        Ok(())
    })?;
    ensure!(cold < files / 2, "a cold walk over {files} files made {cold} requests");
    await_free(m, "walk where all is known", || {
        ensure!(walk()?.len() as u64 == files);
        Ok(())
    })?;
    await_free(m, "look for a name that is not listed", || {
        ensure!(!dir.join("none").exists());
        Ok(())
    })?;
    // Whoever changes something is seen, wherever it was learnt from.
    for i in 0..files {
        fs::write(other.join(i.to_string()), vec![1; i as usize])?;
    }
    ensure!(walk()? == named(0..files, |i| i));
    fs::write(other.join("1000"), "")?;
    fs::remove_file(other.join("0"))?;
    fs::rename(other.join("1"), other.join("1001"))?;
    fs::rename(other.join("1001"), other.join("1"))?;
    ensure!(dir.join("1000").exists() && !dir.join("0").exists());
    ensure!(walk()? == named(1..1001, |i| i % 1000));
    // So is what was changed here.
    fs::remove_file(dir.join("1000"))?;
    fs::write(dir.join("0"), "")?;
    ensure!(walk()? == named(0..files, |i| i));
    weft_tests::weft_ok(&["umount", weft_tests::path(&second)])?;
    cluster.await_clean()
}

/// Names that are made or moved in a folder that nobody else uses are told together, and it costs
/// none to look at the folder again.
#[test]
fn changes_of_a_folder_cost_few_requests() -> Result<()> {
    let cluster = Cluster::start()?;
    let dir = cluster.mnt().join("d");
    fs::create_dir(&dir)?;
    let cost = |what: &str, act: &dyn Fn(&Path) -> std::io::Result<()>| -> Result<()> {
        // What is there is known.
        for entry in fs::read_dir(&dir)? {
            fs::metadata(entry?.path())?;
        }
        tell_accesses(&dir)?;
        let before = requests(cluster.mnt())?;
        for i in 0..50 {
            act(&dir.join(i.to_string()))?;
        }
        let asked = requests(cluster.mnt())? - before;
        ensure!(asked < 25, "to {what} 50 times took {asked} requests");
        Ok(())
    };
    // Not opened: closes are told some time later, as many as there are then in one request.
    let make = |name: &Path| mknod(name, SFlag::S_IFREG, Mode::S_IRUSR, 0);
    cost("make a file", &|name| Ok(make(name)?))?;
    cost("rename", &|name| fs::rename(name, name.with_extension("new")))?;
    cost("make a folder", &|name| fs::create_dir(name))?;
    // What is told then is as it is: another mount, which asks, sees the same.
    File::create(dir.join("last"))?;
    let other = cluster.mount_again("second")?.join("d");
    let told = |dir: &Path| -> Result<_> {
        let told = fs::metadata(dir)?;
        Ok((told.nlink(), told.len(), told.mtime(), told.mtime_nsec(), told.ctime_nsec()))
    };
    let here = told(&dir)?;
    ensure!(here == told(&other)?, "{here:?} here, {:?} on the other mount", told(&other)?);
    Ok(())
}

/// What is set of a file while written data waits, as by who unpacks an archive, goes with the
/// data; and is seen before on every mount.
#[test]
fn attributes_go_with_the_data() -> Result<()> {
    let cluster = Cluster::start()?;
    let (here, there) = (cluster.mnt().join("d"), cluster.mount_again("second")?.join("d"));
    fs::create_dir(&here)?;
    let unpack = |i: u32| -> Result<File> {
        let mut file = File::create(here.join(i.to_string()))?;
        file.write_all(&vec![7; 1 + i as usize * 1000])?;
        let time = |seconds| UNIX_EPOCH + Duration::new(seconds, i);
        file.set_times(FileTimes::new().set_accessed(time(1)).set_modified(time(2)))?;
        fchown(&file, Some(1000 + i), Some(2000 + i))?;
        file.set_permissions(fs::Permissions::from_mode(0o4711))?;
        fchown(&file, None, Some(3000))?;
        Ok(file)
    };
    let before = requests(&here)?;
    (0..100).try_for_each(|i| unpack(i).map(drop))?;
    let asked = requests(&here)? - before;
    // Two each, and at most one that tells a close.
    ensure!(asked < 400, "to unpack 100 files took {asked} requests");

    let told = |dir: &Path, i: u32| -> Result<_> {
        let told = fs::metadata(dir.join(i.to_string()))?;
        let times = [told.atime(), told.mtime(), told.atime_nsec(), told.mtime_nsec()];
        let owner = (told.mode() & 0o7777, told.uid(), told.gid());
        Ok((owner, told.len(), times, (told.ctime(), told.ctime_nsec())))
    };
    for i in 100..120 {
        let mut file = unpack(i)?;
        let (owner, len, times, changed) = told(&here, i)?;
        let nanos = i64::from(i);
        ensure!(owner == (0o711, 1000 + i, 3000) && times == [1, 2, nanos, nanos]);
        let all = (owner, len, times, changed);
        ensure!(all == told(&there, i)?, "{all:?} here, {:?} on the other mount", told(&there, i)?);
        ensure!(all == told(&here, i)?, "{all:?} before, {:?} after it was told", told(&here, i)?);
        // A later write has the last word about the time.
        file.write_all(b"more")?;
        ensure!(told(&here, i)?.2[1] > 2 && told(&there, i)? == told(&here, i)?);
        drop(file);
        ensure!(told(&here, i)?.0 == owner && told(&there, i)? == told(&here, i)?);
    }
    cluster.await_clean()
}

/// A mount that dies with leases holds the others up for no longer than its session lives.
#[test]
fn a_dead_mount_loses_its_leases() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    fs::write(b.join("f"), "committed")?;
    let mut writer = OpenOptions::new().append(true).open(b.join("f"))?;
    writer.write_all(b", buffered")?;
    cluster.kill_mount(&b)?;
    ensure!(fs::read_to_string(a.join("f"))?.starts_with("committed"));
    fs::write(a.join("f"), "rewritten")?;
    fs::remove_file(a.join("f"))?;
    cluster.await_clean()
}

/// Leases outlive the leader that granted them, and are as good as before.
#[test]
fn leases_outlive_their_leader() -> Result<()> {
    let cluster = Cluster::start()?;
    let (a, b) = (cluster.mnt().to_path_buf(), cluster.mount_again("second")?);
    let mut buffered = File::create(a.join("f"))?;
    for i in 0..4u64 {
        buffered.write_all(&[i as u8; 1000])?;
        stat_and_read(&a)?;
        if i % 2 == 0 {
            stat_and_read(&b)?;
        }
        cluster.kill_leader()?;
        cluster.start_again()?;
        ensure!(fs::metadata(b.join("f"))?.len() == (i + 1) * 1000, "stale size in round {i}");
        ensure!(fs::read(b.join("f"))?[(i * 1000) as usize..] == [i as u8; 1000], "round {i}");
        fs::write(b.join("g"), i.to_string())?;
        ensure!(fs::read_to_string(a.join("g"))? == i.to_string(), "stale name in round {i}");
        fs::remove_file(b.join("g"))?;
        ensure!(!a.join("g").exists());
    }
    weft_tests::weft_ok(&["umount", weft_tests::path(&b)])?;
    cluster.await_clean()
}
