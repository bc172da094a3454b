//! `weft dev`: a whole cluster on this machine, as separate processes on the loopback interface,
//! with all its data in one folder.

mod config;
mod start;
mod state;
mod status;
mod stop;

use crate::output::OutputArgs;
use crate::size::Size;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_storaged::engine::Superblock;

/// Run a whole cluster on this machine, for trying out and for tests
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  mkdir -p /tmp/mnt
  weft dev start --dir /tmp/weft --mount /tmp/mnt
  weft dev status --dir /tmp/weft
  weft dev stop --dir /tmp/weft          # data stays; start again goes on with it")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Start(StartArgs),
    /// Show the processes of the cluster in DIR
    Status {
        #[command(flatten)]
        dir: DirArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Unmount and stop the cluster in DIR; its data stays
    Stop {
        #[command(flatten)]
        dir: DirArgs,
        /// Seconds that each process gets to stop by itself before it is killed
        #[arg(long, default_value_t = 15, value_name = "SECONDS")]
        timeout: u64,
    },
}

#[derive(clap::Args, Debug)]
struct DirArgs {
    /// Folder that holds everything of the cluster
    #[arg(long)]
    dir: PathBuf,
}

/// Start the cluster in DIR and mount it; returns when the mount is usable
///
/// A new or empty DIR gets a new cluster; if that cannot be started, nothing but its logs is left. On a
/// DIR that has one, whatever does not run is started and the rest is left alone.
#[derive(clap::Args, Debug)]
pub struct StartArgs {
    /// Folder that holds everything of the cluster
    #[arg(long)]
    dir: PathBuf,
    /// Where to mount it; an empty folder, made if only the last part of the path is missing
    #[arg(long, value_name = "MNT", required_unless_present = "no_mount")]
    mount: Option<PathBuf>,
    /// Start the daemons only
    #[arg(long, conflicts_with = "mount")]
    no_mount: bool,
    /// Number of metadata servers [default of a new cluster: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=9))]
    metadata: Option<u64>,
    /// Number of storage daemons, each with one target [default of a new cluster: 6]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    storage: Option<u64>,
    /// Redundancy: K+M, or replica=N [default of a new cluster: 4+2]
    #[arg(long)]
    profile: Option<weft_proto::Profile>,
    /// Size of each target [default of a new cluster: 4GiB, less where all of them would not fit]
    #[arg(long, value_name = "SIZE", value_parser = target_size)]
    target_size: Option<Size>,
    /// Give the targets of a new cluster all their space at once, which makes writes quicker; without,
    /// they take what is written
    #[arg(long)]
    preallocate: bool,
    /// Seconds to wait for the cluster before giving up
    #[arg(long, default_value_t = 90, value_name = "SECONDS")]
    timeout: u64,
}

fn target_size(text: &str) -> Result<Size, String> {
    let (size, least) = (text.parse::<Size>()?, Size(Superblock::MIN_SIZE));
    if size < least {
        return Err(format!("a target has at least {}", least.exact()));
    }
    Ok(size)
}

pub fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Start(args) => start::run(args),
        Command::Status { dir, output } => {
            crate::daemon::runtime(2)?.block_on(status::run(&absolute(&dir.dir)?, output))
        }
        Command::Stop { dir, timeout } => {
            stop::run(&absolute(&dir.dir)?, Duration::from_secs(timeout))
        }
    }
}

/// Daemons run elsewhere in the tree, so every path that they get is absolute and resolved.
fn absolute(dir: &Path) -> Result<PathBuf> {
    match dir.canonicalize() {
        Ok(path) => Ok(path),
        Err(_) => std::path::absolute(dir).with_context(|| format!("bad path {}", dir.display())),
    }
}
