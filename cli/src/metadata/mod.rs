//! `weft metadata`: one metadata server, and who belongs to their group.

mod backup;
mod folder;
mod list;
mod members;
mod restore;
mod salvage;
mod serve;
mod verify;

use crate::daemon;
use anyhow::Result;

/// Run a metadata server in the foreground (SIGTERM stops it), or say which servers make the group
#[derive(clap::Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:
  weft metadata --bootstrap --config /etc/weft/metadata.toml
  weft metadata --config /etc/weft/metadata.toml
  weft metadata --id 1 --data-dir /var/lib/weft/metadata \\
      --peer 1=10.0.0.1:7100 --peer 2=10.0.0.2:7100 --peer 3=10.0.0.3:7100

A server takes the place of another, which may be dead:
  weft metadata --id 4 --data-dir /var/lib/weft/metadata \\
      --peer 4=10.0.0.4:7100 --peer 2=10.0.0.2:7100      (on the new machine)
  weft metadata replace 1 4 10.0.0.4:7100

A backup, and a new group from it when the old one is lost:
  weft metadata backup /backup/weft/2026-01-31
  weft metadata verify /backup/weft/2026-01-31
  weft metadata restore /backup/weft/2026-01-31 --config /etc/weft/metadata-4.toml

Without one, from what a server still has:
  weft metadata salvage /backup/weft/last --config /etc/weft/metadata-2.toml"
)]
pub struct Args {
    #[command(flatten)]
    serve: serve::Args,
    #[command(subcommand)]
    command: Option<members::Command>,
}

impl Args {
    /// Whether this process is to be a server.
    pub fn serves(&self) -> bool {
        self.command.is_none()
    }
}

pub fn run(args: Args) -> Result<()> {
    match args.command {
        Some(command) => daemon::runtime(2)?.block_on(members::run(command)),
        None => serve::run(args.serve),
    }
}
