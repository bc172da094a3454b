//! A metadata server loses its disk while the filesystem is used.

use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;
use weft_tests::{Cluster, eventually};

fn write(dir: &Path, names: std::ops::Range<u32>) -> Result<()> {
    for i in names {
        let path = dir.join(format!("f{i}"));
        let mut file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        file.write_all(format!("content {i}").as_bytes())?;
        file.sync_all().with_context(|| format!("fsync {}", path.display()))?;
    }
    Ok(())
}

fn verify(dir: &Path, names: std::ops::Range<u32>) -> Result<()> {
    for i in names {
        let found = fs::read_to_string(dir.join(format!("f{i}")))?;
        ensure!(found == format!("content {i}"), "f{i} holds {found:?}");
    }
    Ok(())
}

/// I2: it comes back by itself, holds all, and can be relied on: the group goes on with it and
/// without the leader that brought it back.
#[test]
fn a_metadata_server_comes_back_on_an_empty_disk() -> Result<()> {
    let cluster = Cluster::start()?;
    let m = cluster.mnt();
    write(m, 0..20)?;
    let folder = cluster.lose_metadata_disk()?;
    write(m, 20..40)?;
    cluster.start_again()?;
    eventually(Duration::from_secs(60), "the server has caught up", || {
        let identity = fs::read_to_string(folder.join("identity")).ok()?;
        identity.contains("standing = \"member\"").then_some(())
    })?;
    cluster.kill_leader()?;
    write(m, 40..60)?;
    cluster.remount()?;
    verify(m, 0..60)
}
