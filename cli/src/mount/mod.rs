//! `weft mount`: one client process that serves one mount.
//!
//! By default the command starts that process in the background ([`background`]) and returns when
//! the mount is usable ([`serve`]). Another process, perhaps of another version, may take its place
//! while programs use the mount: [`hand_over`] is the end of the one, [`take_over`] the beginning
//! of the other, and [`words`] what they say to each other. A mount may have a process that brings
//! it back when the one that serves it has died: [`supervise`]; each process that serves has one
//! that lets go of who waits for it when it dies and cannot go: [`guard`]. mount(8) comes in by
//! [`helper`].

mod args;
mod background;
mod client;
mod fstab;
mod guard;
mod hand_over;
pub mod helper;
pub mod metrics;
mod options;
mod serve;
mod session_file;
mod spec;
mod supervise;
mod take_over;
mod words;

pub use args::Args;
pub use background::mount_defaults;
pub use spec::Spec;

use crate::logging::LogArgs;
use crate::mounts;
use crate::process::Interrupt;
use crate::progress::Progress;
use anyhow::{Result, ensure};

/// Checks what can be checked without mounting.
pub fn check(args: &Args) -> Result<()> {
    weft_fuse::check_mount_point(&args.mount_point, args.allow_nonempty)?;
    Ok(())
}

pub fn run(args: &Args, log: &LogArgs) -> Result<()> {
    if args.guard {
        return guard::guard(log);
    }
    args.transport.clone().set()?;
    if args.foreground {
        ensure!(!args.takeover || args.notify, "--takeover starts a process of its own");
        log.start("info")?;
        return serve::serve(args, log);
    }
    if args.supervisor {
        return supervise::supervise(args, log);
    }
    if args.takeover {
        return take_over::start(args);
    }
    let path = weft_fuse::check_mount_point(&args.mount_point, args.allow_nonempty)?;
    let log_file = match &args.log_file {
        Some(file) => std::path::absolute(file)?,
        None => mounts::default_log(&path)?,
    };
    let interrupt = Interrupt::catch()?;
    let _progress = Progress::new(format!("mounting {}", path.display()));
    let settings = background::settings(args, log, Some(&log_file));
    let arguments = match args.supervise {
        true => background::supervisor_arguments(&settings, &path),
        false => background::arguments(&settings, &path),
    };
    background::start(&arguments, &path, &log_file, &interrupt)
}

#[cfg(test)]
mod tests;
