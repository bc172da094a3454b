//! `weft target`: the drives of a cluster.

mod add;
mod config;
mod decide;
mod forget;
mod list;
mod remove;
mod replace;
mod scrub;
mod show;

pub use decide::{Action, decide, said};
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
    /// Give a target up: what it held is made at other targets at once
    ///
    /// Nothing is read from it any more, although its daemon may serve it: it stays out until `weft
    /// target in`. A target that is silent for long (`target_out_ms` of the metadata servers) is
    /// given up by itself, and comes back by itself.
    Out(decide::Args),
    /// Take a target back that was given up, or keep one that is being drained
    In(decide::Args),
    /// Move everything off a target while it serves
    Drain(decide::Args),
    Forget(forget::Args),
    /// Have a target hold more or less than others of its size
    ///
    /// Without this, each holds what its capacity says. A drive that is slower or older than others
    /// may be given less. Data moves until each target holds its share.
    Weight(decide::WeightArgs),
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
        Command::Out(args) => done(decide::run(args, Action::GiveUp).await),
        Command::In(args) => done(decide::run(args, Action::TakeBack).await),
        Command::Drain(args) => done(decide::run(args, Action::Drain).await),
        Command::Forget(args) => done(forget::run(args).await),
        Command::Weight(args) => done(decide::weigh(args).await),
    }
}
