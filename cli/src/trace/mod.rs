//! `weft trace`: where the bytes of a file lie, and what redundancy is left to them.

mod locate;
mod look;
mod report;
mod text;

use crate::output::OutputArgs;
use anyhow::{Context, Result, bail};
use locate::Place;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::timeout;
use weft_client::{Credentials, FileKind, Filesystem, Options};
use weft_proto::ErrorKind;

/// Extents that are asked for; a file with more is shown as far as that.
const MAX_EXTENTS: usize = 4_000_000;

/// Show where a file lies: its segments, the targets that hold them, and what may still be lost
///
/// FILE is a file in a mount of this machine, or, with --cluster, a path from the root of the
/// filesystem. Each chunk is asked for at its target: whether it is there, and whether its end
/// matches its checksum; with --verify all of it is read and compared.
///
/// The exit code is 0 if every segment has all its redundancy, 1 if some lack it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft trace /mnt/datasets/a.tar
  weft trace /mnt/datasets/a.tar --verify --all --output json
  weft trace /datasets/a.tar --cluster 10.0.0.1:7100")]
pub struct Args {
    /// A file in a mount, or a path of the cluster
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Addresses of the metadata servers, host:port separated by commas; without, those of the
    /// mount that the file is in
    #[arg(long, env = "WEFT_CLUSTER", value_delimiter = ',', value_name = "ADDR,..")]
    cluster: Vec<String>,
    /// List every segment, and ask for every chunk, of however large a file
    #[arg(long)]
    all: bool,
    /// Read all of each chunk that is asked for, and compare it with its checksums
    #[arg(long)]
    verify: bool,
    /// Seconds to wait for the cluster
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    timeout: u64,
    #[command(flatten)]
    output: OutputArgs,
}

pub async fn run(args: Args) -> Result<ExitCode> {
    let place = locate::locate(&args.file, &args.cluster)?;
    let limit = Duration::from_secs(args.timeout);
    let mut options = Options::new(place.cluster.clone(), crate::network::transport());
    options.client_name = "trace".into();
    options.subdir = place.subdir.clone().into_bytes();
    options.read_only = true;
    options.access_times = false;
    options.op_deadline = limit;
    let addresses = place.cluster.join(",");
    let fs = timeout(limit, Filesystem::connect(options))
        .await
        .with_context(|| {
            format!(
                "no metadata leader answered at {addresses} for {limit:?}; see what is wrong with \
                 weft status --cluster {addresses}"
            )
        })?
        .with_context(|| format!("cannot open a session with {addresses}"))?;
    let traced = trace(&fs, &args, &place).await;
    // What was asked is answered; a session that is not closed ends by itself.
    if let Err(error) = fs.shutdown().await {
        tracing::warn!(%error, "the session is not closed");
    }
    let report = traced?;
    args.output.print(&report, |report| text::text(report, args.all))?;
    Ok(if report.is_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn trace(fs: &Filesystem, args: &Args, place: &Place) -> Result<report::Report> {
    let name = args.file.display();
    let attr = fs.as_user(Credentials::root()).stat(&place.path).await;
    let ino = match (attr, place.ino) {
        (Ok(attr), known) if known.is_none_or(|ino| ino == attr.ino) => match attr.kind {
            FileKind::Regular => attr.ino,
            FileKind::Directory => bail!(
                "{name} is a directory: its names are in metadata alone. Trace a file in it; \
                 weft layout get {name} says how new files are laid out"
            ),
            kind => bail!("{name} is no regular file ({kind:?}): it has no content to trace"),
        },
        // Mounted over, bound elsewhere, or renamed just now: the kernel knows which one it is.
        (_, Some(ino)) => ino,
        (Err(error), None) if !is_missing(error.kind) => {
            return Err(error).with_context(|| format!("cannot look at {name} in the cluster"));
        }
        (Err(error), None) => {
            return Err(error).with_context(|| {
                format!(
                    "there is no such file in the cluster: {name}. Give its path from the root of \
                     the filesystem, or as it is in a mount (mount -t fuse.weft lists those)"
                )
            });
        }
        (Ok(attr), _) => attr.ino,
    };
    let traced = fs.trace(ino, MAX_EXTENTS).await;
    let traced = traced.with_context(|| format!("cannot trace {name}"))?;
    let looks = look::look(fs, &traced, args.all, args.verify).await;
    let cluster = place.cluster.join(",");
    let map = fs.cluster_map();
    Ok(report::report(name.to_string(), &cluster, &traced, &map, &looks, args.all))
}

/// Whether such an error says that there is no such file, and not that nobody can tell.
fn is_missing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotDirectory | ErrorKind::Stale)
}
