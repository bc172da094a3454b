//! `weft dev stop`: mounts first, so that they can still write; then storage, then metadata.

use super::state::{Daemon, State, lock};
use super::status::mounts_of;
use crate::output;
use crate::process::Process;
use crate::progress::Progress;
use crate::umount;
use anyhow::{Context, Result};
use std::path::Path;
use std::time::{Duration, Instant};

/// Stopping what has stopped is no error.
pub fn run(dir: &Path, limit: Duration) -> Result<()> {
    let mut state = State::load_existing(dir)?;
    let _lock = lock(dir)?;
    let mut progress = Progress::new("unmounting");
    for mount in mounts_of(&state)? {
        progress.set(format!("unmounting {}", mount.path.display()));
        umount::stop(&mount.path, &mount.process, limit)
            .with_context(|| format!("cannot unmount {}", mount.path.display()))?;
    }
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
    output::say(&format!("stopped; the data stays in {}", dir.display()))
}

/// Asks all of a role at once, then waits for each; what is late is killed.
fn stop_all(role: &str, daemons: &[Daemon], limit: Duration) -> Result<()> {
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
