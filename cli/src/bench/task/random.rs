//! Small reads all over one file.

use super::data::{check_stamps, random};
use super::meter::{Begin, Outcome, at};
use anyhow::{Result, ensure};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// See [`super::Work::RandomRead`].
pub fn read(
    path: &Path,
    request: usize,
    count: u64,
    seed: u64,
    verify: bool,
    begin: Begin,
) -> Result<Outcome> {
    let mut buffer = vec![0; request];
    let file = at(File::open(path), "open", path)?;
    let pieces = at(file.metadata(), "stat", path)?.len() / request as u64;
    ensure!(pieces > 0, "{} is shorter than one read of {request} bytes", path.display());
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut meter = begin()?;
    for _ in 0..count {
        if !meter.goes_on() {
            break;
        }
        let offset = random(&mut state) % pieces * request as u64;
        meter.operation(|| {
            at(file.read_exact_at(&mut buffer, offset), "read", path)?;
            Ok(request)
        })?;
        if verify {
            check_stamps(&buffer, offset)?;
        }
    }
    Ok(meter.end())
}
