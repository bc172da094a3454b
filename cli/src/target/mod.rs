//! `weft target`: the drives of a cluster.

mod add;
mod config;
mod list;
mod remove;
mod replace;
mod scrub;
mod show;

pub use list::{TargetRow, known, rows, state_name, text};

use anyhow::Result;
use std::process::ExitCode;

/// Show, add, check and take away the drives (targets) of a cluster
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    List(list::Args),
    Show(show::Args),
    Add(add::Args),
    Remove(remove::Args),
    Replace(replace::Args),
    Scrub(scrub::Args),
}

pub async fn run(args: Args) -> Result<ExitCode> {
    let done = |result: Result<()>| result.map(|()| ExitCode::SUCCESS);
    match args.command {
        Command::List(args) => done(list::run(args).await),
        Command::Show(args) => done(show::run(args).await),
        Command::Add(args) => done(add::run(args).await),
        Command::Remove(args) => done(remove::run(args).await),
        Command::Replace(args) => done(replace::run(args).await),
        Command::Scrub(args) => scrub::run(args).await,
    }
}
