//! What an installation has beside the binary: manual pages and completions, made from the same
//! description of the command line that `--help` shows.

use anyhow::{Context, Result};
use clap::Command;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// The page that is not about a command of `weft`.
const MOUNT_HELPER: &str = include_str!("../man/mount.weft.8");

/// Write the manual pages of all commands into a folder
#[derive(clap::Args, Debug)]
pub struct ManArgs {
    /// Where to: it is made if it is not there
    folder: PathBuf,
}

/// Print what a shell needs to complete commands and options
#[derive(clap::Args, Debug)]
pub struct CompletionsArgs {
    shell: clap_complete::Shell,
}

/// Writes a page for `weft` and for each command, as `weft-target-add.1`, and `mount.weft.8`.
pub fn man(args: &ManArgs, command: Command) -> Result<()> {
    let folder = &args.folder;
    let written = fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .and_then(|()| fs::write(folder.join("mount.weft.8"), MOUNT_HELPER));
    written.with_context(|| format!("cannot write manual pages to {}", folder.display()))
}

/// Prints completions.
pub fn completions(args: &CompletionsArgs, mut command: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "weft", &mut script);
    std::io::stdout().lock().write_all(&script).context("cannot print completions")
}
