//! `weft target replace`: another drive in the place of one.

use super::add::{self, Index, NewArgs};
use super::config::{File, RELOAD};
use super::remove::{OldArgs, may_go};
use crate::output::say;
use anyhow::{Result, ensure};
use std::path::PathBuf;

/// Format a drive and put it in the place of another in the configuration of a storage daemon
///
/// The new drive joins as a new target. What the old one holds is not copied by this: a target with
/// chunks is refused as by `weft target remove`, which says what to do first.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The path of the target that goes, as the configuration has it
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// The drive that comes, as for `weft target add`
    #[arg(value_name = "NEW")]
    location: PathBuf,
    #[command(flatten)]
    keep: OldArgs,
    #[command(flatten)]
    new: NewArgs,
}

pub async fn run(args: Args) -> Result<()> {
    let file = File::lock(&args.new.config)?;
    let gone = may_go(&file, &args.old, args.keep).await?;
    let target = add::target(&args.location, &args.new)?;
    ensure!(
        target.path != args.old,
        "{} is listed: weft target add makes the drive that is there now a target",
        args.old.display()
    );
    let its_index = file.find(&args.old)?.options().index_path();
    let index = if target.options().index_path() == its_index { Index::Own } else { Index::New };
    let file = file.without(&args.old)?.with(&target)?;
    let made = add::make(&target, &file.config.nvmeof, args.new.force, index).await?;
    file.write()?;
    say(&format!("{gone}; {made}; {} says so: {RELOAD}", args.new.config.display()))
}
