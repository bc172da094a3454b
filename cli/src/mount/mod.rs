//! `weft mount`: one client process that serves one mount.
//!
//! By default the command starts that process in the background ([`background`]) and returns when
//! the mount is usable ([`serve`]). Another process, perhaps of another version, may take its place
//! while programs use the mount: [`hand_over`] is the end of the one, [`take_over`] the beginning
//! of the other, and [`words`] what they say to each other.

mod args;
mod background;
mod client;
mod hand_over;
mod options;
mod serve;
mod session_file;
mod take_over;
mod words;

pub use args::Args;
pub use background::mount_defaults;

use crate::logging::LogArgs;
use crate::mounts;
use crate::process::Interrupt;
use crate::progress::Progress;
use anyhow::{Result, ensure};

pub fn run(args: &Args, log: &LogArgs) -> Result<()> {
    if args.foreground {
        ensure!(!args.takeover || args.notify, "--takeover starts a process of its own");
        log.start("info")?;
        return serve::serve(args, log);
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
    background::start(&background::arguments(&settings, &path), &path, &log_file, &interrupt)
}

#[cfg(test)]
mod tests;
