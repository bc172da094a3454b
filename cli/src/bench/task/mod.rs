//! What one process does to files while it is timed. A task is plain data, so that the same task
//! runs on a mount, on a local disk, on the empty FUSE server, in a thread or in another process.

mod files;
mod random;
mod sequential;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// File data is stamped with its own offset once in each of these, so that readers notice bytes
/// from anywhere else.
const STAMP_EVERY: usize = 4096;

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

#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Files {
    pub dir: PathBuf,
    pub count: u64,
}

impl Files {
    pub fn paths(&self) -> impl Iterator<Item = PathBuf> + '_ {
        (0..self.count).map(|i| self.dir.join(i.to_string()))
    }
}

/// What was done, and how long it took.
#[derive(Serialize, Deserialize, Clone, Default, Debug)]
pub struct Outcome {
    pub bytes: u64,
    pub operations: u64,
    pub seconds: f64,
    /// Of each operation, where operations are what counts.
    pub latencies_us: Vec<f32>,
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

/// Starts the clock, once everything is ready.
type Begin<'a> = &'a mut dyn FnMut() -> Result<Meter>;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes every task of this process stop soon.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// The clock of a running task.
pub struct Meter {
    begun: Instant,
    limit: Duration,
    outcome: Outcome,
}

impl Meter {
    fn new(limit: Duration) -> Self {
        Self { begun: Instant::now(), limit, outcome: Outcome::default() }
    }

    /// False when the time is over or the user has had enough.
    fn goes_on(&self) -> bool {
        self.begun.elapsed() < self.limit && !interrupted()
    }

    /// Counts one operation, which answers the bytes that it moved.
    fn operation(&mut self, act: impl FnOnce() -> Result<usize>) -> Result<()> {
        let start = Instant::now();
        let bytes = act()?;
        self.outcome.latencies_us.push(start.elapsed().as_secs_f32() * 1e6);
        self.outcome.operations += 1;
        self.outcome.bytes += bytes as u64;
        Ok(())
    }

    fn end(mut self) -> Outcome {
        self.outcome.seconds = self.begun.elapsed().as_secs_f64();
        self.outcome
    }
}

/// Bytes that no layer can compress or deduplicate, from a seed.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random(&mut state).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The next number of an xorshift generator.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Writes the file offset of each block of `data`, which begins at `offset`, into the block.
pub fn stamp(data: &mut [u8], offset: u64) {
    for (i, block) in data.chunks_exact_mut(STAMP_EVERY).enumerate() {
        block[..8].copy_from_slice(&(offset + (i * STAMP_EVERY) as u64).to_le_bytes());
    }
}

/// Checks the stamps of `data`, which was read at `offset`, a multiple of a block.
pub fn check_stamps(data: &[u8], offset: u64) -> Result<()> {
    for (i, block) in data.chunks_exact(STAMP_EVERY).enumerate() {
        let at = offset + (i * STAMP_EVERY) as u64;
        let found = block.first_chunk().copied().map(u64::from_le_bytes);
        anyhow::ensure!(
            found == Some(at),
            "the bytes read at offset {at} are not those that were written there"
        );
    }
    Ok(())
}

/// Adds the path to an I/O error.
fn at<T>(result: std::io::Result<T>, what: &str, path: &std::path::Path) -> Result<T> {
    result.with_context(|| format!("cannot {what} {}", path.display()))
}
