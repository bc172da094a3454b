//! A process takes a mount over from the one that serves it: `weft mount --takeover`.

use super::args::Args;
use super::background;
use super::client::{Started, client_options};
use super::hand_over::{SERVE_TIMEOUT, TRY_TIMEOUT};
use super::session_file::SessionFile;
use super::words::{VERSION, begins, hear, say, take, told};
use crate::daemon;
use crate::mounts::{self, MountRecord};
use crate::output::describe;
use crate::process::Process;
use crate::progress::Progress;
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use weft_client::Filesystem;
use weft_fuse::{Inherited, mount_at};
use weft_proto::{InodeId, Uuid, v1};

/// The other process gets so long for each of its words.
const WORD_TIMEOUT: Duration = Duration::from_secs(10);

/// A process that has closed its socket because it dies has ended after so long.
const DEATH_TIMEOUT: Duration = Duration::from_secs(1);

/// Starts the process that goes on with a mount, with the settings that it has. Returns when that
/// serves.
pub fn start(args: &Args) -> Result<()> {
    let record = served_at(&args.mount_point)?;
    let path = &record.path;
    let own = record.settings.iter().find_map(|setting| setting.strip_prefix("--log-file="));
    let log_file = match (&args.log_file, own) {
        (Some(file), _) => std::path::absolute(file)?,
        (None, Some(file)) => file.into(),
        (None, None) => mounts::default_log(path)?,
    };
    let _progress = Progress::new(format!("taking over {}", path.display()));
    let mut settings = record.settings.clone();
    settings.push("--takeover".into());
    background::start_to_take_over(&background::arguments(&settings, path), path, &log_file)
}

/// The mount at a path, which a process of this user serves that can hand it over.
fn served_at(mount_point: &Path) -> Result<MountRecord> {
    let path = weft_fuse::resolve_mount_point(mount_point)
        .with_context(|| format!("mount point {} does not exist", mount_point.display()))?;
    let at = path.display();
    ensure!(mount_at(&path)?.is_some_and(|m| m.is_weft()), "no weft filesystem is mounted at {at}");
    let record = mounts::find(&path)?.filter(|record| record.process.alive());
    let Some(record) = record else {
        bail!("no process of this user serves {at}; if it has died: weft umount {at}, and mount it")
    };
    ensure!(
        !record.settings.is_empty(),
        "process {}, which serves {at}, is of a version that hands no mount over: unmount it, and \
         mount it anew",
        record.process.pid
    );
    Ok(record)
}

/// Takes the mount over, which was mounted with `settings`.
pub async fn take_over(args: &Args, settings: Vec<String>) -> Result<Started> {
    let old = served_at(&args.mount_point)?;
    let mut socket = UnixStream::connect(old.socket()?)
        .await
        .with_context(|| format!("process {} hands nothing over", old.process.pid))?;
    let software = format!("weft {}", env!("CARGO_PKG_VERSION"));
    say(&mut socket, &v1::TakeoverRequest { version: VERSION, software, takes_names: true })
        .await?;
    let offer: v1::TakeoverOffer = hear(&mut socket, WORD_TIMEOUT).await?;
    told(offer.error)?;
    // One of a version before did not note it.
    let connection = old.connection().or_else(|| weft_fuse::Connection::at(&old.path));
    let mut record = MountRecord::of_this_process(
        old.path.clone(),
        offer.metadata.clone(),
        settings,
        connection,
    )?;
    record.supervisor = old.supervisor.clone().filter(Process::alive);
    let (path, cluster) = (record.path.clone(), Uuid::from_slice(&offer.cluster));
    let session = SessionFile::take_over(mounts::session_file(&path)?);
    let options = client_options(args, &path, offer.metadata, &session)?;
    let limit = Duration::from_secs(args.timeout);
    let successor = tokio::time::timeout(limit, Filesystem::succeed(options, cluster))
        .await
        .with_context(|| format!("no metadata server answered for {limit:?}"))??;

    say(&mut socket, &v1::TakeoverWord::default()).await?;
    begins(&socket, 2 * TRY_TIMEOUT).await?;
    let given = Instant::now();
    let state: v1::MountState = hear(&mut socket, 2 * TRY_TIMEOUT).await?;
    told(state.error)?;
    // Who unmounts it from here on waits for this process, and nobody ends what it is given with
    // the other process; if that one goes on, it says so, and may have done so before.
    in_time(given)?;
    let mut heir = Heir { own: record.process.clone(), old: &old, serves: false };
    record.save()?;
    let agreed = state.agreed.context("the mount came without what the kernel has agreed to")?;
    let client = state.client.context("the mount came without its state")?;
    // 0: of a version that knows of no other.
    let root = InodeId(client.root.max(InodeId::ROOT.0));
    let inherited = Inherited::new(take(&socket, WORD_TIMEOUT).await?, root, state.known);
    if let Err(error) =
        successor.adopt(client, inherited.content_cache(), inherited.name_cache()).await
    {
        let told = v1::TakeoverWord { error: Some(error.clone().into()) };
        // The other end hears it from the end of the conversation, too.
        let _ = say(&mut socket, &told).await;
        return Err(error).context("this process cannot go on with the mount");
    }
    let threads = args.fuse_threads.unwrap_or(weft_fuse::Options::default().threads);
    let requests = state.requests.into_iter().map(|request| request.to_vec()).collect();
    let prepared = inherited.prepare(successor.filesystem(), &path, threads, requests, agreed)?;
    let told = daemon::shutdown_on_signal()?;
    if let Err(error) = say(&mut socket, &v1::TakeoverWord::default()).await {
        not_taken_back(&mut socket, &old, given).await.context(error)?;
    }
    // From here on nobody else serves it.
    let fs = successor.begin();
    let mounted = prepared.serve();
    heir.serves = true;
    tracing::info!("took {} over from process {}", path.display(), old.process.pid);
    Ok(Started { fs, mounted, record, session, told })
}

/// The other process goes on by itself when this is over.
fn in_time(given: Instant) -> Result<()> {
    let took = given.elapsed();
    ensure!(took < SERVE_TIMEOUT, "this came too late, {took:?} after it was given the mount");
    Ok(())
}

/// This process, whose record is in the place of the other's: that is put back if this one does not
/// come to serve the mount.
struct Heir<'a> {
    own: Process,
    old: &'a MountRecord,
    serves: bool,
}

impl Drop for Heir<'_> {
    fn drop(&mut self) {
        if self.serves {
            return;
        }
        if let Err(error) = self.old.put_back(&self.own) {
            tracing::error!("commands do not find this mount: {}", describe(&error));
        }
    }
}

/// The other process was not told that this one serves. Errors: it goes on, or may do so.
async fn not_taken_back(socket: &mut UnixStream, old: &MountRecord, given: Instant) -> Result<()> {
    if let Ok(word) = hear::<v1::TakeoverWord>(socket, WORD_TIMEOUT).await {
        told(word.error)?;
    }
    // It closed the conversation without a word: it has died, or is about to. It did not go on
    // before: it waits longer than that.
    in_time(given)?;
    ensure!(old.process.wait(DEATH_TIMEOUT), "process {} serves on", old.process.pid);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_too_late_takes_nothing() {
        let now = Instant::now();
        assert!(in_time(now).is_ok());
        assert!(now.checked_sub(SERVE_TIMEOUT).is_none_or(|then| in_time(then).is_err()));
    }
}
