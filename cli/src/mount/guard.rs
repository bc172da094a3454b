//! The small process beside each process that serves a mount.
//!
//! One that was killed, or has crashed, cannot go while a thread of it tells the kernel of a change
//! and waits for a directory, which a request holds that nobody answers any more. Then all who use
//! the mount would hang, and neither a supervisor ([`super::supervise`]) nor a service manager
//! would hear of its end.

use crate::logging::LogArgs;
use crate::mounts::MountRecord;
use crate::process::{self, Interrupt, Process};
use crate::umount;
use anyhow::{Context, Result};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// Pause between two looks at a process that cannot be waited for.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of the longest record.
const MAX_RECORD: u64 = 1 << 20;

/// Starts it, beside this process. It ends soon after this one.
pub fn start(record: &MountRecord) -> Result<()> {
    let mut command = Command::new(process::program()?);
    command.args(["mount", "--guard"]);
    command.arg(format!("--cluster={}", record.cluster.join(",")));
    command.arg("--").arg(&record.path).stdin(Stdio::piped()).stdout(Stdio::null());
    // What ends the one that serves from a terminal does not end it.
    command.process_group(0);
    let mut guard = command.spawn().context("cannot start the process that guards the mount")?;
    let told = guard.stdin.take().map(|mut to| to.write_all(&serde_json::to_vec(record)?));
    told.context("the process that guards the mount has no input")??;
    Ok(())
}

/// Stays until the process of the record that standard input has is gone, and lets go of who waits
/// for its mount if it dies and cannot go.
pub fn guard(log: &LogArgs) -> Result<()> {
    log.start("info")?;
    // A service manager tells all of a unit to end, this one with the one that it is there for.
    let _signals = Interrupt::catch()?;
    let record: MountRecord = serde_json::from_reader(io::stdin().take(MAX_RECORD))
        .context("standard input has no record of a mount")?;
    let (mut heir, mut is_told) = (None, false);
    while !record.process.is_gone() {
        if record.process.wait(LOOK_INTERVAL) {
            if record.process.is_gone() {
                break;
            }
            // Its last thread is not, or it cannot be told.
            sleep(LOOK_INTERVAL);
        }
        if let Err(error) = release(&record, &mut heir)
            && !std::mem::replace(&mut is_told, true)
        {
            tracing::error!("{error:#}");
        }
    }
    Ok(())
}

/// Unless somebody serves it who was once seen to have taken it over: the record may be another
/// mount's by now.
fn release(record: &MountRecord, heir: &mut Option<Process>) -> Result<()> {
    if let Some(now) = umount::heir(record)? {
        *heir = Some(now);
    }
    match heir {
        Some(heir) if heir.alive() => Ok(()),
        _ => umount::release(record),
    }
}
