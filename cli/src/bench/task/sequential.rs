//! One file from start to end.

use super::data::{check_stamps, noise, stamp};
use super::meter::{Begin, Outcome, at};
use anyhow::{Result, ensure};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

/// See [`super::Work::Write`]. The time includes the fsync and the close.
pub fn write(path: &Path, bytes: u64, request: usize, begin: Begin) -> Result<Outcome> {
    let mut buffer = noise(request, bytes);
    let mut meter = begin()?;
    let mut file = at(File::create(path), "create", path)?;
    let mut offset = 0;
    while offset < bytes && meter.goes_on() {
        let len = request.min((bytes - offset) as usize);
        stamp(&mut buffer[..len], offset);
        at(file.write_all(&buffer[..len]), "write", path)?;
        offset += len as u64;
    }
    at(file.sync_all(), "fsync", path)?;
    drop(file);
    meter.outcome.bytes = offset;
    Ok(meter.end())
}

/// See [`super::Work::Read`].
pub fn read(path: &Path, request: usize, verify: bool, begin: Begin) -> Result<Outcome> {
    let mut buffer = vec![0; request];
    let mut meter = begin()?;
    let mut file = at(File::open(path), "open", path)?;
    let mut offset = 0;
    while meter.goes_on() {
        let filled = at(fill(&mut file, &mut buffer), "read", path)?;
        if verify {
            check_stamps(&buffer[..filled], offset)?;
        }
        offset += filled as u64;
        if filled < request {
            break;
        }
    }
    ensure!(offset > 0, "{} is empty", path.display());
    meter.outcome.bytes = offset;
    Ok(meter.end())
}

/// See [`super::Work::SyncWrite`].
pub fn sync_write(path: &Path, request: usize, count: u64, begin: Begin) -> Result<Outcome> {
    let buffer = noise(request, count);
    let mut file = at(File::create(path), "create", path)?;
    let mut meter = begin()?;
    for _ in 0..count {
        if !meter.goes_on() {
            break;
        }
        meter.operation(|| {
            at(file.write_all(&buffer), "write", path)?;
            at(file.sync_all(), "fsync", path)?;
            Ok(request)
        })?;
    }
    Ok(meter.end())
}

/// Reads until the buffer is full or the file ends.
pub fn fill(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(filled)
}
