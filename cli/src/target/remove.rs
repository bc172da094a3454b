//! `weft target remove`: takes a target out of its daemon's configuration.

use super::add::drive;
use super::config::{File, RELOAD};
use super::list::{TargetRow, rows};
use crate::control::leader_status;
use crate::network;
use crate::output::describe;
use crate::output::say;
use anyhow::{Context, Result, anyhow, bail};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::block_in_place;
use tokio::time::{Instant, timeout};
use weft_net::{Identity, Peers};
use weft_proto::v1::StatusReply;
use weft_proto::{TargetId, Uuid};
use weft_segments::TargetClient;
use weft_storaged::engine::{Content, inspect};

/// Longest wait for the daemon whose target it is, and for a drive that is given up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Take a target out of the configuration of its storage daemon
///
/// The drive is not touched, so `weft target add` is not needed to undo this: put the section back.
/// A target that holds chunks is refused: `weft target drain` moves them to others first, while it
/// serves; `weft target out` makes them at others without it.
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
    let file = File::lock(&args.config)?;
    let what = may_go(&file, &args.location, args.old).await?;
    file.without(&args.location)?.write()?;
    say(&format!("{what}; {} does not list it any more: {RELOAD}", args.config.display()))
}

/// Refuses a target that holds chunks. Answers what it is.
pub async fn may_go(file: &File, path: &Path, args: OldArgs) -> Result<String> {
    let target = file.find(path)?;
    let name = path.display();
    // Where the drive is, there is no admin's certificate; the daemon's own will do.
    if let Some(files) = file.config.tls.as_ref().filter(|_| !network::has_certificates()) {
        network::show(files.clone())?;
    }
    // What is behind a fabric is looked at where the kernel shows it here. A box that is gone is
    // not waited for by who gives it up.
    let patience = if args.abandon { ANSWER_TIMEOUT } else { Duration::MAX };
    let found = timeout(patience, drive(target, &file.config.nvmeof)).await;
    let found = found.unwrap_or_else(|_| Err(anyhow!("it cannot be reached")));
    let found = found.and_then(|drive| Ok(block_in_place(|| inspect(&drive.path))?.content));
    let superblock = match found {
        Ok(Content::Target(superblock)) => superblock,
        Ok(Content::Blank) => return Ok(format!("{name} was never used")),
        Ok(other) if args.abandon => return Ok(format!("{name} holds {other}")),
        Err(e) if args.abandon => return Ok(format!("{name} cannot be read ({})", describe(&e))),
        Ok(other) => bail!("{name} holds {other}; --abandon takes it out all the same"),
        Err(e) => bail!("{}; --abandon takes it out all the same", describe(&e)),
    };
    let chunks = async {
        let reply = leader_status(&file.config.metadata).await?;
        let uuid = superblock.uuid.to_string();
        match rows(&reply).into_iter().find(|row| row.uuid == uuid) {
            Some(row) => Ok(Some((row.id, holds_chunks(&reply, &row).await?))),
            None => anyhow::Ok(None),
        }
    };
    match chunks.await {
        Ok(None) if superblock.cluster == Uuid::NIL => {
            Ok(format!("{name} never joined the cluster"))
        }
        Ok(None) if args.abandon => Ok(format!("{name} goes with what it holds")),
        Ok(None) => bail!(
            "{name} is target {} of cluster {}, which does not know it: start its daemon; \
             --abandon takes it out all the same",
            superblock.target,
            superblock.cluster
        ),
        Ok(Some((id, false))) => Ok(format!("target {id} holds no chunks")),
        Ok(Some((id, true))) if args.abandon => {
            Ok(format!("target {id} goes with its chunks, which stay on the drive"))
        }
        Err(_) if args.abandon => Ok(format!("{name} goes with what it holds")),
        Ok(Some((id, true))) => bail!(
            "target {id} holds chunks: weft target drain {id} moves them to others first; \
             --abandon takes it out all the same, and they are made at others when it was given up"
        ),
        Err(e) => bail!(
            "nobody can say whether it holds chunks ({}); --abandon takes it out",
            describe(&e)
        ),
    }
}

/// Whether a target holds chunks, as its daemon says: what the metadata servers know is from the
/// last heartbeat, and a chunk may have come since.
async fn holds_chunks(reply: &StatusReply, row: &TargetRow) -> Result<bool> {
    let cluster = reply.map.as_ref().and_then(|m| Uuid::from_slice(&m.cluster));
    let peers = Peers::new(network::transport(), Identity { name: "weft target".into(), cluster });
    let target = TargetClient::new(&peers, TargetId(row.id), &row.address);
    let page = target
        .list(None, None, 1, Instant::now() + ANSWER_TIMEOUT)
        .await
        .with_context(|| format!("storage daemon {}", row.daemon))?;
    Ok(!page.items.is_empty())
}
