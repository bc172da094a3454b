//! The arguments of `weft dev start`.

use crate::size::Size;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use weft_storaged::engine::Superblock;

/// Start the cluster in DIR and mount it; returns when the mount is usable
///
/// A new or empty DIR gets a new cluster; if that cannot be started, nothing but its logs is left.
/// On a DIR that has one, whatever does not run is started and the rest is left alone.
///
/// An empty cluster with these defaults takes less than 1 GB of disk: its targets are sparse files,
/// which take what is written to them. The start says what is taken.
#[derive(clap::Args, Debug)]
pub struct StartArgs {
    /// Folder that holds everything of the cluster
    #[arg(long)]
    pub dir: PathBuf,
    /// Where to mount it; an empty folder, made if only the last part of the path is missing
    #[arg(long, value_name = "MNT", required_unless_present = "no_mount")]
    pub mount: Option<PathBuf>,
    /// Start the daemons only
    #[arg(long, conflicts_with = "mount")]
    pub no_mount: bool,
    /// Number of metadata servers [default of a new cluster: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=9))]
    pub metadata: Option<u64>,
    /// Number of storage daemons, each with one target [default of a new cluster: 6]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    pub storage: Option<u64>,
    /// Redundancy: K+M, or replica=N [default of a new cluster: 4+2]
    #[arg(long)]
    pub profile: Option<weft_proto::Profile>,
    /// Size of each target [default of a new cluster: 4GiB, less where all of them would not fit]
    #[arg(long, value_name = "SIZE", value_parser = target_size)]
    pub target_size: Option<Size>,
    /// Give the targets of a new cluster all their space at once, which makes writes quicker;
    /// without, they take what is written
    #[arg(long)]
    pub preallocate: bool,
    /// Encrypt every connection and have both of its ends prove who they are: an authority and
    /// certificates are made in DIR/tls (ca.pem, client.pem and client.key, ...)
    #[arg(long)]
    pub tls: bool,
    /// Seconds to wait for the cluster before giving up
    #[arg(long, default_value_t = 90, value_name = "SECONDS")]
    pub timeout: u64,
}

fn target_size(text: &str) -> Result<Size, String> {
    let (size, least) = (text.parse::<Size>()?, Size(Superblock::MIN_SIZE));
    if size < least {
        return Err(format!("a target has at least {}", least.exact()));
    }
    Ok(size)
}

/// Daemons run elsewhere in the tree, so every path that they get is absolute and resolved.
pub fn absolute(dir: &Path) -> Result<PathBuf> {
    match dir.canonicalize() {
        Ok(path) => Ok(path),
        Err(_) => std::path::absolute(dir).with_context(|| format!("bad path {}", dir.display())),
    }
}
