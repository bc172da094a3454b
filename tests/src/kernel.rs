//! What the kernel asks a mount.

use crate::Cluster;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// How often the process that serves a mount has read: requests of the kernel, and little else.
/// Not those over io_uring, nor of kernels before 6.6.
pub fn reads(cluster: &Cluster, mount: &Path) -> Result<u64> {
    let io = fs::read_to_string(format!("/proc/{}/io", cluster.pid_of_mount(mount)?))?;
    let count = io.lines().find_map(|line| line.strip_prefix("syscr: "));
    count.context("reads are not counted")?.parse().context("a number")
}
