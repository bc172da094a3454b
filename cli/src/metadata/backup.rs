//! `weft metadata backup`: all that the metadata group has, into a folder.

use super::folder::Folder;
use crate::control::{ClusterArgs, leader_status};
use crate::network::transport;
use crate::output::say;
use crate::progress::Progress;
use crate::size::Size;
use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use weft_metadata::Manifest;

/// The leader copies its state before the first piece, and reads all of it anew.
const FIRST_TIMEOUT: Duration = Duration::from_secs(3600);
/// Longest wait for another piece.
const PIECE_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Folder that the backup is made in: a new one, or one that is empty
    #[arg(value_name = "DIR")]
    to: PathBuf,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub async fn run(args: Args) -> Result<()> {
    make(Folder::take(args.to)?, &args.cluster).await
}

async fn make(mut folder: Folder, cluster: &ClusterArgs) -> Result<()> {
    let leader = leader_status(&cluster.cluster).await?.leader_address;
    let mut backup = weft_control::backup(&transport(), &leader).await?;
    let mut progress = Progress::new("backup");
    progress.set("the leader copies its state");
    let text = backup.next(FIRST_TIMEOUT).await?.manifest;
    let manifest = Manifest::parse(&text).context("the leader's manifest makes no sense")?;
    let (all, mut done) = (manifest.files.iter().map(|part| part.len).sum::<u64>(), 0);
    for part in &manifest.files {
        let mut file = folder.create(&part.name)?;
        let mut left = part.len;
        while left > 0 {
            let data = backup.next(PIECE_TIMEOUT).await?.data;
            let len = data.len() as u64;
            ensure!((1..=left).contains(&len), "{}: a piece of {len} of {left} bytes", part.name);
            file.write_all(&data).with_context(|| format!("write {}", part.name))?;
            (left, done) = (left - len, done + len);
            progress.set(format!("{} of {}", Size(done), Size(all)));
        }
        file.sync_all().with_context(|| format!("sync {}", part.name))?;
    }
    let dir = folder.path().to_owned();
    progress.set("reading it through");
    manifest.verify(&dir).context(
        "the backup is not whole, and nothing is left of it: make it again, and elsewhere if it \
         fails once more",
    )?;
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
