//! What all cases share: where they work, how much they do, and how a run is timed.

use super::args::Args;
use super::cpu::{Cluster, Cpu};
use super::task::Outcome;
use anyhow::{Context as _, Result};
use std::cell::Cell;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub struct Context {
    /// A folder of our own in the mount; absent when only floors are measured.
    pub mount: Option<OwnDir>,
    scratch: OwnDir,
    pub cluster: Cluster,
    /// Bytes of a large file.
    pub size: u64,
    /// Operations of a process in cases that count operations.
    pub operations: u64,
    /// Small files of a process.
    pub files: u64,
    /// Longest that one task works.
    pub limit: Duration,
    pub keep_caches: bool,
    round: Cell<u64>,
}

/// One run of one figure.
#[derive(Debug)]
pub struct Sample {
    pub name: &'static str,
    pub outcome: Outcome,
    pub cpu: Cpu,
}

impl Context {
    pub fn new(args: &Args, mount: Option<OwnDir>, scratch: OwnDir, cluster: Cluster) -> Self {
        Self {
            mount,
            scratch,
            cluster,
            // The library is written in whole MiB, and all of it is read again.
            size: args.size.0.max(16 << 20) >> 20 << 20,
            operations: args.ops.max(1),
            files: args.files.max(1),
            limit: Duration::from_secs(args.limit.max(1)),
            keep_caches: args.keep_caches,
            round: Cell::new(0),
        }
    }

    /// Our folder on the local disk.
    pub fn scratch(&self) -> &Path {
        &self.scratch.0
    }

    /// Our folder in the mount.
    pub fn mount(&self) -> Result<&Path> {
        Ok(&self.mount.as_ref().context("give --mount to measure a filesystem")?.0)
    }

    pub fn next_round(&self) {
        self.round.set(self.round.get() + 1);
    }

    /// Differs from round to round, is the same in every run.
    pub fn seed(&self) -> u64 {
        self.round.get()
    }

    /// Times one run, with the CPU time that everybody used meanwhile.
    pub fn measure(
        &self,
        name: &'static str,
        act: impl FnOnce() -> Result<Outcome>,
    ) -> Result<Sample> {
        let before = self.cluster.processes.cpu();
        let outcome = act().with_context(|| String::from(name))?;
        let cpu = self.cluster.processes.cpu().since(&before);
        Ok(Sample { name, outcome, cpu })
    }

    /// Makes the next read of these files come from the filesystem: the kernel forgets their
    /// pages, and everything else clean if we may tell it so.
    pub fn forget(&self, paths: impl Iterator<Item = PathBuf>) -> Result<()> {
        if self.keep_caches {
            return Ok(());
        }
        for path in paths {
            let file =
                fs::File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
            // SAFETY: the descriptor is open and the call takes integers. It is a hint: no answer
            // is an error to us.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
        // Only root may; the file says nothing useful otherwise.
        let _ = fs::write("/proc/sys/vm/drop_caches", "3");
        Ok(())
    }

    /// What [`Context::forget`] can do here.
    pub fn cold_means(&self) -> &'static str {
        if self.keep_caches {
            "nothing: reads may come from caches"
        } else if nix::unistd::geteuid().is_root() {
            "kernel caches dropped before reads; caches of the client process stay"
        } else {
            "cached pages of the files dropped before reads; caches of the client process stay"
        }
    }
}

/// A name that nobody else has: other machines may measure the same filesystem, with processes of
/// the same number.
pub fn own_name() -> String {
    format!(".weft-bench-{}-{:08x}", std::process::id(), rand::random::<u32>())
}

/// A folder of this run that is removed at the end.
#[derive(Debug)]
pub struct OwnDir(PathBuf);

impl OwnDir {
    pub fn create(parent: &Path) -> Result<Self> {
        let path = parent.join(own_name());
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for OwnDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("weft: {} is left behind: {error}", self.0.display());
        }
    }
}
