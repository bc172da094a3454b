//! When files were read: kept by the rule of relatime, seen by other mounts once they are told.

use anyhow::{Result, ensure};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;
use weft_tests::{Cluster, path, tell_accesses, weft_ok};

/// Access and change, nanoseconds.
fn times(path: &Path) -> Result<(i64, i64)> {
    let meta = fs::symlink_metadata(path)?;
    let of = |seconds, rest| seconds * 1_000_000_000 + rest;
    Ok((of(meta.atime(), meta.atime_nsec()), of(meta.mtime(), meta.mtime_nsec())))
}

fn read(path: &Path, flags: i32) -> Result<()> {
    let mut all = Vec::new();
    File::options().read(true).custom_flags(flags).open(path)?.read_to_end(&mut all)?;
    Ok(())
}

#[test]
fn the_first_read_after_a_change_is_noted() -> Result<()> {
    let cluster = Cluster::start()?;
    let writer = cluster.mnt();
    // Written elsewhere, so that the kernel has nothing of it cached and its reads are heard of.
    let (dir, small, large) = (writer.join("d"), writer.join("d/small"), writer.join("d/large"));
    fs::create_dir(&dir)?;
    fs::write(&small, "inline")?;
    fs::write(&large, vec![1; 3 << 20])?;
    symlink("d", writer.join("link"))?;
    let m = cluster.mount_again("second")?;
    let all = ["d/small", "d/large", "d", "link"].map(|name| m.join(name));
    let fresh = all.each_ref().map(|path| times(path));
    for fresh in &fresh {
        ensure!(fresh.as_ref().is_ok_and(|(atime, mtime)| atime <= mtime), "{fresh:?}");
    }

    read(&all[0], libc::O_NOATIME)?;
    ensure!(times(&all[0])?.0 == fresh[0].as_ref().map_or(0, |t| t.0), "O_NOATIME is obeyed");
    for file in &all[..2] {
        // The kernel keeps what was read without noting it.
        read(file, libc::O_DIRECT)?;
    }
    ensure!(fs::read_dir(&all[2])?.count() == 2);
    ensure!(fs::read_link(&all[3])? == Path::new("d"));
    let noted = all.each_ref().map(|path| times(path).unwrap_or_default());
    for (path, (atime, mtime)) in all.iter().zip(noted) {
        ensure!(atime > mtime, "{}: {atime} {mtime}", path.display());
    }

    // The second is not, nor is a read of nothing; the first after another change is.
    read(&all[0], libc::O_DIRECT)?;
    ensure!(times(&all[0])? == noted[0]);
    tell_accesses(&m)?;
    ensure!(times(&all[0])? == noted[0], "telling it changes nothing");
    read(&all[0], libc::O_DIRECT)?;
    ensure!(times(&all[0])? == noted[0]);
    fs::write(&small, "changed elsewhere")?;
    let changed = times(&all[0])?;
    ensure!(changed.1 > changed.0, "{changed:?} {noted:?}");
    read(&all[0], 0)?;
    ensure!(times(&all[0])?.0 > changed.1);

    // Others see it when they ask; a new mount has to. One without access times notes none.
    let told = times(&all[0])?;
    tell_accesses(&m)?;
    weft_ok(&["umount", path(&m)])?;
    weft_ok(&["mount", "-o", "noatime", "--cluster", &cluster.address()?, path(&m)])?;
    ensure!(times(&all[0])? == told && times(&all[1])? == noted[1] && times(&all[3])? == noted[3]);
    fs::write(&small, "again")?;
    let changed = times(&all[0])?;
    read(&all[0], 0)?;
    ensure!(times(&all[0])? == changed);
    weft_ok(&["umount", path(&m)])?;
    // An unmount tells what is left.
    cluster.remount()?;
    read(&small, 0)?;
    let last = times(&small)?;
    ensure!(last.0 > last.1);
    cluster.remount()?;
    ensure!(times(&small)? == last);
    cluster.await_clean()
}
