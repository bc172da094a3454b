//! One thread of a workload on one mount: makes calls, and records them.

use super::pager::Pager;
use crate::history::{Answer, Call, FileNo, Key, Kind, Recorder};
use anyhow::Result;
use nix::sys::statvfs::statvfs;
use rand::rngs::SmallRng;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Calls that begin on one key; the search for an order of more takes too long.
const CALLS_OF_A_KEY: u64 = 90;

/// Pause before a mount that is dead is looked at again.
const PAUSE: Duration = Duration::from_millis(20);

/// How a call ended that brought no error.
pub(super) enum Outcome {
    Ok(Answer),
    /// It had no effect.
    Fail,
}

/// One of the workloads.
#[derive(Clone, Copy)]
pub struct Workload {
    pub name: &'static str,
    /// One call, and what it needs.
    pub(super) step: fn(&mut Worker<'_>),
    /// What is looked at when all is over, through each mount.
    pub(super) last: fn(&mut Worker<'_>) -> Result<()>,
}

/// What the threads of one workload share.
#[derive(Default)]
pub struct Shared {
    /// Calls that were begun.
    begun: AtomicU64,
    /// Values that were written.
    values: AtomicU64,
}

/// What a worker has open of the files that it appends to, and what it has written.
#[derive(Default)]
pub struct Log {
    pub(super) open: HashMap<FileNo, File>,
    pub(super) seq: u64,
}

/// One thread: a workload on one mount.
pub struct Worker<'a> {
    pub workload: Workload,
    pub client: u32,
    pub clients: u32,
    /// Grows when it is not known how a call ended: that may end at any time.
    pub process: u32,
    pub mount: PathBuf,
    pub rng: SmallRng,
    pub shared: &'a Shared,
    pub recorder: &'a Recorder,
    /// Calls that were answered.
    pub answered: &'a AtomicU64,
    /// Of these it is not known here what was written: it may be seen on this mount, and be lost.
    pub unsure: HashSet<Key>,
    /// The last call has.
    pub failed: bool,
    pub log: Log,
    pub pager: Pager,
}

/// Processes are numbered apart by so many.
pub const PROCESSES: u32 = 1000;

impl Worker<'_> {
    pub fn step(&mut self) {
        // What is called on a dead mount fails at once, and each time one more call may have been
        // done, which the search for an order has to try everywhere.
        // Attributes may be known for some seconds more; the room is asked for each time.
        if self.failed && statvfs(&self.mount).is_err() {
            return std::thread::sleep(PAUSE);
        }
        self.failed = false;
        (self.workload.step)(self);
    }

    /// Closes what it has open, which no other thread could: its files are its own.
    pub fn close(&mut self) {
        self.log.open.clear();
        self.pager = Default::default();
    }

    pub fn last(&mut self) -> Result<()> {
        self.unsure.clear();
        (self.workload.last)(self)
    }

    /// A folder of this workload's own.
    pub(super) fn dir(&self) -> PathBuf {
        self.mount.join(self.workload.name)
    }

    /// The key that is worked on now.
    pub(super) fn key(&self) -> Key {
        let begun = self.shared.begun.fetch_add(1, Ordering::Relaxed);
        Key { kind: self.workload.name, number: (begun / CALLS_OF_A_KEY) as u32 }
    }

    /// All keys that were worked on.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> + use<> {
        let kind = self.workload.name;
        let begun = self.shared.begun.load(Ordering::Relaxed);
        (0..begun.div_ceil(CALLS_OF_A_KEY) as u32).map(move |number| Key { kind, number })
    }

    /// From now on another key is worked on, by all.
    pub(super) fn next_key(&self) {
        let begun = &self.shared.begun;
        let next = |begun: u64| Some(begun.next_multiple_of(CALLS_OF_A_KEY));
        let _ = begun.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// A value that nobody has written.
    pub(super) fn value(&self) -> u64 {
        self.shared.values.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Makes a call, and records it. Error: it is not known how it ended.
    pub(super) fn call(
        &mut self,
        call: Call,
        act: impl FnOnce(&mut Self) -> io::Result<Outcome>,
    ) -> io::Result<()> {
        self.recorder.record(self.process, call.clone(), Kind::Invoke);
        match act(self) {
            Ok(outcome) => {
                self.answered.fetch_add(1, Ordering::Relaxed);
                let kind = match outcome {
                    Outcome::Ok(answer) => Kind::Ok(answer),
                    Outcome::Fail => Kind::Fail,
                };
                self.recorder.record(self.process, call, kind);
                Ok(())
            }
            Err(error) => {
                self.recorder.record_unknown(self.process, call, &error);
                self.process += PROCESSES;
                self.failed = true;
                Err(error)
            }
        }
    }

    /// [`Self::call`] of what changes a key, which is worked on no more unless it is known how it
    /// ended; answers that.
    pub(super) fn change(
        &mut self,
        key: Key,
        call: Call,
        act: impl FnOnce(&mut Self) -> io::Result<Outcome>,
    ) -> bool {
        let known = self.call(call, act).is_ok();
        if !known {
            self.unsure.insert(key);
            self.next_key();
        }
        known
    }
}

/// What is done to names in a folder is durable.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

pub(super) fn is_there(at: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(at) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
