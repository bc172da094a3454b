//! Names that a program knows from elsewhere, and looks up without listing anything: few requests,
//! and what others change is seen at once all the same.

use anyhow::{Result, ensure};
use std::fs;
use std::path::Path;
use weft_tests::{Cluster, await_free, cost, tree};

const DIRS: usize = 12;
const FILES: usize = 30;

fn len(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|attr| attr.len())
}

#[test]
fn names_that_are_known_are_looked_up_with_few_requests() -> Result<()> {
    let cluster = Cluster::start()?;
    tree(&cluster, [DIRS, FILES], |d, f| vec![d as u8; f + 1])?;
    let top = cluster.mnt().join("t");
    let asked = cost(cluster.mnt(), || {
        for d in 0..DIRS {
            for f in 0..FILES {
                let path = top.join(format!("{d}/{f}"));
                ensure!(len(&path) == Some(f as u64 + 1), "{}", path.display());
            }
        }
        Ok(())
    })?;
    ensure!(asked < (DIRS * FILES / 2) as u64, "{} names cost {asked} requests", DIRS * FILES);
    // All names of each are known by now. Others each time: the kernel knows those that were asked.
    let mut round = 0;
    await_free(cluster.mnt(), "look for names that are not there", || {
        round += 1;
        for d in 0..DIRS {
            for name in ["module.so", "module.py", "module/__init__.py"] {
                ensure!(len(&top.join(format!("{d}/{round}-{name}"))).is_none());
            }
        }
        Ok(())
    })?;
    cluster.await_clean()
}

#[test]
fn what_others_change_where_names_were_looked_up_is_seen_at_once() -> Result<()> {
    let cluster = Cluster::start()?;
    tree(&cluster, [DIRS, FILES], |d, f| vec![d as u8; f + 1])?;
    let other = cluster.mount_again("second")?;
    for d in 0..DIRS {
        let (here, there) = (cluster.mnt().join("t"), other.join("t"));
        let (here, there) = (here.join(d.to_string()), there.join(d.to_string()));
        let look = |names: &[&str]| names.iter().map(|name| len(&here.join(name))).collect();
        let before: Vec<Option<u64>> = look(&["3", "4", "5", "none", "6", "new"]);
        ensure!(before == [Some(4), Some(5), Some(6), None, Some(7), None], "{before:?}");
        fs::write(there.join("new"), b"made")?;
        fs::remove_file(there.join("4"))?;
        fs::rename(there.join("6"), there.join("none"))?;
        fs::write(there.join("20"), b"longer than it was before")?;
        let after: Vec<Option<u64>> = look(&["3", "4", "5", "none", "6", "new", "20"]);
        let now = [Some(4), None, Some(6), Some(7), None, Some(4), Some(25)];
        ensure!(after == now, "{after:?}");
    }
    cluster.await_clean()
}
