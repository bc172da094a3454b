//! Many files: their names and attributes, and small contents.

use super::data::noise;
use super::meter::{Begin, Outcome, at};
use super::sequential::fill;
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Files `0`, `1`, ... of a folder.
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

/// See [`super::Work::Create`].
pub fn create(files: &Files, begin: Begin) -> Result<Outcome> {
    each(files, begin, |path| {
        at(OpenOptions::new().write(true).create_new(true).open(path), "create", path)?;
        Ok(0)
    })
}

/// See [`super::Work::Stat`].
pub fn stat(files: &Files, begin: Begin) -> Result<Outcome> {
    each(files, begin, |path| {
        at(fs::symlink_metadata(path), "stat", path)?;
        Ok(0)
    })
}

/// See [`super::Work::Unlink`].
pub fn unlink(files: &Files, begin: Begin) -> Result<Outcome> {
    each(files, begin, |path| {
        at(fs::remove_file(path), "remove", path)?;
        Ok(0)
    })
}

/// See [`super::Work::WriteFiles`].
pub fn write(files: &Files, bytes: usize, begin: Begin) -> Result<Outcome> {
    let content = noise(bytes, bytes as u64);
    each(files, begin, |path| {
        let mut file = at(File::create(path), "create", path)?;
        at(file.write_all(&content), "write", path)?;
        at(file.sync_all(), "fsync", path)?;
        Ok(bytes)
    })
}

/// See [`super::Work::ReadFiles`]. Contents are compared with what `write` left.
pub fn read(paths: &[PathBuf], bytes: usize, begin: Begin) -> Result<Outcome> {
    let content = noise(bytes, bytes as u64);
    let mut buffer = vec![0; bytes + 1];
    let mut meter = begin()?;
    for path in paths {
        if !meter.goes_on() {
            break;
        }
        let mut filled = 0;
        meter.operation(|| {
            let mut file = at(File::open(path), "open", path)?;
            filled = at(fill(&mut file, &mut buffer), "read", path)?;
            Ok(filled)
        })?;
        ensure!(buffer[..filled] == content, "{} does not hold what was written", path.display());
    }
    Ok(meter.end())
}

fn each(
    files: &Files,
    begin: Begin,
    mut act: impl FnMut(&Path) -> Result<usize>,
) -> Result<Outcome> {
    let paths: Vec<PathBuf> = files.paths().collect();
    let mut meter = begin()?;
    for path in &paths {
        if !meter.goes_on() {
            break;
        }
        meter.operation(|| act(path))?;
    }
    Ok(meter.end())
}
