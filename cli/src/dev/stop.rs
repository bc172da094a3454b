//! `weft dev stop`: mounts first, so that they can still write; then storage, then metadata.

use super::state::{Daemon, State, look_and_lock};
use super::status::mounts_of;
use crate::mounts::MountRecord;
use crate::output;
use crate::process::Process;
use crate::progress::Progress;
use crate::umount;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Stopping what has stopped is no error. What a mount could not make durable is one, once all is
/// stopped.
pub fn run(dir: &Path, limit: Duration) -> Result<()> {
    let (mut state, _lock) = look_and_lock(dir, State::load_existing)?;
    let mut progress = Progress::new("unmounting");
    let mounts = mounts_of(&state)?;
    let lost = unmount_all(&mounts, limit, &mut progress);
    umount::detach_dead(&state.mount)?;
    progress.set("stopping the storage daemons");
    stop_all("storage", &state.storage, limit)?;
    progress.set("stopping the metadata servers");
    stop_all("metadata", &state.metadata, limit)?;
    for daemon in state.storage.iter_mut().chain(&mut state.metadata) {
        daemon.process = None;
    }
    state.save(dir)?;
    drop(progress);
    let others: Vec<_> = mounts.iter().map(|m| &m.path).filter(|&p| *p != state.mount).collect();
    output::say(&summary(dir, &others))?;
    ensure!(lost.is_empty(), "{}", lost.join("\n"));
    Ok(())
}

/// Answers what could not be made durable.
fn unmount_all(mounts: &[MountRecord], limit: Duration, progress: &mut Progress) -> Vec<String> {
    let mut lost = Vec::new();
    for mount in mounts {
        let holders = umount::held_by(&mount.path);
        if !holders.is_empty() {
            eprintln!("weft: {} is in use{holders}; it is taken away anyway", mount.path.display());
        }
        progress.set(format!("unmounting {}", mount.path.display()));
        lost.extend(umount::stop(mount, limit).err().map(|e| output::describe(&e)));
    }
    lost
}

/// A later start brings back only its own mount, so that the others are named.
fn summary(dir: &Path, others: &[&PathBuf]) -> String {
    let mut out = format!("stopped; the data stays in {}", dir.display());
    for other in others {
        out += &format!("\n{} was unmounted, too; weft mount brings it back", other.display());
    }
    out
}

/// Asks all of a role at once, then waits for each; what is late is killed.
pub fn stop_all(role: &str, daemons: &[Daemon], limit: Duration) -> Result<()> {
    let running = || daemons.iter().filter_map(|d| Some((d.id, d.process.as_ref()?)));
    for (id, process) in running() {
        process
            .signal(nix::sys::signal::Signal::SIGTERM)
            .with_context(|| format!("cannot signal {role}-{id} (process {})", process.pid))?;
    }
    let end = Instant::now() + limit;
    for (id, process) in running() {
        if !process.wait(end.saturating_duration_since(Instant::now())) {
            kill(role, id, process)?;
        }
    }
    Ok(())
}

fn kill(role: &str, id: u64, process: &Process) -> Result<()> {
    eprintln!("weft: {role}-{id} (process {}) did not stop in time and is killed", process.pid);
    process.stop(Duration::ZERO).map(drop)
}
