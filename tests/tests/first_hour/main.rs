//! The first hour with Weft: what a cluster for trying out takes of the disk, and what packages
//! bring.

mod container;
mod package;

use anyhow::{Result, ensure};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use weft_tests::{Cluster, Shape, path, weft_ok};

/// What an empty cluster with defaults may take.
const LITTLE: u64 = 1_000_000_000;

/// Bytes of the blocks of all that is below a folder.
fn taken(of: &Path) -> io::Result<u64> {
    let meta = match fs::symlink_metadata(of) {
        // Daemons that run remove old files of theirs.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
        meta => meta?,
    };
    let mut bytes = meta.blocks() * 512;
    if meta.is_dir() {
        for entry in fs::read_dir(of)? {
            bytes += taken(&entry?.path())?;
        }
    }
    Ok(bytes)
}

/// Targets are as large as the disk allows, and take nothing of it but their heads; nor does
/// anything that is written beside them when the cluster is stopped and started.
#[test]
fn a_cluster_with_defaults_takes_little_disk() -> Result<()> {
    let cluster = Cluster::start_as(Shape { target_size: "", ..Shape::default() })?;
    let (dir, mount) = (path(cluster.dir()), path(cluster.mnt()));
    let running = taken(cluster.dir())?;
    ensure!(running < LITTLE, "{running} bytes while it runs");
    let again = weft_ok(&["dev", "start", "--dir", dir, "--mount", mount])?;
    let line = again.lines().find(|line| line.starts_with("disk: ")).unwrap_or_default();
    ensure!(line.contains(" MiB taken (grows as targets are filled, each up to "), "{again}");
    cluster.stop()?;
    let stopped = taken(cluster.dir())?;
    ensure!(stopped < LITTLE, "{stopped} bytes when it is stopped");
    let apparent: u64 = (cluster.target_paths()?.iter())
        .map(|target| fs::metadata(target).map(|meta| meta.len()))
        .sum::<io::Result<u64>>()?;
    ensure!(apparent > stopped, "{apparent} bytes of targets: that measures no sparse files");
    let help = weft_ok(&["dev", "start", "--help"])?;
    ensure!(help.contains("less than 1 GB of disk"), "{help}");
    Ok(())
}
