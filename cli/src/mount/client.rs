//! The client behind a mount.

use super::args::Args;
use super::options::MountOptions;
use super::session_file::SessionFile;
use crate::mounts::MountRecord;
use anyhow::{Result, ensure};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use weft_client::{Filesystem, HotOptions};
use weft_fuse::Mounted;

/// A mount that is served here.
pub struct Started {
    pub fs: Filesystem,
    pub mounted: Mounted,
    pub record: MountRecord,
    pub session: Arc<SessionFile>,
    /// Turns true when this process is told to stop.
    pub told: watch::Receiver<bool>,
}

/// What `args` ask of the client of a mount at `path`.
pub fn client_options(
    args: &Args,
    path: &Path,
    metadata: Vec<String>,
    session: &Arc<SessionFile>,
) -> Result<weft_client::Options> {
    let host = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
    let mut options = weft_client::Options::new(metadata, crate::network::transport());
    options.client_name = args.name.clone().unwrap_or_else(|| format!("{host}:{}", path.display()));
    options.subdir = args.subdir.clone().unwrap_or_default().into();
    options.cache_bytes = usize::try_from(args.cache.0)?;
    options.write_buffer_bytes = usize::try_from(args.write_buffer.0)?;
    let MountOptions { flags, soft, closesync } = args.options.unwrap_or_default();
    options.op_deadline = soft.map_or(Duration::MAX, Duration::from_secs);
    options.read_only = flags.read_only;
    options.access_times = !flags.noatime;
    options.dir_sync = flags.dirsync;
    options.close_sync = closesync;
    if let (Some(dir), Some(size)) = (&args.hot, args.hot_size) {
        let inside = dir.starts_with(path);
        ensure!(!inside, "--hot {}: it lies in the mount itself", dir.display());
        options.hot = Some(HotOptions { dir: dir.clone(), size: size.0 });
    }
    options.connect_timeout = Duration::from_secs(args.timeout);
    options.dead_sessions = session.dead();
    let session = session.clone();
    options.keep_session = Some(Arc::new(move |key| session.keep(key)));
    Ok(options)
}
