//! One file under random operations, on one mount and handed from one mount to another, in each
//! kind of layout ([`weft_tests::fsx`]).
//!
//! `WEFT_FSX_OPS=100000` runs longer than the test suite does, `WEFT_FSX_SEED` other operations
//! than the last time; a run without it prints the seed that it took. `WEFT_FSX_WAYS=Fsync,Lock`
//! hands over in these ways only.

// How long a run took is told.
#![allow(clippy::disallowed_methods)]

use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weft_tests::fsx::{Fsx, HandOver};
use weft_tests::{Cluster, eventually, path, weft_ok};

fn number(name: &str, usual: u64) -> Result<u64> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name} is no number")),
        Err(_) => Ok(usual),
    }
}

/// Small stripes and segments, so that small files have many.
const LAYOUTS: [(&str, &[&str], u64); 3] = [
    ("inline", &["--inline", "64KiB"], 60_000),
    ("ec", &["--ec", "4+2", "--unit", "4KiB", "--segment", "64KiB", "--inline", "0"], 400_000),
    ("replica", &["--replica", "3", "--unit", "16KiB", "--segment", "64KiB"], 400_000),
];

/// How many mounts, and how the file goes from one to another.
const WAYS: [(usize, HandOver); 5] = [
    (1, HandOver::Nothing),
    (2, HandOver::Close),
    (2, HandOver::Fsync),
    (2, HandOver::Lock),
    (2, HandOver::Nothing),
];

fn run(mounts: &[PathBuf], layout: usize, seed: u64, operations: u64) -> Result<()> {
    let (name, arguments, longest) = LAYOUTS[layout];
    let only = std::env::var("WEFT_FSX_WAYS").ok();
    for (way, (count, hand_over)) in WAYS.into_iter().enumerate() {
        let called = format!("{hand_over:?}");
        if only.as_ref().is_some_and(|only| !only.split(',').any(|one| one == called)) {
            continue;
        }
        let folder = format!("{name}{way}");
        fs::create_dir(mounts[0].join(&folder))?;
        let top = mounts[0].join(&folder);
        weft_ok(&[&["layout", "set", path(&top)], arguments].concat())?;
        let folders = mounts[..count].iter().map(|m| m.join(&folder)).collect();
        let seed = seed.wrapping_add((layout * WAYS.len() + way) as u64);
        let most = (longest / 4).min(70_000);
        let begun = Instant::now();
        let fsx = Fsx { folders, hand_over, seed, operations, longest, most };
        fsx.run().with_context(|| format!("{name} on {count} mounts, {called}"))?;
        let took = begun.elapsed().as_secs_f64();
        println!("{name}: {operations} on {count} mounts ({called}) in {took:.1} s");
    }
    Ok(())
}

#[test]
fn a_file_holds_what_was_written_by_whichever_mount() -> Result<()> {
    let (seed, operations) =
        (number("WEFT_FSX_SEED", rand::random())?, number("WEFT_FSX_OPS", 400)?);
    println!("WEFT_FSX_SEED={seed} WEFT_FSX_OPS={operations}");
    let cluster = Cluster::start()?;
    let mounts = [cluster.mnt().to_path_buf(), cluster.mount_again("second")?];
    std::thread::scope(|scope| {
        let run = |layout| {
            let mounts = &mounts;
            scope.spawn(move || run(mounts, layout, seed, operations))
        };
        let runs: Vec<_> = (0..LAYOUTS.len()).map(run).collect();
        runs.into_iter().try_for_each(|run| run.join().expect("a run panicked"))
    })?;
    weft_ok(&["umount", path(&mounts[1])])?;
    // Copies share segments: all are free once the last of them is gone.
    eventually(Duration::from_secs(60), "nothing left of what was removed", || {
        let (clean, report) = cluster.fsck().ok()?;
        (clean && report["segments"] == 0).then_some(())
    })?;
    cluster.await_clean()
}
