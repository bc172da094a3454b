//! A mount that nobody brings back ([`super::supervise`]) has a small process beside it all the
//! same. One that serves and is killed cannot go while a thread of it tells the kernel of a change
//! and waits for a directory, which a request holds that nobody answers any more: then all who use
//! the mount would hang, and no service manager would hear of its end.

use crate::logging::LogArgs;
use crate::mounts::{self, MountRecord};
use crate::process::{self, Process};
use crate::umount;
use anyhow::{Context, Result};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Starts it, beside this process. It ends with this one.
pub fn start(record: &MountRecord) -> Result<()> {
    let mut command = Command::new(process::program()?);
    command.arg("mount").arg(format!("--guard={}", record.process.pid));
    command.arg(format!("--cluster={}", record.cluster.join(",")));
    command.arg("--").arg(&record.path).stdin(Stdio::null()).stdout(Stdio::null());
    // What ends the one that serves from a terminal does not end it.
    command.process_group(0).spawn().context("cannot start the process that guards the mount")?;
    Ok(())
}

/// Waits until process `pid` ends, which serves the mount at `path`, and lets go of who waits for
/// it if it was killed.
pub fn guard(pid: i32, path: &Path, log: &LogArgs) -> Result<()> {
    log.start("info")?;
    let Some(process) = Process::of(pid) else { return Ok(()) };
    process.wait_for_end();
    // Another process may serve it by now.
    let record = mounts::find(path)?.filter(|record| record.process == process);
    record.iter().for_each(umount::release);
    Ok(())
}
