//! stress-ng, a suite of others, on a mount: see `tests/posix/`.
//!
//! `WEFT_STRESS_SECONDS=60` runs each stressor longer than the test suite does,
//! `WEFT_STRESS_ONLY=lockf,dir` some of them only. So does `WEFT_BINARY_LIMIT` with the seconds
//! that all may take together.

// How long a run took is told.
#![allow(clippy::disallowed_methods)]

use anyhow::{Context, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::Uid;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use weft_tests::{Cluster, eventually, not_tested, path, run, weft_ok};

/// Stressors that run at a time, each with two workers.
const AT_ONCE: usize = 4;
/// Make thousands of names, whatever time they are given: run only if a time or they are asked for.
const LONG: [&str; 3] = ["filename", "link", "symlink"];
/// Every stressor of these is either run or skipped.
const CLASSES: [&str; 2] = ["filesystem", "io"];

#[test]
fn stress_ng_passes_and_leaves_nothing() -> Result<()> {
    let seconds = std::env::var("WEFT_STRESS_SECONDS").ok();
    let only = std::env::var("WEFT_STRESS_ONLY").ok();
    let all = stressors()?;
    let count = u32::try_from(all.len())?;
    let chosen = all.into_iter().filter(|(name, _)| match &only {
        Some(only) => only.split(',').any(|wanted| wanted == name),
        None => seconds.is_some() || !LONG.contains(&name.as_str()),
    });
    let seconds = seconds.as_deref().unwrap_or("1");
    if Uid::effective().is_root() {
        no_mounts_of_others()?;
    } else {
        not_tested("stress-ng's stressors that take root");
    }
    let cluster = Cluster::start()?;
    // Some take much longer than they are told to.
    let each = Duration::from_secs(20 + 2 * seconds.parse::<u64>()?);
    cluster.allow(each * count)?;
    let before = held(&cluster)?;
    let waiting = Mutex::new(chosen);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("no stressor panics").next();
                    let Some((name, options)) = next else { break };
                    let begun = Instant::now();
                    let ended = stress(&cluster, &name, &options, seconds);
                    let took = begun.elapsed().as_secs_f64();
                    match ended {
                        Ok(()) => println!("{name}: passed, {took:.1} s"),
                        Err(error) => {
                            println!("{name}: FAILED: {error:#}");
                            failures.lock().expect("no stressor panics").push(name);
                        }
                    }
                }
            });
        }
    });
    let failures = failures.into_inner()?;
    ensure!(failures.is_empty(), "failed: {failures:?}");
    let mut last = Value::Null;
    eventually(Duration::from_secs(60), "no more is held than before", || {
        last = held(&cluster).ok()?;
        (last == before).then_some(())
    })
    .with_context(|| format!("before: {before}, now: {last}"))
}

/// This thread, and what it starts, no longer has the mounts of other tests: fanotify's stressor
/// watches each mount that it finds, and what it has not read of the events keeps them busy.
fn no_mounts_of_others() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let temporary = std::env::temp_dir().canonicalize()?;
    for mount in weft_fuse::mounts()?.into_iter().rev() {
        let at = mount.mount_point;
        if mount.fs_type.starts_with("fuse") && at.starts_with(&temporary) {
            umount2(&at, MntFlags::MNT_DETACH).with_context(|| format!("{}", at.display()))?;
        }
    }
    Ok(())
}

/// Name and options of each stressor that is run.
fn stressors() -> Result<BTreeMap<String, Vec<String>>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("posix");
    let lines = |name: &str| -> Result<Vec<Vec<String>>> {
        let text = fs::read_to_string(here.join(name))?;
        let lines = text.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
        Ok(lines.map(|l| l.split_whitespace().map(str::to_owned).collect()).collect())
    };
    let (run, skipped) = (lines("stress-ng.stressors")?, lines("stress-ng.skipped")?);
    let named: BTreeSet<_> = run.iter().chain(&skipped).map(|words| words[0].as_str()).collect();
    ensure!(named.len() == run.len() + skipped.len(), "a stressor is named twice");
    for class in CLASSES {
        // It lists a class, and then complains that it was given nothing to do.
        let out = Command::new("stress-ng")
            .args(["--class", &format!("{class}?")])
            .output()
            .context("run stress-ng, which scripts/setup installs")?;
        let text = String::from_utf8_lossy(&out.stdout);
        let (_, of_class) = text.split_once("stressors:").context("no stressors are listed")?;
        let new: Vec<_> =
            of_class.split_whitespace().filter(|name| !named.contains(name)).collect();
        ensure!(new.is_empty(), "neither run nor skipped, of class {class}: {new:?}");
    }
    Ok(run.into_iter().map(|mut words| (words.remove(0), words)).collect())
}

/// Runs one stressor, in a folder of its own that has to be empty in the end.
fn stress(cluster: &Cluster, name: &str, options: &[String], seconds: &str) -> Result<()> {
    let folder = cluster.mnt().join(name);
    fs::create_dir(&folder)?;
    let options = options.iter().map(|option| option.replace("MNT", path(&folder)));
    let out = Command::new("stress-ng")
        .args([&format!("--{name}"), "2", "--verify", "--timeout", seconds])
        .args(["--temp-path", path(&folder)])
        .args(options)
        .current_dir(&folder)
        .stdin(Stdio::null())
        .output()
        .context("run stress-ng")?;
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    let root = Uid::effective().is_root();
    let skipped = text.contains("skip");
    // Only root may do all that there is to do.
    let passed = if skipped { !root } else { out.status.success() };
    ensure!(passed, "{}:\n{text}", out.status);
    fs::remove_dir(&folder).with_context(|| format!("it left {:?}", run("ls", &["-laR"], &folder)))
}

/// What the cluster holds: inodes, segments and chunks, and of each session its open files. Locks
/// end with their inode, or fsck is not clean.
fn held(cluster: &Cluster) -> Result<Value> {
    let (clean, mut all) = cluster.fsck()?;
    ensure!(clean, "{all}");
    let status = weft_ok(&["status", "--cluster", &cluster.address()?, "--output", "json"])?;
    let status: Value = serde_json::from_str(&status)?;
    all["opens"] = cluster.opens()?.into();
    all["garbage_segments"] = status["garbage_segments"].clone();
    Ok(all)
}
