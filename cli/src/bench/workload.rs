//! What applications do, on the mount: the cases that the floors are compared with.

use super::context::{Context, Sample};
use super::task::{Files, Outcome, Task, Work};
use super::workers::{self, Spread};
use anyhow::Result;
use std::path::Path;

/// Bytes of one sequential read or write call.
const REQUEST: usize = 1 << 20;
/// Processes of the cases with several.
const PROCESSES: u64 = 4;
/// Bytes of a small file: an image of a training set.
const SMALL: usize = 100 << 10;

fn run(
    context: &Context,
    works: impl IntoIterator<Item = Work>,
    spread: Spread,
) -> Result<Outcome> {
    let limit_s = context.limit.as_secs_f64();
    let tasks: Vec<Task> = works.into_iter().map(|work| Task { work, limit_s }).collect();
    workers::run(&tasks, spread)
}

fn one(context: &Context, name: &'static str, work: Work) -> Result<Sample> {
    context.measure(name, || run(context, [work], Spread::Threads))
}

/// Writes a large file with fsync, then reads it cold.
pub fn sequential(context: &Context) -> Result<Vec<Sample>> {
    let path = context.mount()?.join("sequential");
    let write = Work::Write { path: path.clone(), bytes: context.size, request: REQUEST };
    let written = one(context, "seq_write", write)?;
    context.forget([path.clone()].into_iter())?;
    let read = Work::Read { path: path.clone(), request: REQUEST, verify: true };
    let read = one(context, "seq_read", read)?;
    std::fs::remove_file(&path)?;
    Ok(vec![written, read])
}

/// Reads a large file at random, cold: one read at a time, and from many threads.
pub fn random(context: &Context) -> Result<Vec<Sample>> {
    let path = context.mount()?.join("random");
    let write = Work::Write { path: path.clone(), bytes: context.size, request: REQUEST };
    run(context, [write], Spread::Threads)?;
    let read = |name, request: usize, threads: u64| {
        context.forget([path.clone()].into_iter())?;
        let work = |thread| Work::RandomRead {
            path: path.clone(),
            request,
            count: context.operations / threads + 1,
            seed: context.seed() * 1000 + request as u64 + thread,
            verify: true,
        };
        context.measure(name, || run(context, (0..threads).map(work), Spread::Threads))
    };
    let samples = vec![
        read("random_read_4k", 4 << 10, 1)?,
        read("random_read_4k_x16", 4 << 10, 16)?,
        read("random_read_128k", 128 << 10, 1)?,
    ];
    std::fs::remove_file(&path)?;
    Ok(samples)
}

/// Appends 4 KiB and fsyncs, again and again.
pub fn sync_write(context: &Context) -> Result<Vec<Sample>> {
    let path = context.mount()?.join("sync");
    let work = Work::SyncWrite { path: path.clone(), request: 4 << 10, count: context.operations };
    let sample = one(context, "sync_write_4k", work)?;
    std::fs::remove_file(&path)?;
    Ok(vec![sample])
}

pub fn metadata_1(context: &Context) -> Result<Vec<Sample>> {
    metadata(context, ["create_1", "stat_1", "unlink_1"], 1)
}

pub fn metadata_4(context: &Context) -> Result<Vec<Sample>> {
    metadata(context, ["create_4", "stat_4", "unlink_4"], PROCESSES)
}

/// Creates files, looks at them, removes them, from `processes` processes, each in a folder of its
/// own: in one folder the kernel lets them make names only one after the other.
fn metadata(context: &Context, names: [&'static str; 3], processes: u64) -> Result<Vec<Sample>> {
    // Its own, so that a case that fails leaves nothing in the way of the next.
    let dir = context.mount()?.join(names[0]);
    std::fs::create_dir(&dir)?;
    // A process that ran out of time has made fewer: the others then go by what is there.
    let made = |process: u64| Files { dir: dir.join(process.to_string()), count: 0 };
    for process in 0..processes {
        std::fs::create_dir(made(process).dir)?;
    }
    let create = |process| Work::Create {
        files: Files { count: (context.operations / processes).max(1), ..made(process) },
    };
    let go = |name, work: &dyn Fn(u64) -> Work| {
        let works: Vec<Work> = (0..processes).map(work).collect();
        context.measure(name, || run(context, works, Spread::Processes))
    };
    let created = go(names[0], &create)?;
    let counted = |process| Files { count: count(&made(process).dir), ..made(process) };
    let looked = go(names[1], &|process| Work::Stat { files: counted(process) })?;
    let removed = go(names[2], &|process| Work::Unlink { files: counted(process) })?;
    std::fs::remove_dir_all(&dir)?;
    Ok(vec![created, looked, removed])
}

/// How many files a process made.
fn count(dir: &Path) -> u64 {
    std::fs::read_dir(dir).into_iter().flatten().flatten().count() as u64
}

/// Small files on the mount.
pub fn small(context: &Context) -> Result<Vec<Sample>> {
    small_files(context, context.mount()?, ["small_write_4", "small_read_4"])
}

/// The same on the local filesystem of the scratch folder.
pub fn small_local(context: &Context) -> Result<Vec<Sample>> {
    small_files(context, context.scratch(), ["local_small_write_4", "local_small_read_4"])
}

/// Writes 100 KiB files from several processes, then reads all of them cold in random order.
fn small_files(context: &Context, parent: &Path, names: [&'static str; 2]) -> Result<Vec<Sample>> {
    let dir = parent.join("small");
    std::fs::create_dir(&dir)?;
    let files = |process: u64| Files { dir: dir.join(process.to_string()), count: context.files };
    for process in 0..PROCESSES {
        std::fs::create_dir(files(process).dir)?;
    }
    let write = |process| Work::WriteFiles { files: files(process), bytes: SMALL };
    let works: Vec<Work> = (0..PROCESSES).map(write).collect();
    let written = context.measure(names[0], || run(context, works, Spread::Processes))?;

    let mut paths = Vec::new();
    for process in 0..PROCESSES {
        for entry in std::fs::read_dir(files(process).dir)? {
            paths.push(entry?.path());
        }
    }
    paths.sort();
    shuffle(&mut paths, context.seed());
    context.forget(paths.iter().cloned())?;
    let share = paths.len().div_ceil(PROCESSES as usize).max(1);
    let works: Vec<Work> = paths
        .chunks(share)
        .map(|paths| Work::ReadFiles { paths: paths.to_vec(), bytes: SMALL })
        .collect();
    let read = context.measure(names[1], || run(context, works, Spread::Processes))?;
    std::fs::remove_dir_all(&dir)?;
    Ok(vec![written, read])
}

pub fn shuffle<T>(items: &mut [T], seed: u64) {
    use rand::SeedableRng;
    use rand::seq::SliceRandom;
    items.shuffle(&mut rand::rngs::StdRng::seed_from_u64(seed));
}

/// Several processes each write a large file with fsync at the same time.
pub fn checkpoint(context: &Context) -> Result<Vec<Sample>> {
    let dir = context.mount()?.join("checkpoint");
    std::fs::create_dir(&dir)?;
    let write = |rank| Work::Write {
        path: dir.join(format!("rank{rank}")),
        bytes: context.size / PROCESSES,
        request: REQUEST,
    };
    let works: Vec<Work> = (0..PROCESSES).map(write).collect();
    let sample = context.measure("checkpoint_4", || run(context, works, Spread::Processes))?;
    std::fs::remove_dir_all(&dir)?;
    Ok(vec![sample])
}
