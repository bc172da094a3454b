//! A mount comes back by itself: a small process beside the one that serves it, which waits for the
//! end of that, and mounts anew with the same settings if the mount was not taken away.
//!
//! It has no runtime, and asks the cluster nothing. Which process serves the mount, and how that
//! has ended, it knows from the mount's record: one that has been told to end, or was unmounted,
//! takes its record away; one that took over from another has put its own there, which names the
//! same supervisor.
//!
//! Invariant: a mount has one supervisor at most, the one that its record names; whoever is not
//! named there any more ends, and leaves the mount alone.

use super::args::Args;
use super::background::{self, TakenAway};
use crate::logging::LogArgs;
use crate::mounts::{self, MountRecord};
use crate::output::describe;
use crate::process::{Interrupt, Process};
use crate::umount;
use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pauses between tries; before the first there is none if it has served for long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(30);
/// Whoever is told to end gets so long beyond the time that it gives itself.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts the process that serves the mount, tells whoever waits, and stays with the mount until it
/// is taken away.
pub fn supervise(args: &Args, log: &LogArgs) -> Result<()> {
    log.start("info")?;
    let log_file = args.log_file.clone().context("--supervisor needs --log-file")?;
    let interrupt = Interrupt::catch()?;
    let own = Process::this().context("cannot find this process in /proc")?;
    let path = weft_fuse::check_mount_point(&args.mount_point, args.allow_nonempty)?;
    let mut settings = background::settings(args, log, Some(&log_file));
    settings.push(supervised(&own));
    let arguments = background::arguments(&settings, &path);
    let started = background::start(&arguments, &path, &log_file, &interrupt);
    if let Err(error) = background::notify(&started) {
        tracing::warn!("nobody hears that it was started: {}", describe(&error));
    }
    started?;
    let limit = Duration::from_secs(args.stop_timeout) + END_TIMEOUT;
    Supervisor { path, own, log_file, interrupt, limit }.watch()
}

/// The option by which a process is told who looks after it.
fn supervised(own: &Process) -> String {
    format!("--supervised={}", own.pid)
}

struct Supervisor {
    path: PathBuf,
    own: Process,
    log_file: PathBuf,
    interrupt: Interrupt,
    /// A process that serves gets so long to end when this one is to.
    limit: Duration,
}

impl Supervisor {
    /// Until the mount is taken away, or this process is told to end, and the mount with it.
    fn watch(&self) -> Result<()> {
        let mut pause = Duration::ZERO;
        while let Some(record) = self.record()? {
            let begun = Instant::now();
            if !self.interrupt.outlasts(&record.process)? {
                return self.end();
            }
            reap();
            // Another process may have taken the mount over.
            let Some(last) = self.record()? else { break };
            if last.process.alive() {
                continue;
            }
            if let Err(error) = umount::release(&last) {
                tracing::error!("{error:#}");
            }
            if !is_there(&self.path)? {
                tracing::info!("{} was taken away", self.path.display());
                break;
            }
            tracing::error!(
                "process {} has died, which served {}: mounting it anew",
                last.process.pid,
                self.path.display()
            );
            pause = if begun.elapsed() >= LONG { Duration::ZERO } else { next(pause) };
            if !self.bring_back(&last, &mut pause)? {
                break;
            }
        }
        Ok(())
    }

    /// What is known of the mount, if this process is the one to look after it.
    fn record(&self) -> Result<Option<MountRecord>> {
        let record = mounts::find(&self.path)?;
        Ok(record.filter(|record| record.supervisor.as_ref() == Some(&self.own)))
    }

    /// Mounts with the settings of the process that has died, as often as it takes. Answers whether
    /// there is something to look after again: not if somebody has taken away what was left of it,
    /// or mounted it anew, or this process is told to end.
    fn bring_back(&self, last: &MountRecord, pause: &mut Duration) -> Result<bool> {
        let mut settings = last.settings.clone();
        settings.push(supervised(&self.own));
        let again = [&settings[..], &["--again".to_owned()]].concat();
        let again = background::arguments(&again, &self.path);
        // Somebody may have put something into the folder while nothing was mounted there.
        let nonempty = "--allow-nonempty".to_owned();
        if !settings.contains(&nonempty) {
            settings.push(nonempty);
        }
        let fresh = background::arguments(&settings, &self.path);
        loop {
            if self.interrupt.pause(*pause).is_err() {
                return Ok(false);
            }
            let in_place = match self.record()? {
                None => {
                    tracing::info!("{} is looked after by another now", self.path.display());
                    return Ok(false);
                }
                // A try has come as far as to mount it, and was not heard to the end.
                Some(now) if now.process != last.process => return Ok(true),
                // A try may have taken away what was left, and then not been able to mount.
                Some(now) => is_there(&self.path)? || !now.making_room,
            };
            if in_place && !is_there(&self.path)? {
                tracing::info!("{} was taken away meanwhile", self.path.display());
                return Ok(false);
            }
            let arguments = if in_place { &again } else { &fresh };
            match background::start(arguments, &self.path, &self.log_file, &self.interrupt) {
                Ok(()) => {
                    tracing::info!("{} is mounted again", self.path.display());
                    return Ok(true);
                }
                Err(error) if error.is::<TakenAway>() => {
                    tracing::info!("{error}");
                    return Ok(false);
                }
                Err(_) if self.interrupt.came() => return Ok(false),
                Err(error) => {
                    *pause = next(*pause);
                    let why = describe(&error);
                    tracing::error!("it is not mounted, the next try is in {pause:?}: {why}");
                }
            }
            reap();
        }
    }

    /// This process is told to end: the mount ends, as if its own process had been told.
    fn end(&self) -> Result<()> {
        let until = Instant::now() + self.limit;
        // It may hand the mount over just then.
        while let Some(record) = self.record()?.filter(|record| record.process.alive()) {
            record.process.signal(Signal::SIGTERM)?;
            if !record.process.wait(until.saturating_duration_since(Instant::now())) {
                anyhow::bail!("process {} does not end", record.process.pid);
            }
        }
        Ok(())
    }
}

fn next(pause: Duration) -> Duration {
    (2 * pause).clamp(FIRST_PAUSE, MAX_PAUSE)
}

/// Whether a mount of weft is there, dead or alive.
fn is_there(path: &Path) -> Result<bool> {
    Ok(weft_fuse::mount_at(path)?.is_some_and(|mount| mount.is_weft()))
}

/// Forgets children that have ended.
fn reap() {
    let ended = || waitpid(None, Some(WaitPidFlag::WNOHANG));
    while ended().is_ok_and(|status| status.pid().is_some()) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound() {
        let mut pauses = vec![next(Duration::ZERO)];
        for _ in 0..9 {
            pauses.extend(pauses.last().map(|pause| next(*pause)));
        }
        assert_eq!(pauses[0], FIRST_PAUSE);
        assert!(pauses.is_sorted() && pauses.last() == Some(&MAX_PAUSE), "{pauses:?}");
    }
}
