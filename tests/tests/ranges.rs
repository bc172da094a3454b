//! `fallocate`, `SEEK_DATA` and `SEEK_HOLE`, `copy_file_range`: what the calls answer, what they
//! leave, and what becomes of segments that several files share.

use anyhow::{Context, Result, ensure};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;
use weft_tests::{Cluster, data, eventually, path, run, weft_ok};

const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;

type Errno = i32;

fn errno(failed: bool) -> Result<(), Errno> {
    match failed {
        true => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        false => Ok(()),
    }
}

fn fallocate(file: &File, mode: i32, off: i64, len: i64) -> Result<(), Errno> {
    // SAFETY: no memory is passed.
    errno(unsafe { libc::fallocate(file.as_raw_fd(), mode, off, len) } != 0)
}

fn seek(file: &File, off: i64, whence: i32) -> Result<i64, Errno> {
    // SAFETY: no memory is passed.
    let at = unsafe { libc::lseek(file.as_raw_fd(), off, whence) };
    errno(at < 0).map(|()| at)
}

/// One call.
fn copy(from: &File, mut at: i64, to: &File, mut into: i64, len: usize) -> Result<usize, Errno> {
    let (from, to) = (from.as_raw_fd(), to.as_raw_fd());
    // SAFETY: both offsets outlive the call.
    let copied = unsafe { libc::copy_file_range(from, &mut at, to, &mut into, len, 0) };
    errno(copied < 0).map(|()| copied as usize)
}

fn open(path: &Path) -> Result<File> {
    let mut how = OpenOptions::new();
    Ok(how.read(true).write(true).create(true).truncate(false).open(path)?)
}

/// Segments that the cluster holds, garbage included.
fn segments(cluster: &Cluster) -> Result<u64> {
    let (clean, report) = cluster.fsck()?;
    ensure!(clean, "{report}");
    report["segments"].as_u64().context("a number of segments")
}

/// Waits until the cluster holds that many.
fn await_segments(cluster: &Cluster, count: u64) -> Result<()> {
    eventually(Duration::from_secs(60), &format!("{count} segments"), || {
        (segments(cluster).ok()? == count).then_some(())
    })
}

#[test]
fn room_and_holes_are_made_as_on_a_local_filesystem() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.mnt();
    let file = open(&m.join("f"))?;
    let shown =
        || -> Result<(u64, u64)> { Ok((file.metadata()?.len(), file.metadata()?.blocks())) };

    ensure!(fallocate(&file, 0, 1000, 5000) == Ok(()) && shown()? == (6000, 0));
    ensure!(fallocate(&file, KEEP, 0, 1 << 20) == Ok(()) && shown()? == (6000, 0));
    // Data of several segments, not synced: holes are cut in what is buffered too.
    let mut bytes = data::bytes(3, 40 << 20);
    file.write_all_at(&bytes, 0)?;
    ensure!(fallocate(&file, PUNCH, 1 << 20, 30 << 20) == Ok(()));
    bytes[1 << 20..31 << 20].fill(0);
    ensure!(shown()? == (40 << 20, 10 << 11), "{:?}", shown()?);
    ensure!(fallocate(&file, ZERO, (40 << 20) - 5, 10) == Ok(()));
    bytes.resize((40 << 20) + 5, 0);
    bytes[(40 << 20) - 5..].fill(0);
    ensure!(fallocate(&file, ZERO | KEEP, (39 << 20) + 1, 1 << 30) == Ok(()));
    bytes[(39 << 20) + 1..].fill(0);
    ensure!(fs::read(m.join("f"))? == bytes, "content after holes were made");
    ensure!(shown()?.0 == (40 << 20) + 5);

    ensure!(seek(&file, 0, libc::SEEK_DATA) == Ok(0));
    ensure!(seek(&file, 0, libc::SEEK_HOLE) == Ok(1 << 20));
    ensure!(seek(&file, 1 << 20, libc::SEEK_DATA) == Ok(31 << 20));
    ensure!(seek(&file, 2 << 20, libc::SEEK_HOLE) == Ok(2 << 20));
    ensure!(seek(&file, 31 << 20, libc::SEEK_HOLE) == Ok((39 << 20) + 1));
    ensure!(seek(&file, (39 << 20) + 1, libc::SEEK_DATA) == Err(libc::ENXIO));
    ensure!(seek(&file, (40 << 20) + 5, libc::SEEK_HOLE) == Err(libc::ENXIO));
    // What is only buffered is data; behind it the file ends, which counts as a hole.
    file.write_all_at(b"x", 41 << 20)?;
    ensure!(seek(&file, 40 << 20, libc::SEEK_DATA) == Ok(41 << 20));
    ensure!(seek(&file, 41 << 20, libc::SEEK_HOLE) == Ok((41 << 20) + 1));

    // Times and set-id bits.
    let stamp = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000);
    for mode in [0, KEEP, PUNCH, ZERO, ZERO | KEEP] {
        file.set_modified(stamp)?;
        let before = file.metadata()?;
        ensure!(fallocate(&file, mode, 0, 10) == Ok(()));
        let after = file.metadata()?;
        let ctime = |m: &fs::Metadata| (m.ctime(), m.ctime_nsec());
        ensure!(ctime(&after) > ctime(&before) && after.modified()? > stamp, "mode {mode}");
    }
    fs::set_permissions(m, fs::Permissions::from_mode(0o777))?;
    File::create(m.join("tool"))?;
    std::os::unix::fs::chown(m.join("tool"), Some(1000), Some(1000))?;
    fs::set_permissions(m.join("tool"), fs::Permissions::from_mode(0o6755))?;
    let user = ["--reuid", "1000", "--regid", "1000", "--clear-groups"];
    run("setpriv", &[&user[..], &["fallocate", "-l", "100", "tool"]].concat(), m)?;
    let tool = fs::metadata(m.join("tool"))?;
    ensure!((tool.len(), tool.mode() & 0o7777) == (100, 0o755), "{:o}", tool.mode());

    // What is refused.
    let most = 16i64 << 40;
    for (mode, off, len, want) in [
        (0, 0, 0, libc::EINVAL),
        (0, -1, 10, libc::EINVAL),
        (0, most, 1, libc::EFBIG),
        (0, 0, 1 << 40, libc::ENOSPC),
        (libc::FALLOC_FL_PUNCH_HOLE, 0, 10, libc::EOPNOTSUPP),
        (libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096, libc::EOPNOTSUPP),
        (libc::FALLOC_FL_INSERT_RANGE, 0, 4096, libc::EOPNOTSUPP),
        (libc::FALLOC_FL_UNSHARE_RANGE, 0, 4096, libc::EOPNOTSUPP),
    ] {
        let got = fallocate(&file, mode, off, len);
        ensure!(got == Err(want), "mode {mode} at {off}+{len}: {got:?} instead of {want}");
    }
    let late = file.write_at(b"x", most as u64).map_err(|e| e.raw_os_error());
    ensure!(late == Err(Some(libc::EFBIG)), "a write behind the longest file: {late:?}");
    let reader = File::open(m.join("f"))?;
    ensure!(fallocate(&reader, 0, 0, 10) == Err(libc::EBADF));
    ensure!(fallocate(&File::open(m)?, 0, 0, 10) == Err(libc::EBADF));
    // The limit of the process.
    let limited = "ulimit -f 1; trap '' XFSZ; fallocate -l 4096 limited";
    let refused = run("sh", &["-c", limited], m).map_err(|e| e.to_string());
    ensure!(refused.as_ref().is_err_and(|e| e.contains("File too large")), "{refused:?}");
    fs::remove_file(m.join("limited"))?;

    // All that lies in the hole is free: what is left is the data that is still shown.
    drop((file, reader));
    cluster.remount()?;
    bytes.resize(41 << 20, 0);
    bytes.push(b'x');
    bytes[..10].fill(0);
    ensure!(fs::read(m.join("f"))? == bytes, "content after a new mount");
    fs::remove_file(m.join("f"))?;
    await_segments(&cluster, 0)?;
    cluster.await_clean()
}

#[test]
fn the_longest_file_has_data_at_both_ends() -> Result<()> {
    const LONGEST: i64 = 16 << 40;
    const LAST: i64 = LONGEST - 4096;
    let cluster = Cluster::start()?;
    let m = cluster.mnt();
    let (head, tail) = (data::bytes(6, 5000), data::bytes(7, 4096));
    let file = open(&m.join("f"))?;
    file.write_all_at(&head, 0)?;
    // What fits is written.
    let more = [&tail[..], b"x"].concat();
    ensure!(file.write_at(&more, LAST as u64)? == tail.len());
    let whole = || -> Result<()> {
        let file = File::open(m.join("f"))?;
        let shown = file.metadata()?;
        ensure!(shown.len() == LONGEST as u64 && shown.blocks() <= 32, "{shown:?}");
        ensure!(seek(&file, 0, libc::SEEK_HOLE) == Ok(5000));
        ensure!(seek(&file, 5000, libc::SEEK_DATA) == Ok(LAST));
        ensure!(seek(&file, LONGEST / 2, libc::SEEK_HOLE) == Ok(LONGEST / 2));
        ensure!(seek(&file, LAST, libc::SEEK_HOLE) == Ok(LONGEST));
        let mut bytes = vec![1; 8192];
        file.read_exact_at(&mut bytes, LAST as u64 - 4096)?;
        ensure!(bytes[..4096] == [0; 4096] && bytes[4096..] == tail, "the end");
        file.read_exact_at(&mut bytes, LONGEST as u64 / 2 - 5)?;
        ensure!(bytes == [0; 8192], "the middle");
        file.read_exact_at(&mut bytes, 0)?;
        ensure!(bytes[..5000] == head && bytes[5000..] == [0; 3192], "the start");
        ensure!(file.read_at(&mut bytes, LONGEST as u64)? == 0, "behind the end");
        Ok(())
    };
    whole()?;
    drop(file);
    cluster.remount()?;
    whole()?;

    let file = open(&m.join("f"))?;
    let too_big = |failed: std::io::Error| failed.raw_os_error() == Some(libc::EFBIG);
    for at in [LONGEST, LONGEST + 1, i64::MAX - 1] {
        ensure!(file.write_at(b"x", at as u64).is_err_and(too_big), "a byte at {at}");
        ensure!(file.set_len(at as u64 + 1).is_err_and(too_big), "cut behind {at}");
    }
    whole()?;
    // Shorter, in the hole and in the last page; and as long as before.
    for len in [LONGEST - 5, LONGEST / 2, 3000] {
        file.set_len(len as u64)?;
        ensure!(file.metadata()?.len() == len as u64);
    }
    file.set_len(LONGEST as u64)?;
    ensure!(seek(&file, 3000, libc::SEEK_DATA) == Err(libc::ENXIO), "what was cut came back");
    drop(file);
    fs::remove_file(m.join("f"))?;
    await_segments(&cluster, 0)?;
    cluster.await_clean()
}

#[test]
fn copies_share_segments_until_the_last_of_them_is_gone() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.mnt();
    let bytes = data::bytes(4, (40 << 20) + 12_345);
    fs::write(m.join("f"), &bytes)?;
    fs::write(m.join("small"), &bytes[..5000])?;
    let held = segments(&cluster)?;
    ensure!(held >= 3, "{held} segments");

    // What programs copy is shared too.
    run("cp", &["f", "programs"], m)?;
    ensure!(fs::read(m.join("programs"))? == bytes);
    // By bytes: odd offsets, a hole before, and the tail.
    let (from, to) = (open(&m.join("f"))?, open(&m.join("g"))?);
    ensure!(copy(&from, 777, &to, 1_000_001, 100 << 20) == Ok(bytes.len() - 777));
    let mut expected = vec![0; 1_000_001];
    expected.extend_from_slice(&bytes[777..]);
    ensure!(fs::read(m.join("g"))? == expected, "content of a copy");
    ensure!(to.metadata()?.blocks() == (bytes.len() as u64 - 777).div_ceil(512));
    // Within one file, and of inline data, what is not synced included.
    from.write_all_at(b"changed", 100)?;
    ensure!(copy(&from, 0, &from, 60 << 20, 4096) == Ok(4096));
    let mut head = bytes[..4096].to_vec();
    head[100..107].copy_from_slice(b"changed");
    let mut got = vec![0; 4096];
    from.read_exact_at(&mut got, 60 << 20)?;
    ensure!(got == head, "content of a copy within the file");
    let (small, tiny) = (open(&m.join("small"))?, open(&m.join("tiny"))?);
    ensure!(copy(&small, 10, &tiny, 20, 100) == Ok(100));
    ensure!(fs::read(m.join("tiny"))?[20..] == bytes[10..110]);
    ensure!(copy(&small, 5000, &tiny, 0, 100) == Ok(0), "a copy from the end of file");
    ensure!(copy(&from, 0, &from, 100, 4096) == Err(libc::EINVAL));
    drop((from, to, small, tiny));
    let now = segments(&cluster)?;
    // The small write may have made one; 40 MiB again would have made three.
    ensure!(now <= held + 1, "{held} segments, {now} after copies");

    // A folder that asks for more redundancy gets copies of its own.
    fs::create_dir(m.join("safe"))?;
    weft_ok(&["layout", "set", path(&m.join("safe")), "--ec", "2+3"])?;
    let (from, to) = (open(&m.join("g"))?, open(&m.join("safe/g"))?);
    ensure!(copy(&from, 0, &to, 0, 100 << 20) == Ok(expected.len()));
    to.sync_all()?;
    drop((from, to));
    ensure!(fs::read(m.join("safe/g"))? == expected, "content of a copy that was moved");
    ensure!(segments(&cluster)? > now, "redundancy without segments");
    fs::remove_file(m.join("safe/g"))?;

    // The last name decides, not the first.
    fs::remove_file(m.join("f"))?;
    fs::remove_file(m.join("g"))?;
    eventually(Duration::from_secs(60), "what nobody shows is freed", || {
        let (clean, report) = cluster.fsck().ok()?;
        let chunks = report["garbage_chunks"].as_u64()?;
        (clean && chunks == 0 && report["segments"].as_u64()? <= held).then_some(())
    })?;
    cluster.remount()?;
    ensure!(fs::read(m.join("programs"))? == bytes, "a copy after what it was made of is gone");
    for name in ["programs", "small", "tiny"] {
        fs::remove_file(m.join(name))?;
    }
    await_segments(&cluster, 0)?;
    cluster.await_clean()
}

/// Two mounts copy between the same two files, in both directions at once, while both write to
/// them.
#[test]
fn copies_that_cross_do_not_wait_for_each_other() -> Result<()> {
    let cluster = Cluster::start()?;
    let mounts = [cluster.mnt().to_path_buf(), cluster.mount_again("second")?];
    let bytes = data::bytes(5, 300_000);
    for name in ["x", "y"] {
        fs::write(mounts[0].join(name), &bytes)?;
    }
    std::thread::scope(|scope| {
        let cross = |side: usize| {
            let (mount, bytes) = (&mounts[side], &bytes);
            scope.spawn(move || -> Result<()> {
                let names = if side == 0 { ["x", "y"] } else { ["y", "x"] };
                let (from, to) = (open(&mount.join(names[0]))?, open(&mount.join(names[1]))?);
                for i in 0..60 {
                    let at = i * 4000 % 200_000;
                    to.write_all_at(&bytes[at..at + 5000], at as u64)?;
                    let copied = copy(&from, at as i64, &to, at as i64, 50_000);
                    ensure!(copied == Ok(50_000), "{copied:?} in round {i}");
                }
                Ok(())
            })
        };
        let sides = [cross(0), cross(1)];
        sides.into_iter().try_for_each(|side| side.join().expect("a side panicked"))
    })?;
    // Whatever the order was, every byte is the one that was always at its place.
    for name in ["x", "y"] {
        for mount in &mounts {
            ensure!(fs::read(mount.join(name))? == bytes, "{name} on {}", mount.display());
        }
    }
    let mut last = File::create(mounts[0].join("x"))?;
    last.write_all(b"still works")?;
    drop(last);
    weft_ok(&["umount", path(&mounts[1])])?;
    cluster.await_clean()
}
