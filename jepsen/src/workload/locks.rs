//! Locks that are names: who makes the name holds the lock, and takes it away to let go. 1 is held.

use super::worker::{Outcome, Worker, is_there, sync_dir};
use crate::history::{Answer, Call, Key};
use anyhow::{Context, Result};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use rand::Rng;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// How a lock is taken and let go; both know a file of the worker's own.
struct Way {
    take: fn(own: &Path, lock: &Path) -> io::Result<()>,
    release: fn(own: &Path, lock: &Path) -> io::Result<()>,
}

pub fn exclusive(worker: &mut Worker<'_>) {
    let take = |_: &Path, lock: &Path| File::create_new(lock).map(drop);
    step(worker, &Way { take, release: |_, lock| fs::remove_file(lock) });
}

pub fn link(worker: &mut Worker<'_>) {
    let take = |own: &Path, lock: &Path| {
        File::options().append(true).create(true).open(own)?;
        fs::hard_link(own, lock)
    };
    step(worker, &Way { take, release: |_, lock| fs::remove_file(lock) });
}

pub fn moved(worker: &mut Worker<'_>) {
    let take = |own: &Path, lock: &Path| {
        File::options().append(true).create(true).open(own)?;
        move_to(own, lock)
    };
    step(worker, &Way { take, release: |own, lock| move_to(lock, own) });
}

/// Onto nothing.
fn move_to(from: &Path, to: &Path) -> io::Result<()> {
    // What the lock left behind may be there still.
    match renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE) {
        Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn step(worker: &mut Worker<'_>, way: &Way) {
    let key = worker.key();
    let (lock, dir) = (place(worker, key), worker.dir());
    let own = dir.join(format!("own{}-{}", worker.client, key.number));
    if worker.rng.random_ratio(1, 3) {
        if !worker.unsure.contains(&key) {
            let _ = look(worker, key);
        }
        return;
    }
    let mut holds = false;
    let take = Call::Swap { key, from: 0, to: 1 };
    let known = worker.change(key, take, |_| match (way.take)(&own, &lock) {
        Ok(()) => {
            sync_dir(&dir)?;
            holds = true;
            Ok(Outcome::Ok(Answer::Done))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Outcome::Fail),
        Err(error) => Err(error),
    });
    if !known || !holds {
        return;
    }
    if worker.rng.random_ratio(1, 2) {
        let _ = look(worker, key);
    }
    let release = Call::Swap { key, from: 1, to: 0 };
    worker.change(key, release, |_| match (way.release)(&own, &lock) {
        Ok(()) => {
            sync_dir(&dir)?;
            Ok(Outcome::Ok(Answer::Done))
        }
        // Which nobody else could take away.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Outcome::Fail),
        Err(error) => Err(error),
    });
}

fn look(worker: &mut Worker<'_>, key: Key) -> io::Result<()> {
    let lock = place(worker, key);
    worker.call(Call::Get { key }, |_| Ok(Outcome::Ok(Answer::Value(u64::from(is_there(&lock)?)))))
}

pub fn last(worker: &mut Worker<'_>) -> Result<()> {
    for key in worker.keys() {
        look(worker, key).with_context(|| format!("{key} cannot be seen"))?;
    }
    Ok(())
}

fn place(worker: &Worker<'_>, key: Key) -> PathBuf {
    worker.dir().join(format!("lock{}", key.number))
}
