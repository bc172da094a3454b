//! `weft target remove`: takes a target out of its daemon's configuration.

use super::config::{File, RELOAD};
use super::list::rows;
use crate::control::leader_status;
use crate::output::say;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use weft_storaged::engine::{Content, inspect};

/// Take a target out of the configuration of its storage daemon
///
/// The drive is not touched, so `weft target add` is not needed to undo this: put the section back. A
/// target that holds chunks is refused: moving them to others (drain) does not exist yet, so what it
/// holds would only be read degraded from the other shards.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The target's path, as the configuration has it
    #[arg(value_name = "LOCATION")]
    location: PathBuf,
    #[command(flatten)]
    old: OldArgs,
    /// Configuration of the storage daemon
    #[arg(long, value_name = "FILE", default_value = "/etc/weft/storaged.toml")]
    config: PathBuf,
}

#[derive(clap::Args, Clone, Copy, Debug)]
pub struct OldArgs {
    /// Also if it holds chunks, or nobody can say
    #[arg(long)]
    pub abandon: bool,
}

pub async fn run(args: Args) -> Result<()> {
    let file = File::read(&args.config)?;
    let what = may_go(&file, &args.location, args.old).await?;
    file.without(&args.location)?.write()?;
    say(&format!("{what}; {} does not list it any more: {RELOAD}", args.config.display()))
}

/// Refuses a target that holds chunks. Answers what it is.
pub async fn may_go(file: &File, path: &Path, args: OldArgs) -> Result<String> {
    let target = file.find(path)?;
    let name = path.display();
    let superblock = match inspect(&target.path).map(|i| i.content) {
        Ok(Content::Target(superblock)) => superblock,
        Ok(Content::Blank) => return Ok(format!("{name} was never used")),
        Ok(other) if args.abandon => return Ok(format!("{name} holds {other}")),
        Err(e) if args.abandon => return Ok(format!("{name} cannot be read ({e})")),
        Ok(other) => bail!("{name} holds {other}; --abandon takes it out all the same"),
        Err(e) => bail!("{e}; --abandon takes it out all the same"),
    };
    let uuid = superblock.uuid.to_string();
    let known = leader_status(&file.config.metadata).await.map(|reply| {
        rows(&reply).into_iter().find(|row| row.uuid == uuid).map(|row| (row.id, row.chunks))
    });
    match known {
        Ok(None) => Ok(format!("{name} never joined the cluster")),
        Ok(Some((id, 0))) => Ok(format!("target {id} holds no chunks")),
        Ok(Some((id, chunks))) if args.abandon => {
            Ok(format!("target {id} goes with its {chunks} chunks, which stay on the drive"))
        }
        Err(_) if args.abandon => Ok(format!("{name} goes with what it holds")),
        Ok(Some((id, chunks))) => bail!(
            "target {id} holds {chunks} chunks, which nothing copies elsewhere yet; --abandon takes it \
             out all the same, and they are rebuilt from the other shards whenever they are read"
        ),
        Err(e) => bail!("nobody can say whether it holds chunks ({e:#}); --abandon takes it out"),
    }
}
