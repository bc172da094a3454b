//! The hot tier: what was read once is read again without the targets, and is what all mounts see,
//! whatever becomes of the drive that it lies on.

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_tests::{Cluster, eventually, path, weft, weft_ok};

const SIZE: &str = "256MiB";
const PATIENCE: Duration = Duration::from_secs(60);

fn mount(cluster: &Cluster, drive: &Path) -> Result<PathBuf> {
    cluster.mount_with("hot", &["--hot", path(drive), "--hot-size", SIZE])
}

fn warm(args: &[&str]) -> Result<Value> {
    let out = weft_ok(&[&["warm"], args, &["--output", "json"]].concat())?;
    serde_json::from_str(&out).with_context(|| format!("warm printed {out:?}"))
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Past the pages of the kernel.
fn direct(file: &Path) -> Result<File> {
    Ok(OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(file)?)
}

/// Files of many sizes, and what is in them.
fn fill(dir: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let sizes = [0, 1, 5000, 100 << 10, 100 << 10, 511 << 10, 512 << 10, 513 << 10, 9_000_001];
    let mut files = Vec::new();
    for (i, len) in sizes.into_iter().enumerate() {
        let (name, bytes) = (format!("d/f{i}"), content(i as u64, len));
        fs::create_dir_all(dir.join("d"))?;
        fs::write(dir.join(&name), &bytes)?;
        files.push((name, bytes));
    }
    weft_ok(&["sync", path(dir)])?;
    Ok(files)
}

fn check(dir: &Path, files: &[(String, Vec<u8>)]) -> Result<()> {
    for (name, bytes) in files {
        ensure!(fs::read(dir.join(name))? == *bytes, "{name}");
        let file = File::open(dir.join(name))?;
        for (from, len) in
            [(0, 1), (4095, 2), (70_000, 60_000), (524_287, 2), (1_048_000, 3_000_000)]
        {
            let mut read = vec![0; len];
            let end = bytes.len().min(from + len);
            let want = bytes.get(from..end).unwrap_or_default();
            let n = file.read_at(&mut read, from as u64)?;
            ensure!(n <= want.len() && read[..n] == want[..n] && (n > 0) != want.is_empty());
        }
    }
    Ok(())
}

fn kill_targets(cluster: &Cluster) -> Result<()> {
    let count = cluster.status()?["storage"].as_array().context("no storage daemons")?.len();
    (0..count).try_for_each(|index| cluster.kill_storage(index))
}

#[test]
fn what_was_read_is_read_again_without_the_targets() -> Result<()> {
    let cluster = Cluster::start()?;
    let files = fill(cluster.mnt())?;
    let drive = cluster.scratch("drive")?.join("weft");
    let hot = mount(&cluster, &drive)?;
    check(&hot, &files)?;
    // What it has it keeps when it is mounted anew.
    weft_ok(&["umount", path(&hot)])?;
    mount(&cluster, &drive)?;
    // It is opened behind the mount; of a file that lies with its name nothing is fetched for it.
    let tiny = hot.join(&files[1].0);
    eventually(PATIENCE, "the hot tier", || warm(&[path(&tiny)]).ok())?;
    kill_targets(&cluster)?;
    check(&hot, &files)?;
    // Another process goes on with it.
    weft_ok(&["mount", "--takeover", path(&hot)])?;
    eventually(PATIENCE, "the hot tier of the process that goes on", || warm(&[path(&tiny)]).ok())?;
    let memory = aligned(10 << 20);
    for (name, bytes) in &files {
        let len = direct(&hot.join(name))?.read_at(memory, 0)?;
        ensure!(memory[..len] == **bytes, "{name}");
    }
    cluster.start_again()?;
    cluster.await_targets("up", 6)?;
    weft_ok(&["umount", path(&hot)])?;
    cluster.await_clean()
}

#[test]
fn what_was_warmed_is_read_without_the_targets() -> Result<()> {
    let cluster = Cluster::start()?;
    let files = fill(cluster.mnt())?;
    std::os::unix::fs::symlink("nowhere", cluster.mnt().join("d/link"))?;
    let drive = cluster.scratch("drive")?;
    let without = weft(&["warm", path(cluster.mnt())])?;
    let said = String::from_utf8_lossy(&without.stderr).into_owned();
    ensure!(without.status.code() == Some(1) && said.contains("--hot"), "{said}");
    let hot = mount(&cluster, &drive)?;
    let said = eventually(PATIENCE, "the hot tier", || warm(&[path(&hot)]).ok())?;
    let bytes = files.iter().map(|(_, bytes)| bytes.len() as u64);
    let stored: u64 = bytes.filter(|len| *len > 16 << 10).sum();
    ensure!(said["files"] == files.len() && said["failed_files"] == 0, "{said}");
    ensure!(said["bytes"] == stored && said["kept_bytes"] == stored, "{said}");
    kill_targets(&cluster)?;
    check(&hot, &files)?;
    // What is there is not asked for again.
    ensure!(
        warm(&[path(&hot.join("d")), path(&hot.join("d/f8"))])?["kept_bytes"] == stored + 9_000_001
    );
    cluster.start_again()?;
    cluster.await_targets("up", 6)?;
    weft_ok(&["umount", path(&hot)]).map(drop)
}

/// Others change a file that is kept; its reader sees each change at once, and never what was.
#[test]
fn what_others_change_is_seen_at_once() -> Result<()> {
    let cluster = Cluster::start()?;
    let hot = mount(&cluster, &cluster.scratch("drive")?)?;
    let mut rng = StdRng::seed_from_u64(7);
    let mut model = content(1, 3 << 20);
    let (theirs, ours) = (cluster.mnt().join("file"), hot.join("file"));
    fs::write(&theirs, &model)?;
    let mut writer = OpenOptions::new().read(true).write(true).open(&theirs)?;
    let mut reader = direct(&ours)?;
    let page = aligned(1 << 20);
    for round in 0..120u64 {
        match rng.random_range(0..10) {
            0..6 => {
                let (at, len) =
                    (rng.random_range(0..model.len()), rng.random_range(1..700_000usize));
                let bytes = content(round + 100, len);
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&bytes);
                writer.write_all_at(&bytes, at as u64)?;
            }
            6 => {
                let len = rng.random_range(1 << 20..4 << 20);
                model.resize(len, 0);
                writer.set_len(len as u64)?;
            }
            7 => {
                model = content(round + 100, rng.random_range(1 << 20..4 << 20));
                let other = cluster.mnt().join("other");
                fs::write(&other, &model)?;
                fs::rename(&other, &theirs)?;
                writer = OpenOptions::new().read(true).write(true).open(&theirs)?;
                reader = direct(&ours)?;
            }
            8 => drop(weft(&["warm", path(&ours)])?),
            _ => writer.sync_all()?,
        }
        let seen = fs::read(&ours)?;
        ensure!(
            seen.len() == model.len(),
            "round {round}: {} of {} bytes",
            seen.len(),
            model.len()
        );
        let wrong = seen.iter().zip(&model).position(|(a, b)| a != b);
        ensure!(wrong.is_none(), "round {round}: byte {wrong:?} is of another time");
        let n = reader.read_at(page, 1 << 19)?;
        let want = &model[model.len().min(1 << 19)..][..n];
        ensure!(page[..n] == *want, "round {round}: past the page cache");
    }
    drop((reader, writer));
    weft_ok(&["umount", path(&hot)])?;
    let hot = mount(&cluster, &cluster.scratch("drive")?)?;
    ensure!(fs::read(hot.join("file"))? == model);
    weft_ok(&["umount", path(&hot)])?;
    cluster.await_clean()
}

/// Memory that begins at a page, as O_DIRECT wants it.
fn aligned(len: usize) -> &'static mut [u8] {
    let memory = vec![0u8; len + 4096].leak();
    let skip = memory.as_ptr().align_offset(4096);
    &mut memory[skip..skip + len]
}

/// Whatever lies on the drive, and whoever takes it away: what is read is what was written.
#[test]
fn a_drive_that_lies_or_is_gone_costs_time_and_no_more() -> Result<()> {
    let cluster = Cluster::start()?;
    let files = fill(cluster.mnt())?;
    let drive = cluster.scratch("drive")?;
    let mut hot = mount(&cluster, &drive)?;
    eventually(PATIENCE, "the hot tier", || warm(&[path(&hot)]).ok())?;
    let store = fs::read_dir(&drive)?.next().context("no file")??.path();
    let kept = content(99, 16 << 20);
    for round in 0..6 {
        let file = OpenOptions::new().write(true).open(&store)?;
        match round {
            // Somebody else's bytes over all that is kept, and over what says what it is.
            0 => file.write_all_at(&kept, 4096)?,
            1 => file.write_all_at(&kept, 0)?,
            2 => file.set_len(4096 * 50)?,
            3 => file.set_len(0)?,
            4 => fs::remove_file(&store)?,
            _ => fs::remove_dir_all(&drive)?,
        }
        check(&hot, &files)?;
        if round != 0 {
            weft_ok(&["umount", path(&hot)])?;
            hot = mount(&cluster, &drive)?;
            check(&hot, &files)?;
        }
        eventually(PATIENCE, "it is made anew", || warm(&[path(&hot)]).ok())?;
        check(&hot, &files)?;
    }
    // A folder that cannot be one: the mount is there, without.
    weft_ok(&["umount", path(&hot)])?;
    fs::remove_dir_all(&drive)?;
    fs::write(&drive, "no folder")?;
    let hot = mount(&cluster, &drive)?;
    check(&hot, &files)?;
    let refused = weft(&["warm", path(&hot.join("d/f8"))])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.status.code() == Some(1) && said.contains("d/f8"), "{said}");
    weft_ok(&["umount", path(&hot)])?;
    let small = ["--hot", path(&drive), "--hot-size", "10MiB"];
    ensure!(cluster.mount_with("small", &small).is_err(), "it is too small");
    cluster.await_clean()
}
