//! Files that come and go on each mount: large ones that are written, read, overwritten, cut off
//! and removed, and small ones in folders. What was read must be what was written; errors may be,
//! as faults strike.

use anyhow::{Result, anyhow, bail};
use nix::sched::{CloneFlags, unshare};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Bytes of the largest file, and of what is written at once.
const LARGEST: u64 = 12 << 20;
const PIECE: usize = 256 << 10;
/// Small files in a folder, and bytes of the largest.
const SMALL: u64 = 64;
const SMALL_BYTES: usize = 20_000;

/// What was done.
#[derive(Clone, Copy, Default, Debug)]
pub struct Churned {
    /// Files that came and went.
    files: u64,
    /// Bytes that were written, and read and compared.
    written: u64,
    read: u64,
    /// Rounds of one mount that ended with an error.
    errors: u64,
}

impl Churned {
    /// What was done elsewhere, too.
    pub fn add(&mut self, other: Self) {
        self.files += other.files;
        self.written += other.written;
        self.read += other.read;
        self.errors += other.errors;
    }
}

impl Churned {
    /// Faults are the exception.
    pub fn is_plenty(&self) -> bool {
        self.files > 100 && self.errors * 10 < self.files
    }
}

impl fmt::Display for Churned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        write!(f, "{} files, {} MiB written, ", self.files, mib(self.written))?;
        write!(f, "{} MiB read, {} errors", mib(self.read), self.errors)
    }
}

/// Threads that churn.
pub struct Churns {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Churned>>>,
}

/// One in each folder.
pub fn start(folders: &[PathBuf], seed: u64) -> Result<Churns> {
    let mut churns = Churns { stop: Arc::default(), threads: Vec::new() };
    for (number, folder) in (0u64..).zip(folders) {
        let folder = folder.join(format!("churn-{number}"));
        fs::create_dir(&folder)?;
        let stop = churns.stop.clone();
        let rng = SmallRng::seed_from_u64(seed ^ number << 48);
        churns.threads.push(std::thread::spawn(move || churn(&folder, &stop, rng)));
    }
    Ok(churns)
}

impl Churns {
    /// Ends them; error: one has read what nobody wrote.
    pub fn end(mut self) -> Result<Churned> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Churned::default();
        for thread in self.threads.drain(..) {
            all.add(thread.join().map_err(|_| anyhow!("a thread panicked"))??);
        }
        Ok(all)
    }
}

impl Drop for Churns {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn churn(folder: &Path, stop: &AtomicBool, mut rng: SmallRng) -> Result<Churned> {
    // As those of the workers are: who starts programs meanwhile takes no copies along.
    unshare(CloneFlags::CLONE_FILES)?;
    let mut done = Churned::default();
    while !stop.load(Ordering::Relaxed) {
        let turn = match rng.random_range(0..2) {
            0 => large(&folder.join("large"), &mut rng, &mut done),
            _ => small(&folder.join("small"), &mut rng, &mut done),
        };
        match turn {
            Ok(None) => {}
            Ok(Some(wrong)) => {
                bail!("{}: what was read is not what was synced: {wrong}", folder.display())
            }
            // A fault; what is left of it is in the way of nothing.
            Err(_) => {
                done.errors += 1;
                let _ = fs::remove_file(folder.join("large"));
                let _ = fs::remove_dir_all(folder.join("small"));
            }
        }
    }
    Ok(done)
}

/// A byte that is at this place of what was written with this salt.
fn fill(buffer: &mut [u8], at: u64, salt: u64) {
    for (place, byte) in (at..).zip(buffer) {
        *byte = (place.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(salt) >> 32) as u8;
    }
}

/// Where what was found differs from what it must be.
fn difference(found: &[u8], expected: &[u8]) -> Option<String> {
    let at = found.iter().zip(expected).position(|(found, expected)| found != expected);
    let len = found.len().min(expected.len());
    let at = at.or((found.len() != expected.len()).then_some(len))?;
    let (zeros, wrong) =
        found[at..].iter().zip(&expected[at..]).fold((0, 0), |(zeros, wrong), (f, e)| {
            (zeros + usize::from(*f == 0), wrong + usize::from(f != e))
        });
    let (found, expected) = (found.len(), expected.len());
    Some(format!("{found} bytes, not {expected}; from {at} on {wrong} differ, {zeros} are zeros"))
}

/// Closes a file, and hears whether what was written to it is lost.
fn close(file: File) -> io::Result<()> {
    Ok(nix::unistd::close(file)?)
}

/// Answers what is wrong with what was read.
fn large(path: &Path, rng: &mut SmallRng, done: &mut Churned) -> io::Result<Option<String>> {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    let (salt, len) = (rng.random(), rng.random_range(1..=LARGEST));
    let mut expected = vec![0; PIECE];
    let mut found = vec![0; PIECE];
    // Written twice over, in pieces that do not begin where they did before.
    for begin in [0, rng.random_range(0..len)] {
        let mut at = begin;
        while at < len {
            let piece = (len - at).min(rng.random_range(1..=PIECE as u64)) as usize;
            fill(&mut expected[..piece], at, salt);
            file.write_all_at(&expected[..piece], at)?;
            at += piece as u64;
            done.written += piece as u64;
        }
        file.sync_data()?;
    }
    let end = rng.random_range(1..=len);
    file.set_len(end)?;
    let mut at = 0;
    while at < end {
        let piece = (end - at).min(PIECE as u64) as usize;
        fill(&mut expected[..piece], at, salt);
        // What was synced must be there, all of it: too short is as wrong as other bytes.
        match file.read_exact_at(&mut found[..piece], at) {
            Ok(()) => {
                if let Some(wrong) = difference(&found[..piece], &expected[..piece]) {
                    return Ok(Some(format!("large file of {len} cut at {end}, at {at}: {wrong}")));
                }
            }
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            Err(_) => {
                let size = file.metadata()?.len();
                let wrong = format!("large file of {len} cut at {end} ends before {piece} at {at}");
                return Ok(Some(format!("{wrong}; it has {size} bytes")));
            }
        }
        at += piece as u64;
        done.read += piece as u64;
    }
    close(file)?;
    fs::remove_file(path)?;
    done.files += 1;
    Ok(None)
}

/// Answers what is wrong with what was read.
fn small(folder: &Path, rng: &mut SmallRng, done: &mut Churned) -> io::Result<Option<String>> {
    fs::create_dir(folder)?;
    let salt = rng.random();
    let mut expected = vec![0; SMALL_BYTES];
    let lens: Vec<usize> = (0..SMALL).map(|_| rng.random_range(0..SMALL_BYTES)).collect();
    for (number, len) in (0u64..).zip(&lens) {
        fill(&mut expected[..*len], number, salt);
        let mut file = File::create(folder.join(number.to_string()))?;
        file.write_all(&expected[..*len])?;
        close(file)?;
        done.written += *len as u64;
    }
    // From here on all of it is there, whatever strikes.
    File::open(folder)?.sync_all()?;
    let there = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?.len();
    if there != lens.len() {
        return Ok(Some(format!("{there} files in a folder, not {}", lens.len())));
    }
    for (number, len) in (0u64..).zip(&lens) {
        fill(&mut expected[..*len], number, salt);
        match fs::read(folder.join(number.to_string())) {
            Ok(found) => {
                if let Some(wrong) = difference(&found, &expected[..*len]) {
                    return Ok(Some(format!("small file {number}: {wrong}")));
                }
                done.read += *len as u64;
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) => return Ok(Some(format!("small file {number} is not there"))),
        }
    }
    fs::remove_dir_all(folder)?;
    done.files += SMALL;
    Ok(None)
}
