//! A set of names in a folder: they are added, taken away and listed. Each name is a register: 1 is
//! there. A listing looks at each at some moment of its own.

use super::worker::{Outcome, PROCESSES, Worker, sync_dir};
use crate::history::{Answer, Call, Key, Kind};
use anyhow::{Result, ensure};
use rand::Rng;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

/// Names in a folder at a time.
const NAMES: u32 = 8;

/// One of the names that go with a key.
fn name(key: Key, name: u32) -> Key {
    Key { number: key.number * NAMES + name, ..key }
}

/// Where the names of a key are.
fn place(worker: &Worker<'_>, key: Key) -> PathBuf {
    worker.dir().join(format!("set{}", key.number))
}

pub fn step(worker: &mut Worker<'_>) {
    let key = worker.key();
    let dir = place(worker, key);
    if fs::create_dir_all(&dir).is_err() {
        worker.failed = true;
        return;
    }
    if worker.rng.random_ratio(1, 4) {
        list(worker, key);
        return;
    }
    let of = name(key, worker.rng.random_range(0..NAMES));
    let at = dir.join(of.number.to_string());
    if worker.rng.random_ratio(1, 2) {
        worker.change(of, Call::Write { key: of, value: 1 }, |_| {
            File::options().append(true).create(true).open(&at)?;
            sync_dir(&dir)?;
            Ok(Outcome::Ok(Answer::Done))
        });
    } else {
        worker.change(of, Call::Swap { key: of, from: 1, to: 0 }, |_| match fs::remove_file(&at) {
            Ok(()) => {
                sync_dir(&dir)?;
                Ok(Outcome::Ok(Answer::Done))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Outcome::Fail),
            Err(error) => Err(error),
        });
    }
}

fn list(worker: &mut Worker<'_>, key: Key) -> bool {
    let dir = place(worker, key);
    let looked_at: Vec<_> = (0..NAMES).map(|n| name(key, n)).collect();
    let looked_at: Vec<_> = (1..)
        .zip(looked_at)
        .filter(|(_, of)| !worker.unsure.contains(of))
        // One process has one call under way.
        .map(|(n, of)| (worker.process + n * 100 * PROCESSES, Call::Get { key: of }, of))
        .collect();
    for (process, call, _) in &looked_at {
        worker.recorder.record(*process, call.clone(), Kind::Invoke);
    }
    let names: io::Result<HashSet<_>> = fs::read_dir(&dir)
        .and_then(|names| names.map(|name| Ok(name?.file_name().into_encoded_bytes())).collect());
    // Then none of its names is there.
    let names = match names {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(HashSet::new()),
        names => names,
    };
    let is_known = names.is_ok();
    for (process, call, of) in looked_at {
        match &names {
            Ok(names) => {
                let is_there = u64::from(names.contains(of.number.to_string().as_bytes()));
                worker.recorder.record(process, call, Kind::Ok(Answer::Value(is_there)));
            }
            Err(error) => worker.recorder.record_unknown(process, call, error),
        }
    }
    worker.process += u32::from(!is_known) * PROCESSES;
    worker.failed = !is_known;
    is_known
}

pub fn last(worker: &mut Worker<'_>) -> Result<()> {
    for key in worker.keys() {
        ensure!(list(worker, key), "{key} cannot be listed");
    }
    Ok(())
}
