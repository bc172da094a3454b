//! A counter in a file, incremented under a lock of the file: one of the whole file, or one of a
//! range, by turns of the key.

use super::worker::{Outcome, Worker};
use crate::history::{Answer, Call, Key};
use anyhow::{Context, Result};
use nix::fcntl::{FcntlArg, fcntl};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub fn step(worker: &mut Worker<'_>) {
    let _ = increment(worker, worker.key());
}

fn increment(worker: &mut Worker<'_>, key: Key) -> io::Result<()> {
    let at = worker.dir().join(key.number.to_string());
    worker.call(Call::Increment { key }, |_| {
        let value =
            if key.number.is_multiple_of(2) { under_flock(&at) } else { under_range_lock(&at) }?;
        Ok(Outcome::Ok(Answer::Value(value)))
    })
}

fn open(at: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(at)
}

fn under_flock(at: &Path) -> io::Result<u64> {
    let file = open(at)?;
    // Its close releases it.
    file.lock()?;
    add_one(&file)
}

fn under_range_lock(at: &Path) -> io::Result<u64> {
    let file = open(at)?;
    let lock = nix::libc::flock {
        l_type: nix::libc::F_WRLCK as i16,
        l_whence: nix::libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 8,
        l_pid: 0,
    };
    // Its close releases it.
    fcntl(&file, FcntlArg::F_OFD_SETLKW(&lock))?;
    add_one(&file)
}

fn add_one(file: &File) -> io::Result<u64> {
    let mut value = [0; 8];
    let value = match file.read_at(&mut value, 0)? {
        0 => 1,
        8 => u64::from_le_bytes(value) + 1,
        // More than anybody has counted.
        _ => return Ok(u64::MAX),
    };
    file.write_all_at(&value.to_le_bytes(), 0)?;
    file.sync_data()?;
    Ok(value)
}

/// Once more, so that it is seen what was counted.
pub fn last(worker: &mut Worker<'_>) -> Result<()> {
    for key in worker.keys() {
        increment(worker, key).with_context(|| format!("{key} cannot be incremented"))?;
    }
    Ok(())
}
