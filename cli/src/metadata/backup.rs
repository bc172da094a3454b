//! `weft metadata backup`: all that the metadata group has, into a folder.

use crate::control::{ClusterArgs, leader_status};
use crate::durable;
use crate::network::transport;
use crate::output::say;
use crate::progress::Progress;
use crate::size::Size;
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_metadata::{MANIFEST, Manifest};

/// The leader copies its state before the first piece, and reads it anew for its checksums.
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
    let dir = args.to;
    make_empty(&dir)?;
    let made = make(&dir, &args.cluster).await;
    if made.is_err() {
        clear(&dir);
    }
    made
}

/// What is there of a backup that came to nothing.
pub(super) fn clear(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let _ = fs::remove_file(entry.path());
    }
}

async fn make(dir: &Path, cluster: &ClusterArgs) -> Result<()> {
    let leader = leader_status(&cluster.cluster).await?.leader_address;
    let mut backup = weft_control::backup(&transport(), &leader).await?;
    let mut progress = Progress::new("backup");
    progress.set("the leader copies its state");
    let text = backup.next(FIRST_TIMEOUT).await?.manifest;
    let manifest = Manifest::parse(&text).context("the leader's manifest makes no sense")?;
    let (all, mut done) = (manifest.files.iter().map(|part| part.len).sum::<u64>(), 0);
    for part in &manifest.files {
        let path = dir.join(&part.name);
        let mut file = create(&path).with_context(|| format!("{}", path.display()))?;
        let mut left = part.len;
        while left > 0 {
            let data = backup.next(PIECE_TIMEOUT).await?.data;
            let len = data.len() as u64;
            ensure!((1..=left).contains(&len), "{}: a piece of {len} of {left} bytes", part.name);
            file.write_all(&data).with_context(|| format!("write to {}", path.display()))?;
            (left, done) = (left - len, done + len);
            progress.set(format!("{} of {}", Size(done), Size(all)));
        }
        file.sync_all().with_context(|| format!("sync {}", path.display()))?;
    }
    manifest.verify(dir).context("the backup arrived damaged: make it again")?;
    finish(dir, &text)?;
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

pub(super) fn make_empty(dir: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        made => return made.with_context(|| format!("cannot make {}", dir.display())),
    }
    let mut entries = fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?;
    if entries.next().is_some() {
        bail!("{} is not empty: a backup has a folder of its own", dir.display());
    }
    Ok(())
}

/// Nobody else may read it: it has all names.
fn create(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// With its manifest it is one.
pub(super) fn finish(dir: &Path, manifest: &str) -> Result<()> {
    let path = dir.join(MANIFEST);
    let write = || {
        durable::create(&path, manifest.as_bytes(), 0o600)?;
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
