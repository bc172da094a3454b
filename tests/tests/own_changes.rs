//! What a mount changes itself its kernel shows, whatever it was told before.

use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use weft_tests::Cluster;

type Times = (i64, i64);

fn changed(path: &Path) -> Result<Times> {
    let meta = fs::metadata(path)?;
    Ok((meta.ctime(), meta.ctime_nsec()))
}

/// Others ask for the same attributes all the while: answers from before a change must not be
/// taken for good after it.
#[test]
fn a_change_is_seen_whatever_others_were_told_before_it() -> Result<()> {
    const ROUNDS: u32 = 3000;
    let cluster = Cluster::start()?;
    let dir = cluster.mnt().join("d");
    let (sub, moved) = (dir.join("sub"), [dir.join("m0"), dir.join("m1")]);
    fs::create_dir_all(&sub)?;
    File::create(&moved[0])?;
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let lookers: Vec<_> = (0..6)
            .map(|_| {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        let _ = fs::metadata(&dir);
                        let _ = moved.iter().map(fs::metadata).count();
                        let _ = fs::metadata(&sub);
                    }
                })
            })
            .collect();
        let run = || -> Result<()> {
            for round in 0..ROUNDS {
                let (from, to) = (&moved[round as usize % 2], &moved[(round as usize + 1) % 2]);
                let name = sub.join("f");
                let before = [changed(&dir)?, changed(&sub)?, changed(from)?];
                File::create(&name)?;
                let made = changed(&sub)?;
                ensure!(made > before[1], "{round}: {made:?} after {before:?}: a file was made");
                fs::remove_file(&name)?;
                let removed = changed(&sub)?;
                ensure!(removed > made, "{round}: {removed:?} after {made:?}: it was removed");
                fs::rename(from, to)?;
                let after = [changed(&dir)?, changed(to)?];
                ensure!(after[0] > before[0], "{round}: {after:?} after {before:?}: directory");
                ensure!(after[1] > before[2], "{round}: {after:?} after {before:?}: moved");
                let mode = 0o600 | (round % 0o100);
                fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
                let seen = fs::metadata(to)?.mode() & 0o777;
                ensure!(seen == mode, "{round}: mode {seen:o}, not {mode:o}");
                fs::create_dir(sub.join("d"))?;
                let links = fs::metadata(&sub)?.nlink();
                ensure!(links == 3, "{round}: {links} links");
                fs::remove_dir(sub.join("d"))?;
                let links = fs::metadata(&sub)?.nlink();
                ensure!(links == 2, "{round}: {links} links");
            }
            Ok(())
        };
        let result = run();
        ended.store(true, Ordering::Relaxed);
        for looker in lookers {
            looker.join().ok().context("a thread panicked")?;
        }
        result
    })?;
    cluster.await_clean()
}
