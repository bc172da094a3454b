//! The small process beside each process that serves a mount.
//!
//! One that was killed, or has crashed, cannot go while a thread of it tells the kernel of a change
//! and waits for a directory, which a request holds that nobody answers any more. Then all who use
//! the mount would hang, and neither a supervisor ([`super::supervise`]) nor a service manager
//! would hear of its end.

use crate::logging::LogArgs;
use crate::mounts::{self, MountRecord};
use crate::process::{self, Interrupt};
use crate::umount;
use anyhow::{Context, Result};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// Pause between two looks at a process that cannot be waited for.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Starts it, beside this process. It ends with this one.
pub fn start(record: &MountRecord) -> Result<()> {
    let mut command = Command::new(process::program()?);
    command.arg("mount").arg(format!("--guard={}", record.process.pid));
    command.arg(format!("--cluster={}", record.cluster.join(",")));
    command.arg("--").arg(&record.path).stdin(Stdio::null()).stdout(Stdio::null());
    // What ends the one that serves from a terminal does not end it.
    command.process_group(0);
    command.spawn().context("cannot start the process that guards the mount")?;
    Ok(())
}

/// Stays until process `pid` is gone, which serves the mount at `path`, and lets go of who waits
/// for it if it dies and cannot go.
pub fn guard(pid: i32, path: &Path, log: &LogArgs) -> Result<()> {
    log.start("info")?;
    // A service manager tells all of a unit to end, this one with the one that it is there for.
    let _signals = Interrupt::catch()?;
    let record = mounts::find(path)?.filter(|record| record.process.pid == pid);
    let Some(record) = record else { return Ok(()) };
    while !record.process.is_gone() {
        if record.process.wait(LOOK_INTERVAL) {
            // Its last thread is not gone, or it cannot be told.
            sleep(LOOK_INTERVAL);
        }
        umount::release(&record)?;
    }
    Ok(())
}
