//! `weft dev`: a whole cluster on this machine, as separate processes on the loopback interface,
//! with all its data in one folder.

mod args;
mod config;
mod disk;
mod role;
mod start;
mod state;
mod status;
mod stop;
mod tls;

use crate::output::OutputArgs;
use anyhow::Result;
pub use args::StartArgs;
use args::absolute;
use std::path::PathBuf;
use std::time::Duration;

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
