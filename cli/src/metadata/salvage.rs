//! `weft metadata salvage`: a backup from the folder of one server of a group that is lost.

use super::folder::Folder;
use super::serve;
use crate::output::{complain, say};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Folder that the backup is made in: a new one, or one that is empty
    #[arg(value_name = "DIR")]
    to: PathBuf,
    #[command(flatten)]
    server: serve::Place,
}

pub fn run(args: Args) -> Result<()> {
    make(args.server, Folder::take(args.to)?)
}

#[allow(clippy::disallowed_methods, reason = "wall time: the backup says when it was made")]
fn make(server: serve::Place, mut folder: Folder) -> Result<()> {
    let config = server.config()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let taken = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let to = folder.path().to_owned();
    let (manifest, damage) = weft_metadata::salvage(&config, &to, taken)
        .with_context(|| format!("cannot read what metadata server {} has", config.id))?;
    folder.has(manifest.files.iter().map(|part| part.name.clone()));
    folder.finish(&manifest.to_text()?)?;
    if let Some(damage) = damage {
        complain(&format!(
            "weft: {damage}: take another server's, if one has it whole; if there is none, `weft \
             metadata restore --damaged` takes this one"
        ));
    }
    say(&format!(
        "backup of cluster {} as of term {} and entry {}, the last that server {} knew, in {}: of \
         several, take that of the highest term, and of these the highest entry; then begin the \
         group anew with `weft metadata restore`",
        manifest.cluster,
        manifest.term,
        manifest.index,
        config.id,
        to.display()
    ))
}
