//! Which drive a target is, and what an admin says of it.

use super::key::KeySource;
use std::path::PathBuf;

/// Which drive a target is.
#[derive(Clone, Debug)]
pub struct TargetOptions {
    /// Block device or file.
    pub path: PathBuf,
    /// Bytes of the file that [`Engine::format`] makes when `path` does not exist, or is blank.
    pub size: Option<u64>,
    /// Such a file gets its blocks when they are written, and gives them back when they are free:
    /// [`Tuning::discard`] is then [`DISCARD_RATE`] unless given.
    pub sparse: bool,
    /// Directory of the index; `None`: `<path>.index` (for files only).
    pub index: Option<PathBuf>,
    /// Where the key of an encrypted target is; `None`: it is not encrypted.
    pub encryption: Option<KeySource>,
    pub tuning: Tuning,
}

impl TargetOptions {
    /// With defaults; `size` is for a file that [`Engine::format`] is to make.
    pub fn new(path: impl Into<PathBuf>, size: Option<u64>) -> Self {
        let (path, tuning) = (path.into(), Tuning::default());
        Self { path, size, sparse: false, index: None, encryption: None, tuning }
    }

    /// Directory of the index, as far as a file's default goes for all.
    pub fn index_path(&self) -> PathBuf {
        self.index.clone().unwrap_or_else(|| {
            let mut name = self.path.clone().into_os_string();
            name.push(".index");
            name.into()
        })
    }
}

/// What the engine would otherwise decide from what the kernel says of the drive.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Whether a put is flushed before it is acknowledged; `None`: unless the kernel knows the
    /// drive to have no volatile cache. A file is flushed always.
    pub flush: Option<bool>,
    /// Bytes a second of freed space to discard, 0: none; `None`: [`DISCARD_RATE`] where the drive
    /// takes discards, and nothing on a file, which would lose its preallocated blocks.
    pub discard: Option<u64>,
}

/// What a drive is given back at most, in bytes a second: discards slow other requests down.
pub const DISCARD_RATE: u64 = 1 << 30;
