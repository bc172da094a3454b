//! The ends of processes that are not children of the test, and what else is waited for.

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::time::{Duration, Instant};

/// Waits until `probe` answers `Some`, looking every 20 ms; fails with `what` after `limit`.
pub fn eventually<T>(
    limit: Duration,
    what: &str,
    mut probe: impl FnMut() -> Option<T>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = probe() {
            return Ok(found);
        }
        if start.elapsed() > limit {
            bail!("not within {limit:?}: {what}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn await_end(pid: i32) -> Result<()> {
    let status = || fs::read_to_string(format!("/proc/{pid}/status"));
    // Its last thread has: until then its files are open.
    let is_over = |text: &str| text.contains("State:\tZ") && text.contains("Threads:\t1\n");
    let has_ended = || status().map_or(true, |text| is_over(&text)).then_some(());
    eventually(Duration::from_secs(60), "it has ended", has_ended)
}

pub(crate) fn kill_hard(pid: i32) -> Result<()> {
    kill(Pid::from_raw(pid), Signal::SIGKILL).with_context(|| format!("kill {pid}"))
}

/// Kills a process and waits until it has ended: who starts it again meanwhile finds it alive.
pub(crate) fn kill_to_the_end(pid: i32) -> Result<()> {
    kill_hard(pid)?;
    await_end(pid)
}
