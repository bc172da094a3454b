//! A page that another mount has just made a part of a file is there for whoever maps it.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;
use weft_jepsen::workload::Pager;
use weft_tests::Cluster;

const ROUNDS: usize = 900;
/// So many are killed at most, of five to eight while notices overtook answers: a mount does not
/// hear what is in the kernel's queue
/// (docs/decisions/027-the-kernel-keeps-names-under-leases.md).
const MOST_KILLED: usize = 2;

#[test]
fn who_maps_a_file_that_others_make_longer_is_hardly_ever_killed() -> Result<()> {
    let cluster = Cluster::start()?;
    let mounts = [cluster.mnt().to_owned(), cluster.mount_again("b")?, cluster.mount_again("c")?];
    fs::create_dir(mounts[0].join("d"))?;
    let together = Barrier::new(mounts.len());
    thread::scope(|scope| {
        let workers: Vec<_> = mounts
            .iter()
            .map(|mount| {
                let together = &together;
                scope.spawn(move || -> Result<usize> {
                    let (mut pager, mut killed) = (Pager::default(), 0);
                    for round in 0..ROUNDS {
                        together.wait();
                        thread::park_timeout(Duration::from_micros(rand::random_range(0..1500)));
                        // It is made, and made long enough unless it is.
                        match pager.get(&mount.join(format!("d/{round}"))) {
                            Err(error) if error.raw_os_error().is_none() => killed += 1,
                            got => ensure!(got? == 0),
                        }
                    }
                    Ok(killed)
                })
            })
            .collect();
        let mut killed = 0;
        for worker in workers {
            killed += worker.join().ok().context("a thread panicked")??;
        }
        ensure!(killed <= MOST_KILLED, "{killed} were killed in {ROUNDS} rounds");
        anyhow::Ok(())
    })?;
    cluster.await_clean()
}
