//! What a drive that hangs costs reads: `cargo run --release -p weft-tests --bin hang [SECONDS]`
//! starts a cluster, reads 128 KiB pieces of cold files through its mount, and prints the latencies
//! before, while and after one of its six drives answers nothing.

// Measures real time.
#![allow(clippy::disallowed_methods)]

use anyhow::Result;
use rand::Rng;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};
use weft_tests::{Cluster, data};

const FILES: u64 = 16;
const LEN: usize = 16 << 20;
const PIECE: usize = 128 << 10;

fn main() -> Result<()> {
    let seconds = std::env::args().nth(1).map_or(Ok(15), |s| s.parse())?;
    let cluster = Cluster::start()?;
    cluster.allow(Duration::from_secs(600 + 4 * seconds))?;
    let drive = cluster.hang_drive(2)?;
    for i in 0..FILES {
        fs::write(cluster.mnt().join(format!("f{i}")), data::bytes(i, LEN))?;
    }
    cluster.remount()?;
    let run = |what: &str| run(&cluster, what, Duration::from_secs(seconds));
    run("before")?;
    drive.hang();
    run("hanging")?;
    drive.go_on();
    cluster.await_targets("up", 6)?;
    run("after")
}

/// Reads for a while and prints how long each read took.
fn run(cluster: &Cluster, what: &str, time: Duration) -> Result<()> {
    let open = |i| -> Result<File> {
        // Past the page cache: every read asks the targets.
        let mut options = File::options();
        let path = cluster.mnt().join(format!("f{i}"));
        Ok(options.read(true).custom_flags(libc::O_DIRECT).open(path)?)
    };
    let files = (0..FILES).map(open).collect::<Result<Vec<_>>>()?;
    let (begun, mut took) = (Instant::now(), Vec::new());
    let mut bytes = vec![0; PIECE];
    while begun.elapsed() < time {
        let mut random = rand::rng();
        let file = &files[random.random_range(0..files.len())];
        let off = random.random_range(0..LEN / PIECE) * PIECE;
        let start = Instant::now();
        file.read_exact_at(&mut bytes, off as u64)?;
        took.push(start.elapsed());
    }
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "{what:8} {:6} reads  p50 {:7.2} ms  p99 {:7.2} ms  p99.9 {:7.2} ms  longest {:7.2} ms",
        took.len(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
    Ok(())
}
