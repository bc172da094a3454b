//! Several mounts write one file at a time: each buffers what it writes to its own byte ranges,
//! what it wrote is seen by all at once (I6), and nobody waits for ever.

use anyhow::{Context, Result, ensure};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use weft_tests::aio::Aligned;
use weft_tests::{Cluster, path, requests, tries, weft_ok};

/// As in IO500's ior-hard: in step with no page, unit or segment.
const RECORD: u64 = 47_008;

fn content(writer: u64, record: u64, len: u64) -> Vec<u8> {
    let word = (writer << 32 | record).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    word.iter().copied().cycle().take(len as usize).collect()
}

/// How a program may have opened the file.
fn open(at: &Path, direct: bool, read: bool) -> Result<File> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    let opened = OpenOptions::new().read(read).write(true).custom_flags(flags).open(at);
    opened.with_context(|| at.display().to_string())
}

/// Three mounts of a cluster.
fn mounts(cluster: &Cluster) -> Result<[PathBuf; 3]> {
    let again = |name| cluster.mount_again(name);
    Ok([cluster.mnt().to_path_buf(), again("second")?, again("third")?])
}

fn leave(cluster: &Cluster, mounts: &[PathBuf]) -> Result<()> {
    mounts[1..].iter().try_for_each(|at| weft_ok(&["umount", path(at)]).map(drop))?;
    cluster.await_clean()
}

/// Runs one thread for each of these, and answers the first failure.
fn together<T: Send>(of: Vec<T>, run: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    let run = &run;
    thread::scope(|scope| {
        let threads: Vec<_> = of.into_iter().map(|one| scope.spawn(move || run(one))).collect();
        threads.into_iter().try_for_each(|t| t.join().expect("it does not panic"))
    })
}

#[test]
fn records_of_several_mounts_lie_side_by_side() -> Result<()> {
    const RECORDS: u64 = 200;
    const FILES: usize = 5;
    let cluster = Cluster::start()?;
    let mounts = mounts(&cluster)?;
    // Lengths with and without a common measure; every way to open a file; one that is written in
    // turns by two programs of one mount.
    let ways =
        [(RECORD, false, false), (RECORD, false, true), (4096, true, true), (777, false, true)];
    for (way, (len, direct, read)) in ways.into_iter().enumerate() {
        let writers: Vec<_> = mounts.iter().chain([&mounts[1]]).zip(0..).collect();
        let count = writers.len() as u64;
        let mut asked = Vec::new();
        for file in 0..FILES {
            let name = format!("{way}.{file}");
            File::create(mounts[0].join(&name))?;
            let before: u64 = mounts.iter().map(|at| requests(at)).sum::<Result<_>>()?;
            together(writers.clone(), |(at, writer)| {
                let file = open(&at.join(&name), direct, read)?;
                for record in 0..RECORDS {
                    // What O_DIRECT takes lies in step with blocks.
                    let data = content(writer, record, len);
                    let data = Aligned::from(&data);
                    file.write_all_at(data.bytes(), (record * count + writer) * len)?;
                }
                Ok(file.sync_all()?)
            })?;
            let after: u64 = mounts.iter().map(|at| requests(at)).sum::<Result<_>>()?;
            asked.push(after - before);
            for at in &mounts {
                let found = fs::read(at.join(&name))?;
                ensure!(found.len() as u64 == RECORDS * count * len);
                for (n, piece) in found.chunks(len as usize).enumerate() {
                    let (writer, record) = (n as u64 % count, n as u64 / count);
                    ensure!(piece == content(writer, record, len), "way {way}: record {n}");
                }
            }
        }
        let written = RECORDS * count;
        println!("{len} bytes, direct {direct}, read {read}: {asked:?} requests, {written} writes");
        // By itself each takes four to five.
        let most = asked.iter().max().copied().unwrap_or(0);
        ensure!(most < written / 2, "{asked:?} requests for {written} records of {len} bytes");
    }
    leave(&cluster, &mounts)
}

/// Whatever a writer was answered, a reader on another mount sees from then on. The file is as long
/// as it will be: what Linux does while one grows is told in docs/correctness.md.
#[test]
fn what_is_written_between_others_is_seen_at_once() -> Result<()> {
    const SLOTS: u64 = 24;
    const LEN: u64 = 10_000;
    let cluster = Cluster::start()?;
    let mounts = mounts(&cluster)?;
    File::create(mounts[0].join("f"))?.set_len(SLOTS * LEN)?;
    // The newest generation of each slot whose write was answered.
    let done: Vec<AtomicU64> = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
    let over = AtomicBool::new(false);
    let rounds = tries(12);
    let write = |(at, writer): (&PathBuf, u64)| {
        let file = open(&at.join("f"), false, writer == 0)?;
        for generation in 1..=rounds {
            for slot in (writer..SLOTS).step_by(2) {
                file.write_all_at(&content(slot, generation, LEN), slot * LEN)?;
                done[slot as usize].store(generation, Ordering::Release);
            }
        }
        Ok(())
    };
    let read = |at: &PathBuf| -> Result<()> {
        let file = File::open(at.join("f"))?;
        let mut data = vec![0; LEN as usize];
        for slot in (0..SLOTS).cycle() {
            if over.load(Ordering::Acquire) && slot == 0 {
                return Ok(());
            }
            let least = done[slot as usize].load(Ordering::Acquire);
            if least == 0 {
                continue;
            }
            file.read_exact_at(&mut data, slot * LEN)?;
            let of =
                |piece: &[u8]| (least..=rounds).find(|g| content(slot, *g, LEN)[..8] == *piece);
            let seen =
                of(&data[..8]).with_context(|| format!("slot {slot}: older than {least}"))?;
            // The next one may come page by page.
            let good = |n: usize, byte: &u8| {
                (seen..=rounds).any(|g| content(slot, g, LEN)[n % 8] == *byte)
            };
            ensure!(data.iter().enumerate().all(|(n, byte)| good(n, byte)), "slot {slot}");
        }
        Ok(())
    };
    thread::scope(|scope| {
        let readers: Vec<_> = mounts[1..].iter().map(|at| scope.spawn(move || read(at))).collect();
        let written = together(mounts[..2].iter().zip(0..).collect(), write);
        over.store(true, Ordering::Release);
        readers.into_iter().try_for_each(|r| r.join().expect("it does not panic")).and(written)
    })?;
    leave(&cluster, &mounts)
}

/// Operations that take the whole file, in the midst of others' records: none waits for one that
/// waits for it. A session that answers no recall would be declared dead, and its writers told.
#[test]
fn whole_changes_between_records_wait_for_nobody_for_ever() -> Result<()> {
    const SLOTS: u64 = 16;
    const HEAD: u64 = SLOTS * RECORD;
    let cluster = Cluster::start()?;
    let mounts = mounts(&cluster)?;
    File::create(mounts[0].join("f"))?.set_len(HEAD)?;
    let rounds = tries(10);
    let actors: Vec<_> = (0..12_u64).collect();
    together(actors, |actor| {
        let (at, kind) = (mounts[actor as usize % 3].join("f"), actor / 3);
        let file = open(&at, false, actor % 2 == 0)?;
        let fd = file.as_raw_fd();
        for round in 0..rounds {
            let what = format!("actor {actor}, round {round}");
            match kind {
                // Each slot is that of one of these, in the part that nobody cuts.
                0 | 1 => {
                    for slot in (actor..SLOTS).step_by(6) {
                        let data = content(slot, round, RECORD);
                        file.write_all_at(&data, slot * RECORD).context(what.clone())?;
                    }
                }
                2 => match round % 4 {
                    0 => file.set_len(HEAD + round * 1000).context(what)?,
                    // SAFETY: no memory is passed.
                    1 => ensure!(unsafe { libc::fallocate(fd, 0, HEAD as i64, 5000) } == 0, what),
                    2 => file.sync_all().context(what)?,
                    _ => file.set_modified(std::time::UNIX_EPOCH).context(what)?,
                },
                _ => {
                    let mut end = OpenOptions::new().append(true).open(&at)?;
                    end.write_all(&[7; 300]).context(what)?;
                    let mut head = vec![0; HEAD as usize];
                    open(&at, false, true)?.read_exact_at(&mut head, 0)?;
                }
            }
        }
        Ok(())
    })?;
    for at in &mounts {
        let file = File::open(at.join("f"))?;
        for slot in 0..SLOTS {
            let mut data = vec![0; RECORD as usize];
            file.read_exact_at(&mut data, slot * RECORD)?;
            ensure!(data == content(slot, rounds - 1, RECORD), "{}: slot {slot}", at.display());
        }
    }
    leave(&cluster, &mounts)
}

/// A new leader is told of ranges, and what was buffered under them is not lost.
#[test]
fn ranges_outlive_their_leader() -> Result<()> {
    const RECORDS: u64 = 40;
    let cluster = Cluster::start()?;
    let mounts = mounts(&cluster)?;
    File::create(mounts[0].join("f"))?;
    let files: Vec<_> =
        mounts[..2].iter().map(|at| open(&at.join("f"), false, true)).collect::<Result<_>>()?;
    let place = |writer: u64, record: u64| (record * 2 + writer) * RECORD;
    for round in 0..3 {
        let records = round * RECORDS..(round + 1) * RECORDS;
        for record in records.clone() {
            for (file, writer) in files.iter().zip(0..) {
                file.write_all_at(&content(writer, record, RECORD), place(writer, record))?;
            }
        }
        cluster.kill_leader()?;
        cluster.start_again()?;
        // Nothing was synced: the third mount has it from the other two, by way of the new leader.
        let third = File::open(mounts[2].join("f"))?;
        ensure!(third.metadata()?.len() == place(0, records.end), "stale size in round {round}");
        for record in records {
            for writer in 0..2 {
                let mut data = vec![0; RECORD as usize];
                third.read_exact_at(&mut data, place(writer, record))?;
                let good = data == content(writer, record, RECORD);
                ensure!(good, "round {round}: record {record} of writer {writer}");
            }
        }
    }
    drop(files);
    leave(&cluster, &mounts)
}

/// What a mount held that dies is free when its session has ended, and what it had synced is there.
#[test]
fn a_dead_mount_leaves_its_ranges() -> Result<()> {
    let cluster = Cluster::start()?;
    let mounts = mounts(&cluster)?;
    File::create(mounts[0].join("f"))?;
    let files: Vec<_> =
        mounts[..2].iter().map(|at| open(&at.join("f"), false, false)).collect::<Result<_>>()?;
    let write = |writer: u64, record: u64| {
        let data = content(writer, record, RECORD);
        files[writer as usize].write_all_at(&data, (record * 2 + writer) * RECORD)
    };
    for record in 0..20 {
        write(0, record)?;
        write(1, record)?;
    }
    files[1].sync_all()?;
    write(1, 20)?;
    cluster.kill_mount(&mounts[1])?;
    // Into the bytes of the dead.
    files[0].write_all_at(&content(0, 99, RECORD), (20 * 2 + 1) * RECORD)?;
    files[0].sync_all()?;
    let found = fs::read(mounts[2].join("f"))?;
    for (n, piece) in found.chunks(RECORD as usize).enumerate() {
        let (writer, record) = (n as u64 % 2, n as u64 / 2);
        let wanted = match (writer, record) {
            (0, 20) => vec![0; RECORD as usize],
            (1, 20) => content(0, 99, RECORD),
            _ => content(writer, record, RECORD),
        };
        ensure!(piece == wanted, "record {record} of writer {writer}");
    }
    weft_ok(&["umount", path(&mounts[2])])?;
    cluster.await_clean()
}
