//! `weft metadata verify`: whether a backup could be restored.

use crate::output::say;
use crate::progress::Progress;
use crate::size::Size;
use anyhow::{Result, anyhow};
use std::path::PathBuf;
use weft_metadata::Manifest;
use weft_proto::ErrorKind;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Folder of the backup
    #[arg(value_name = "DIR")]
    backup: PathBuf,
}

pub fn run(args: Args) -> Result<()> {
    let dir = args.backup;
    let manifest = Manifest::load(&dir)?;
    let (mut progress, mut all) = (Progress::new("reading it through"), 0);
    let mut told = |bytes: u64| -> weft_proto::Result<()> {
        all += bytes;
        progress.detail(format!("read {}", Size(all)));
        Ok(())
    };
    manifest.verify(&dir, &mut told).map_err(|error| match error.kind {
        ErrorKind::NotSupported => {
            anyhow!(error).context("its files are whole; look with the version that made it")
        }
        _ => anyhow!(error).context("do not count on this backup: make another"),
    })?;
    drop(progress);
    say(&format!(
        "{} has a whole backup of cluster {} as of entry {} of its log: {} files, {}",
        dir.display(),
        manifest.cluster,
        manifest.index,
        manifest.files.len(),
        Size(manifest.files.iter().map(|part| part.len).sum())
    ))
}
