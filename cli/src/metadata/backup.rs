//! `weft metadata backup`: all that the metadata group has, into a folder.

use super::folder::Folder;
use crate::control::{ClusterArgs, leader_status};
use crate::daemon;
use crate::network::transport;
use crate::output::say;
use crate::progress::Progress;
use crate::size::Size;
use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::path::PathBuf;
use tokio::sync::watch;
use weft_metadata::Manifest;
use weft_proto::{Error, ErrorKind};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Folder that the backup is made in: a new one, or one that is empty
    #[arg(value_name = "DIR")]
    to: PathBuf,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub async fn run(args: Args) -> Result<()> {
    let stop = daemon::shutdown_on_signal()?;
    let folder = Folder::take(args.to)?;
    let mut told = stop.clone();
    tokio::select! {
        biased;
        _ = told.wait_for(|&stop| stop) => Err(interrupted().into()),
        made = make(folder, &args.cluster, stop) => made,
    }
}

fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "interrupted: there is no backup")
}

async fn make(
    mut folder: Folder,
    cluster: &ClusterArgs,
    stop: watch::Receiver<bool>,
) -> Result<()> {
    let leader = leader_status(&cluster.cluster).await?.leader_address;
    let mut backup = weft_control::backup(&transport(), &leader).await?;
    let mut progress = Progress::new("backup");
    progress.set("the leader copies its state, and reads all of it");
    let read =
        |read: u64| progress.detail(format!("the leader has read {} of its state", Size(read)));
    let text = backup.manifest(read).await?;
    let manifest = Manifest::parse(&text).context("the leader's manifest makes no sense")?;
    let (all, mut done) = (manifest.files.iter().map(|part| part.len).sum::<u64>(), 0);
    progress.set("copying it here");
    for part in &manifest.files {
        let mut file = folder.create(&part.name)?;
        let mut left = part.len;
        while left > 0 {
            let data = backup.data().await?;
            let len = data.len() as u64;
            ensure!((1..=left).contains(&len), "{}: a piece of {len} of {left} bytes", part.name);
            file.write_all(&data).with_context(|| format!("write {}", part.name))?;
            (left, done) = (left - len, done + len);
            progress.detail(format!("{} of {}", Size(done), Size(all)));
        }
        file.sync_all().with_context(|| format!("sync {}", part.name))?;
    }
    let dir = folder.path().to_owned();
    progress.set("reading it through");
    let mut goes_on = |_: u64| if *stop.borrow() { Err(interrupted()) } else { Ok(()) };
    let verified = manifest.verify(&dir, &mut goes_on);
    if *stop.borrow() {
        return Err(interrupted().into());
    }
    let newer = verified.as_ref().is_err_and(|error| error.kind == ErrorKind::NotSupported);
    if newer {
        // Its files are those of the leader.
        say("the servers are of a newer version: look with theirs whether it can be restored")?;
    } else {
        verified.context(
            "the backup is not whole, and nothing is left of it: make it again, and elsewhere if \
             it fails once more",
        )?;
    }
    folder.finish(&text)?;
    drop(progress);
    say(&format!(
        "backup of cluster {} as of entry {} of its log: {} files, {}, in {}",
        manifest.cluster,
        manifest.index,
        manifest.files.len(),
        Size(all),
        dir.display()
    ))
}
