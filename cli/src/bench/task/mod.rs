//! What one process does to files while it is timed. A task is plain data, so that the same task
//! runs on a mount, on a local disk, on the empty FUSE server, in a thread or in another process.

mod data;
mod files;
mod meter;
mod random;
mod sequential;

pub use data::{check_stamps, noise, stamp};
pub use files::Files;
pub use meter::{Outcome, goes_on, interrupt, interrupted};

use anyhow::Result;
use meter::Meter;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Task {
    pub work: Work,
    /// The task stops after this many seconds, however much is left.
    pub limit_s: f64,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
pub enum Work {
    /// Creates a file and writes it from the start, then fsyncs.
    Write {
        path: PathBuf,
        bytes: u64,
        request: usize,
    },
    /// Reads a file from start to end; `verify` checks the stamps that `Write` left.
    Read {
        path: PathBuf,
        request: usize,
        verify: bool,
    },
    /// Reads `count` aligned pieces of a file at random.
    RandomRead {
        path: PathBuf,
        request: usize,
        count: u64,
        seed: u64,
        verify: bool,
    },
    /// Creates a file and appends `count` pieces to it, each followed by fsync.
    SyncWrite {
        path: PathBuf,
        request: usize,
        count: u64,
    },
    /// Creates, looks at or removes the files `prefix0`, `prefix1`, ... of a folder.
    Create {
        files: Files,
    },
    Stat {
        files: Files,
    },
    Unlink {
        files: Files,
    },
    /// Creates files and writes, fsyncs and closes each.
    WriteFiles {
        files: Files,
        bytes: usize,
    },
    /// Opens, reads and closes files in the order given.
    ReadFiles {
        paths: Vec<PathBuf>,
        bytes: usize,
    },
}

impl Task {
    /// Does the work. `start` is called when everything is ready, and may wait for others.
    pub fn run(&self, start: &mut dyn FnMut() -> Result<()>) -> Result<Outcome> {
        let limit = Duration::from_secs_f64(self.limit_s);
        let mut begin = || start().map(|()| Meter::new(limit));
        match &self.work {
            Work::Write { path, bytes, request } => {
                sequential::write(path, *bytes, *request, &mut begin)
            }
            Work::Read { path, request, verify } => {
                sequential::read(path, *request, *verify, &mut begin)
            }
            Work::RandomRead { path, request, count, seed, verify } => {
                random::read(path, *request, *count, *seed, *verify, &mut begin)
            }
            Work::SyncWrite { path, request, count } => {
                sequential::sync_write(path, *request, *count, &mut begin)
            }
            Work::Create { files } => files::create(files, &mut begin),
            Work::Stat { files } => files::stat(files, &mut begin),
            Work::Unlink { files } => files::unlink(files, &mut begin),
            Work::WriteFiles { files, bytes } => files::write(files, *bytes, &mut begin),
            Work::ReadFiles { paths, bytes } => files::read(paths, *bytes, &mut begin),
        }
    }
}
