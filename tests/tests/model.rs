//! POSIX semantics under random operations, against a model in memory ([`weft_tests::model`]): by
//! way of one to three mounts, of a plain local folder to test the model, and of mounts with faults
//! to test the test.
//!
//! `WEFT_MODEL_OPS=100000` runs longer than the test suite does, `WEFT_MODEL_SEED` other operations
//! than the last time; a run without it prints the seed that it took.

use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use weft_tests::model::faulty::{Fault, FaultyMount};
use weft_tests::model::{Differs, Model};
use weft_tests::{Cluster, path, weft_ok};

fn number(name: &str, usual: u64) -> Result<u64> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name} is no number")),
        Err(_) => Ok(usual),
    }
}

fn seed_and_operations(usual: u64) -> Result<(u64, u64)> {
    let (seed, operations) =
        (number("WEFT_MODEL_SEED", rand::random())?, number("WEFT_MODEL_OPS", usual)?);
    println!("WEFT_MODEL_SEED={seed} WEFT_MODEL_OPS={operations}");
    Ok((seed, operations))
}

/// The model itself is right: Linux's own filesystem does as it says.
#[test]
fn a_local_folder_does_as_the_model_says() -> Result<()> {
    let (seed, operations) = seed_and_operations(2000)?;
    for paths in 1..=3 {
        let folder = tempfile::Builder::new().prefix("weft-model-").tempdir()?;
        let folders: Vec<PathBuf> = vec![folder.path().to_owned(); paths];
        Model { folders, seed: seed.wrapping_add(paths as u64), operations, coarse_clock: true }
            .run()?;
    }
    Ok(())
}

/// A folder with small stripes and segments, so that small files have many.
fn make_folder(mount: &Path, name: &str) -> Result<()> {
    let folder = mount.join(name);
    fs::create_dir(&folder)?;
    let layout = ["--unit", "4KiB", "--segment", "64KiB", "--inline", "4KiB"];
    weft_ok(&[&["layout", "set", path(&folder)], &layout[..]].concat()).map(drop)
}

#[test]
fn mounts_do_as_the_model_says() -> Result<()> {
    let (seed, operations) = seed_and_operations(300)?;
    let cluster = Cluster::start()?;
    let mounts = [
        cluster.mnt().to_path_buf(),
        cluster.mount_again("second")?,
        cluster.mount_again("third")?,
    ];
    let run = |count: usize| {
        let name = format!("{count}");
        make_folder(&mounts[0], &name)?;
        let folders = mounts[..count].iter().map(|mount| mount.join(&name)).collect();
        let seed = seed.wrapping_add(count as u64);
        Model { folders, seed, operations, coarse_clock: false }
            .run()
            .with_context(|| format!("on {count} mounts"))
    };
    // One after the other: during a rename the kernel does not find what another mount moved from
    // one directory to another (ESTALE).
    (1..=mounts.len()).try_for_each(run)?;
    mounts[1..].iter().try_for_each(|mount| weft_ok(&["umount", path(mount)]).map(drop))?;
    cluster.await_clean()
}

const FAULTY_MOUNT: &str = env!("CARGO_BIN_EXE_faulty-mount");

/// On two mounts, of which the second has a fault: the same operations pass without it.
#[test]
fn planted_faults_are_found() -> Result<()> {
    /// By it, all five are found early.
    const SEED: u64 = 5;
    const OPERATIONS: u64 = 300;
    let cluster = Cluster::start()?;
    let run = |fault: Option<Fault>| {
        let name = format!("{fault:?}");
        make_folder(cluster.mnt(), &name)?;
        let at = cluster.scratch(&name)?;
        let faulty = FaultyMount::start(FAULTY_MOUNT, &cluster.address()?, &at, fault)?;
        let folders = vec![cluster.mnt().join(&name), at.join(&name)];
        let found =
            Model { folders, seed: SEED, operations: OPERATIONS, coarse_clock: false }.run();
        drop(faulty);
        found
    };
    run(None).context("without a fault")?;
    for fault in Fault::ALL {
        let Err(error) = run(Some(fault)) else { bail!("{fault:?} was not found") };
        let differs = error.downcast_ref::<Differs>().context("no difference")?;
        println!("{fault:?}: found by operation {}: {}", differs.operation, error.root_cause());
        ensure!(differs.operation < OPERATIONS, "{fault:?} was found only at the end");
    }
    Ok(())
}
