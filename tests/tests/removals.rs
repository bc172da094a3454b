//! Names that are taken away where this mount alone works: here at once, and told to the group many
//! at a time; seen by everybody else at once all the same.

use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use weft_tests::{Cluster, cost, eventually, tree, tries};

const DIRS: usize = 12;
const FILES: usize = 30;

#[test]
fn a_tree_is_removed_with_few_requests() -> Result<()> {
    let cluster = Cluster::start()?;
    tree(&cluster, [DIRS, FILES], |d, _| vec![d as u8; 100])?;
    let other = cluster.mount_again("second")?;
    let top = cluster.mnt().join("t");
    let asked = cost(cluster.mnt(), || Ok(fs::remove_dir_all(&top)?))?;
    ensure!(asked < (DIRS * FILES / 2) as u64, "{} names cost {asked} requests", DIRS * FILES);
    ensure!(!other.join("t").exists(), "it is there for the others");
    cluster.await_clean()
}

#[test]
fn a_folder_is_emptied_into_another_with_few_requests() -> Result<()> {
    let cluster = Cluster::start()?;
    tree(&cluster, [DIRS, FILES], |d, _| vec![d as u8; 100])?;
    let other = cluster.mount_again("second")?;
    let (from, to) = (cluster.mnt().join("t/0"), cluster.mnt().join("t/new"));
    fs::create_dir(&to)?;
    let names: Vec<_> = fs::read_dir(&from)?.map(|e| Ok(e?.file_name())).collect::<Result<_>>()?;
    let asked = cost(cluster.mnt(), || {
        names.iter().try_for_each(|name| fs::rename(from.join(name), to.join(name)))?;
        Ok(())
    })?;
    ensure!(asked < FILES as u64 / 2, "{} names cost {asked} requests", names.len());
    for name in &names {
        let moved = other.join("t/new").join(name);
        ensure!(fs::read(&moved)? == [0; 100] && !other.join("t/0").join(name).exists());
    }
    cluster.await_clean()
}

/// Another mount has some of the files open, knows others, and looks after each removal.
#[test]
fn others_see_each_removal_at_once() -> Result<()> {
    let cluster = Cluster::start()?;
    tree(&cluster, [DIRS, FILES], |d, _| vec![d as u8; 100])?;
    let other = cluster.mount_again("second")?;
    let (here, there) = (cluster.mnt().join("t"), other.join("t"));
    fs::hard_link(here.join("0/3"), here.join("0/twin"))?;
    let open = File::open(there.join("0/5"))?;
    for name in ["0/3", "0/7", "1/3", "1/7"] {
        ensure!(fs::metadata(there.join(name))?.len() == 100);
    }
    let looks = |dir: &str| -> Result<()> {
        let names = |top: &Path| -> Result<Vec<_>> {
            let mut all: Vec<_> = fs::read_dir(top.join(dir))?
                .map(|entry| Ok(entry?.file_name()))
                .collect::<Result<_>>()?;
            all.sort();
            Ok(all)
        };
        for f in names(&here)? {
            let name = Path::new(dir).join(&f);
            fs::remove_file(here.join(&name)).with_context(|| format!("{name:?}"))?;
            ensure!(!there.join(&name).exists(), "{name:?} is there for the other mount");
            ensure!(!names(&there)?.contains(&f) && !names(&here)?.contains(&f), "{name:?}");
            if name == Path::new("0/3") {
                ensure!(fs::metadata(there.join("0/twin"))?.nlink() == 1);
            }
            // And what the other takes away.
            if let Some(next) = names(&there)?.into_iter().find(|next| next > &f)
                && name.ends_with("8")
            {
                fs::remove_file(there.join(dir).join(&next))?;
                ensure!(!here.join(dir).join(&next).exists(), "{next:?} is there for this mount");
                return Ok(());
            }
        }
        Ok(())
    };
    for dir in ["0", "1"] {
        // From the beginning, after the other has taken one: as often as it takes.
        while fs::read_dir(here.join(dir))?.next().is_some() {
            looks(dir)?;
        }
        fs::remove_dir(here.join(dir))?;
        ensure!(!there.join(dir).exists());
    }
    let mut read = [1; 100];
    open.read_exact_at(&mut read, 0)?;
    ensure!(read == [0; 100] && open.metadata()?.nlink() == 0, "what is open goes on");
    drop(open);
    fs::remove_dir_all(&here)?;
    ensure!(!there.exists());
    cluster.await_clean()
}

/// Also if what went was open, and was written to before the group heard that it went.
#[test]
fn a_removal_leaves_its_directory_the_time_that_was_shown() -> Result<()> {
    let cluster = Cluster::start()?;
    let other = cluster.mount_again("second")?;
    let dir = cluster.mnt().join("d");
    fs::create_dir(&dir)?;
    let file = File::create(dir.join("f"))?;
    file.write_all_at(b"before", 0)?;
    file.set_modified(std::time::UNIX_EPOCH)?;
    fs::remove_file(dir.join("f"))?;
    let times = |dir: &Path| {
        let meta = fs::metadata(dir)?;
        anyhow::Ok([meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()])
    };
    let shown = times(&dir)?;
    file.write_all_at(b"after", 0)?;
    file.sync_all()?;
    ensure!(times(&other.join("d"))? == shown, "others see another time");
    ensure!(times(&dir)? == shown, "it changed later");
    drop(file);
    cluster.await_clean()
}

/// Who opens a name, or makes it, is never told that it is stale, as by no local filesystem: if it
/// leads to a file that somebody takes away meanwhile, that is open.
#[test]
fn a_name_that_comes_and_goes_can_be_opened() -> Result<()> {
    let cluster = Cluster::start()?;
    let mounts = [cluster.mnt().to_owned(), cluster.mount_again("second")?];
    let churn = |name: &Path, number: usize, count: u64| -> Result<()> {
        for i in 0..count {
            if (i as usize + number).is_multiple_of(2) {
                let opened = File::options().append(true).create(true).open(name);
                opened.with_context(|| format!("open {} in try {i}", name.display()))?;
            } else if let Err(error) = fs::remove_file(name)
                && error.kind() != ErrorKind::NotFound
            {
                return Err(error).with_context(|| format!("remove {} in try {i}", name.display()));
            }
        }
        Ok(())
    };
    // Threads of one mount alone, which are quick, and of both.
    for (mounts, threads, count) in [(&mounts[..1], 8, 4000), (&mounts[..], 6, 200)] {
        std::thread::scope(|scope| {
            let begin = |number: usize| {
                let (churn, name) = (&churn, mounts[number % mounts.len()].join("name"));
                scope.spawn(move || churn(&name, number, tries(count)))
            };
            let threads: Vec<_> = (0..threads).map(begin).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a thread"))
        })?;
    }
    cluster.await_clean()
}

/// What is not told yet when its mount dies is there again, and nothing else is lost.
#[test]
fn a_mount_that_dies_has_removed_a_prefix() -> Result<()> {
    let cluster = Cluster::start()?;
    tree(&cluster, [DIRS, FILES], |d, _| vec![d as u8; 100])?;
    let other = cluster.mount_again("second")?;
    let here = other.join("t/0");
    let names: Vec<_> = fs::read_dir(&here)?.map(|e| Ok(e?.file_name())).collect::<Result<_>>()?;
    let (gone, stays) = names.split_at(FILES / 2);
    gone.iter().try_for_each(|name| fs::remove_file(here.join(name)))?;
    cluster.kill_mount(&other)?;
    let there = cluster.mnt().join("t/0");
    let left = eventually(std::time::Duration::from_secs(60), "the session has ended", || {
        let there = fs::read_dir(&there).ok()?;
        there.map(|entry| Some(entry.ok()?.file_name())).collect::<Option<Vec<_>>>()
    })?;
    ensure!(stays.iter().all(|name| left.contains(name)), "what was not removed is gone");
    let first = gone.iter().position(|name| left.contains(name)).unwrap_or(gone.len());
    ensure!(gone[first..].iter().all(|name| left.contains(name)), "no prefix: {left:?}");
    for name in &left {
        ensure!(fs::read(there.join(name))? == [0; 100], "{name:?}");
    }
    cluster.await_clean()
}
