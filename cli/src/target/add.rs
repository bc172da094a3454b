//! `weft target add`: makes a drive a target and lists it in its daemon's configuration.

use super::config::{File, RELOAD};
use crate::output::say;
use crate::size::Size;
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use weft_storaged::Target;
use weft_storaged::engine::{Content, Engine, TargetOptions, inspect};

/// Format a drive and add it to the configuration of a storage daemon
///
/// A drive that is mounted or otherwise in use is refused. One that holds anything (a filesystem, a
/// partition table, a member of LVM or of a RAID, another target) is formatted only after you said so.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft target add /dev/disk/by-id/nvme-a --index /var/lib/weft/nvme-a.index
  weft target add /srv/weft/target --size 64GiB")]
pub struct Args {
    /// Block device (by a name that stays), file, or address of an NVMe-oF namespace
    #[arg(value_name = "LOCATION")]
    pub location: PathBuf,
    #[command(flatten)]
    pub new: NewArgs,
}

#[derive(clap::Args, Debug)]
pub struct NewArgs {
    /// Configuration of the storage daemon
    #[arg(long, value_name = "FILE", default_value = "/etc/weft/storaged.toml")]
    pub config: PathBuf,
    /// Size of a file that is to be made
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Directory of the index, on a fast local drive [default for a file: its path with .index]
    #[arg(long, value_name = "DIR")]
    pub index: Option<PathBuf>,
    /// Destroy what the drive holds without asking
    #[arg(long, visible_alias = "yes")]
    pub force: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let (file, target) = (File::read(&args.new.config)?, target(&args.location, &args.new)?);
    let file = file.with(&target)?;
    let made = make(&target, args.new.force)?;
    file.write()?;
    say(&format!("{made}; {} lists it: {RELOAD}", args.new.config.display()))
}

/// The section of a new target. Its path is absolute, unless it is an address.
pub fn target(location: &Path, args: &NewArgs) -> Result<Target> {
    let path = if is_address(location) {
        location.to_path_buf()
    } else {
        std::path::absolute(location)
            .with_context(|| format!("{} is not a path", location.display()))?
    };
    let index = args.index.as_deref().map(std::path::absolute).transpose()?;
    Ok(Target { index, ..Target::new(path, args.size.map(|s| s.0)) })
}

/// Formats the drive, after a question where it holds something. Answers what was done.
pub fn make(target: &Target, force: bool) -> Result<String> {
    let name = target.path.display();
    if is_address(&target.path) {
        return Ok(format!("{name} is formatted by its daemon if it is blank"));
    }
    let found = match target.path.exists() {
        true => inspect(&target.path)?.content,
        false => Content::Blank,
    };
    if found != Content::Blank && !force {
        confirm(&format!("{name} holds {found}"))?;
    }
    let options = TargetOptions {
        index: target.index.clone(),
        ..TargetOptions::new(&target.path, target.size)
    };
    let superblock = Engine::format(&options, &found)?;
    Ok(format!("{name} is target {} now, {}", superblock.uuid, Size(superblock.size)))
}

/// An NVMe-oF address, which the daemon connects.
fn is_address(location: &Path) -> bool {
    location.to_str().is_some_and(|text| text.contains("://"))
}

fn confirm(what: &str) -> Result<()> {
    if !std::io::stdin().is_terminal() {
        bail!("{what}; --force destroys that");
    }
    eprint!("{what}. Everything on it will be lost. Type yes to go on: ");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    ensure!(answer.trim() == "yes", "nothing was changed");
    Ok(())
}
